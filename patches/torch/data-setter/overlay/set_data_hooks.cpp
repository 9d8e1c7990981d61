// A source build has the Reassignment in VariableHooks::set_data. That class is hidden in the stock
// libtorch_cpu, so an overlay build puts hooks of its own in front of it.
#include <ATen/core/VariableHooksInterface.h>
#include <torch/csrc/autograd/data_setter.h>
#include <torch/csrc/castoff/kill_switch.h>

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
