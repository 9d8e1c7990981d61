#pragma once

// In inference mode a view of a normal tensor is a normal tensor.

#include <c10/core/TensorImpl.h>

namespace torch::autograd {

void make_normal_xla_view(c10::TensorImpl& view);

// For the constructor of DifferentiableViewMeta, which is called for views of normal tensors alone:
// makes `view`, an XLA tensor that was computed in inference mode, a normal tensor.
inline void make_normal_view(c10::TensorImpl& view) {
  if (C10_UNLIKELY(view.is_inference()) && view.is_xla()) {
    make_normal_xla_view(view);
  }
}

}  // namespace torch::autograd
