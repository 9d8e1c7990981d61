// An overlay build takes the place of the two functions that decide whether a tensor must be
// copied: of FunctionalTensorWrapper, whether it is contiguous; and reshape.
#include <ATen/FunctionalTensorWrapper.h>
#include <torch/csrc/castoff/torch_version.h>
#include <torch/csrc/castoff/view_layout.h>

#include "interpose.h"

// A virtual member, as a free function under the member's symbol: to define the member would emit
// the class's vtable.
#if CASTOFF_TORCH_AT_LEAST(2, 9)
using IsContiguous = c10::SymBool;
#define CASTOFF_IS_CONTIGUOUS \
  "_ZNK2at23FunctionalTensorWrapper24sym_is_contiguous_customEN3c1012MemoryFormatE"
#else
using IsContiguous = bool;
#define CASTOFF_IS_CONTIGUOUS \
  "_ZNK2at23FunctionalTensorWrapper20is_contiguous_customEN3c1012MemoryFormatE"
#endif

extern "C++" {
[[gnu::visibility("default")]] IsContiguous wrapper_is_contiguous(
    const at::FunctionalTensorWrapper* self,
    c10::MemoryFormat format) __asm__(CASTOFF_IS_CONTIGUOUS);
}

IsContiguous wrapper_is_contiguous(const at::FunctionalTensorWrapper* self,
                                   c10::MemoryFormat format) {
  if (const auto contiguous = torch::castoff::view_is_contiguous(*self, format)) {
    return *contiguous;
  }
  return torch::castoff::Stock<&wrapper_is_contiguous>::call(self, format);
}

namespace at::native {

[[gnu::visibility("default")]] Tensor reshape_symint(const Tensor& self,
                                                     c10::SymIntArrayRef shape) {
  if (self.is_xla()) {
    Tensor copied = torch::castoff::reshape_of_view(self, shape);
    if (copied.defined()) return copied;
  }
  return torch::castoff::Stock<&reshape_symint>::call(self, shape);
}

}  // namespace at::native
