// An overlay build takes the place of the function by which functionalization's kernels get the
// value of an argument. Before that, all of them but those of views bring the argument up to date.
#include <ATen/FunctionalTensorWrapper.h>
#include <torch/csrc/castoff/kill_switch.h>

#include "interpose.h"

namespace {

// A traced FakeTensor of device xla has torch.compile's own functionalization.
bool is_stale(const at::FunctionalTensorWrapper& wrapper) {
  if (wrapper.is_up_to_date()) return false;
  const c10::DispatchKeySet keys = wrapper.value().key_set();
  return keys.has(c10::DispatchKey::XLA) && !keys.has(c10::DispatchKey::Python);
}

bool is_enabled() {
  static const bool enabled = torch::castoff::topic_enabled("stale-views");
  return enabled;
}

}  // namespace

extern "C++" {
[[gnu::visibility("default")]] at::Tensor unwrap(const at::Tensor& tensor, bool expected) __asm__(
    "_ZN2at17functionalization4impl22from_functional_tensorERKNS_6TensorEb");
}

at::Tensor unwrap(const at::Tensor& tensor, bool expected) {
  if (at::functionalization::impl::isFunctionalTensor(tensor)) {
    auto* const wrapper = at::functionalization::impl::unsafeGetFunctionalWrapper(tensor);
    if (is_stale(*wrapper) && is_enabled()) wrapper->sync_();
  }
  return torch::castoff::Stock<&unwrap>::call(tensor, expected);
}
