// An overlay build takes the place of the two functions by which a wrapper of functionalization
// tells its sizes. torch's tell where those of its value lie, which is another tensor once the
// wrapper is brought up to date: a formula that looks at the sizes of its argument after it has
// made a tensor of that argument, as the gradient of rfft does, reads freed memory.
#include <ATen/FunctionalTensorWrapper.h>
#include <torch/csrc/castoff/kill_switch.h>

#include "interpose.h"

// Virtual members, as free functions under the members' symbols: to define a member would emit the
// class's vtable.
#define SIZES "_ZNK2at23FunctionalTensorWrapper12sizes_customEv"
#define SYM_SIZES "_ZNK2at23FunctionalTensorWrapper16sym_sizes_customEv"

using at::FunctionalTensorWrapper;

extern "C++" {
[[gnu::visibility("default")]] c10::IntArrayRef sizes_of(
    const FunctionalTensorWrapper* self) __asm__(SIZES);
[[gnu::visibility("default")]] c10::SymIntArrayRef sym_sizes_of(
    const FunctionalTensorWrapper* self) __asm__(SYM_SIZES);
}

namespace {

// A wrapper has sizes of its own, which it is made with. They are not its value's after an operator
// such as squeeze_(), and not where sizes are symbolic.
bool has_own_sizes(const FunctionalTensorWrapper& wrapper, c10::IntArrayRef of_value) {
  static const bool enabled = torch::castoff::topic_enabled("stale-views");
  return enabled && !wrapper.has_symbolic_sizes_strides() && wrapper.sizes_default() == of_value;
}

}  // namespace

c10::IntArrayRef sizes_of(const FunctionalTensorWrapper* self) {
  const c10::IntArrayRef found = self->value().sizes();
  return has_own_sizes(*self, found) ? self->sizes_default() : found;
}

c10::SymIntArrayRef sym_sizes_of(const FunctionalTensorWrapper* self) {
  const c10::SymIntArrayRef found = self->value().sym_sizes();
  const auto known = c10::asIntArrayRefSlowOpt(found);
  return known && has_own_sizes(*self, *known) ? self->sym_sizes_default() : found;
}
