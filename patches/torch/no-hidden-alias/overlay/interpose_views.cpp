// An overlay build takes the place of the two functions that decide whether a tensor must be
// copied: of FunctionalTensorWrapper, whether it is contiguous; and reshape.
#include <ATen/FunctionalTensorWrapper.h>
#include <torch/csrc/castoff/kill_switch.h>
#include <torch/csrc/castoff/view_layout.h>

#include "interpose.h"

namespace {

bool enabled() {
  static const bool on = torch::castoff::topic_enabled("no-hidden-alias");
  return on;
}

}  // namespace

// A virtual member, as a free function under the member's symbol: to define the member would emit
// the class's vtable.
extern "C++" {
[[gnu::visibility("default")]] c10::SymBool
wrapper_is_contiguous(const at::FunctionalTensorWrapper* self, c10::MemoryFormat format) __asm__(
    "_ZNK2at23FunctionalTensorWrapper24sym_is_contiguous_customEN3c1012MemoryFormatE");
}

c10::SymBool wrapper_is_contiguous(const at::FunctionalTensorWrapper* self,
                                   c10::MemoryFormat format) {
  using Function = c10::SymBool(const at::FunctionalTensorWrapper*, c10::MemoryFormat);
  static auto* const stock = torch::castoff::stock<Function>(&wrapper_is_contiguous);
  if (enabled() && format == c10::MemoryFormat::Contiguous) {
    const at::Tensor layout = torch::castoff::layout_of_view(*self);
    if (layout.defined()) return layout.is_contiguous();
  }
  return stock(self, format);
}

namespace at::native {

[[gnu::visibility("default")]] Tensor reshape_symint(const Tensor& self,
                                                     c10::SymIntArrayRef shape) {
  using Function = Tensor(const Tensor&, c10::SymIntArrayRef);
  static auto* const stock = torch::castoff::stock<Function>(&reshape_symint);
  if (enabled() && self.is_xla()) {
    Tensor copied = torch::castoff::reshape_of_view(self, shape);
    if (copied.defined()) return copied;
  }
  return stock(self, shape);
}

}  // namespace at::native
