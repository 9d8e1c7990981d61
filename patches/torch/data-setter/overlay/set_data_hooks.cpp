// A source build has the Reassignment in VariableHooks::set_data. That class is hidden in the stock
// libtorch_cpu, and TensorBase::set_data alone calls it there: an overlay build takes the place of
// that. Where castoff's grad_dtype puts hooks in front of VariableHooks, this one must be behind
// them, so it is hooks too.
#include <torch/csrc/autograd/data_setter.h>
#include <torch/csrc/castoff/kill_switch.h>

#if __has_include(<torch/csrc/autograd/grad_dtype.h>)

#include <ATen/core/VariableHooksInterface.h>

#include "forwarding_variable_hooks.h"

namespace torch::autograd::data_setter {
namespace {

struct SetDataHooks final : castoff::ForwardingVariableHooks {
  using ForwardingVariableHooks::ForwardingVariableHooks;
  void set_data(const Base& self, const Base& new_data) const override {
    const Reassignment reassignment(self, new_data);
    ForwardingVariableHooks::set_data(self, new_data);
  }
};

// At load: libtorch_cpu, which the overlay needs, has registered its hooks by then.
[[gnu::constructor]] void install() {
  if (castoff::topic_enabled("data-setter")) {
    static SetDataHooks hooks(at::impl::GetVariableHooks());
    at::impl::SetVariableHooks(&hooks);
  }
}

}  // namespace
}  // namespace torch::autograd::data_setter

#else

#include <ATen/core/TensorBase.h>

#include "interpose.h"

namespace torch::autograd::data_setter {

[[gnu::visibility("default")]] void tensor_set_data(
    const at::TensorBase* self,
    const at::TensorBase& new_data) __asm__("_ZNK2at10TensorBase8set_dataERKS0_");

void tensor_set_data(const at::TensorBase* self, const at::TensorBase& new_data) {
  using Stock = castoff::Stock<&tensor_set_data>;
  if (!castoff::topic_enabled("data-setter")) return Stock::call(self, new_data);
  const Reassignment reassignment(*self, new_data);
  Stock::call(self, new_data);
}

}  // namespace torch::autograd::data_setter

#endif
