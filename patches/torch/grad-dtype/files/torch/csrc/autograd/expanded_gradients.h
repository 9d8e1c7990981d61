#pragma once

// A gradient that is an expanded view, as that of `w.sum()`, becomes a tensor of its own before it
// becomes .grad. torch copies it as its strides are not the leaf's. XLA tensors tell none: a write
// to such a .grad would go to the one element that all others are.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

namespace torch::autograd::grad_dtype {

void copy_expanded_view(at::Tensor& grad);

// For AccumulateGrad::apply.
inline void copy_expanded(variable_list& grads) {
  if (C10_UNLIKELY(!grads.empty() && grads[0].defined() && grads[0].is_xla())) {
    copy_expanded_view(grads[0]);
  }
}

}  // namespace torch::autograd::grad_dtype
