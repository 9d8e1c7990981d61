#pragma once

// In inference mode a view of a normal tensor is a normal tensor.

#include <c10/core/TensorImpl.h>

namespace torch::autograd {

// For the constructor of DifferentiableViewMeta, which is called for views of normal tensors alone:
// makes `view`, an XLA tensor that was computed in inference mode, a normal tensor.
void make_normal_view(c10::TensorImpl& view);

}  // namespace torch::autograd
