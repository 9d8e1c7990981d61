#pragma once

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace torch::castoff {

// For FunctionalTensorWrapper::sym_is_contiguous_custom: whether a view of an XLA tensor would be
// contiguous if its base had the strides that it has on any other device. torch_xla itself declares
// every tensor contiguous. A base is taken to be contiguous, and so is what `view` made of
// something that it could not have viewed elsewhere.
//
// nullopt: what torch says stands. So it is of what is no view of torch_xla's, of one of symbolic
// sizes, for other memory formats, and where the topic is switched off.
std::optional<bool> view_is_contiguous(const at::FunctionalTensorWrapper& wrapper,
                                       c10::MemoryFormat format);

// reshape(self, shape), of a functional wrapper of torch_xla's that is not contiguous: a view where
// the true layout allows for one, else a copy. An undefined tensor for any other, and where the
// topic is switched off.
at::Tensor reshape_of_view(const at::Tensor& self, c10::SymIntArrayRef shape);

}  // namespace torch::castoff
