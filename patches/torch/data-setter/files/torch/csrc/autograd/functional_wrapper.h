#pragma once

#include <ATen/core/TensorBase.h>
#include <torch/csrc/castoff/torch_version.h>

namespace torch::autograd::data_setter {

#if CASTOFF_TORCH_AT_LEAST(2, 2)

// FunctionalTensorWrapper::shallow_copy_from does it.
inline void adopt_wrapped(const at::TensorBase& /*self*/, const at::TensorBase& /*new_data*/) {}

#else

// Ends `self.data = new_data` of two tensors under functionalization, as every XLA tensor is: lets
// self's wrapper hold what new_data's holds. torch before 2.2 copies the storage and the metadata
// and leaves the wrapper with the tensor that it had, which every op on self then gets, of the old
// dtype, unless the two wrappers happen to differ in generation (pytorch/xla#3718, #3886, #4167).
// Does nothing for other tensors, or where the assignment did not take place.
void adopt_wrapped(const at::TensorBase& self, const at::TensorBase& new_data);

#endif

}  // namespace torch::autograd::data_setter
