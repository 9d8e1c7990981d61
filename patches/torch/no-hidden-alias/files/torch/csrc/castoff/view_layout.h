#pragma once

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/Tensor.h>

namespace torch::castoff {

// How a view of an XLA tensor would lie in its base's storage: a meta tensor with the sizes,
// strides and offset that the view's operators give on any device with strides. torch_xla itself
// declares every tensor contiguous. A base is taken to be contiguous, and so is what `view` made of
// something that it could not have viewed elsewhere.
//
// An undefined tensor: not a view of torch_xla's, or one of symbolic sizes.
at::Tensor layout_of_view(const at::FunctionalTensorWrapper& wrapper);

// reshape(self, shape), of a functional wrapper of torch_xla's that is not contiguous: a view where
// the true layout allows for one, else a copy. An undefined tensor for any other.
at::Tensor reshape_of_view(const at::Tensor& self, c10::SymIntArrayRef shape);

}  // namespace torch::castoff
