#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/VariableHooksInterface.h>
#include <c10/util/Optional.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace torch::castoff {

// VariableHooks that hand every call on to the ones they were put in front of. A topic derives from
// it and overrides what it changes; several topics stack. For torch before 2.10.
struct ForwardingVariableHooks : at::impl::VariableHooksInterface {
  using Base = at::TensorBase;
  using GradFn = const std::shared_ptr<torch::autograd::Node>&;

  explicit ForwardingVariableHooks(at::impl::VariableHooksInterface* next) : next_(next) {}

  Base tensor_data(const Base& self) const override { return next_->tensor_data(self); }
  Base variable_data(const Base& self) const override { return next_->variable_data(self); }
  GradFn grad_fn(const Base& self) const override { return next_->grad_fn(self); }
  unsigned _register_hook(const Base& self, std::function<Base(const Base&)> hook) const override {
    return next_->_register_hook(self, std::move(hook));
  }
  void remove_hook(const Base& self, unsigned pos) const override { next_->remove_hook(self, pos); }
  bool is_view(const Base& self) const override { return next_->is_view(self); }
  const Base& base(const Base& self) const override { return next_->base(self); }
  const std::string& name(const Base& self) const override { return next_->name(self); }
  bool is_leaf(const Base& self) const override { return next_->is_leaf(self); }
  int64_t output_nr(const Base& self) const override { return next_->output_nr(self); }
  void set_data(const Base& self, const Base& new_data) const override {
    next_->set_data(self, new_data);
  }
  Base data(const Base& self) const override { return next_->data(self); }
  int64_t _version(const Base& self) const override { return next_->_version(self); }
  void retain_grad(const Base& self) const override { next_->retain_grad(self); }
  bool retains_grad(const Base& self) const override { return next_->retains_grad(self); }
  void _backward(const at::Tensor& self, at::TensorList inputs,
                 const c10::optional<at::Tensor>& gradient, c10::optional<bool> keep_graph,
                 bool create_graph) const override {
    next_->_backward(self, inputs, gradient, keep_graph, create_graph);
  }
  void requires_grad_(const Base& self, bool requires_grad) const override {
    next_->requires_grad_(self, requires_grad);
  }
  void basic_autograd_not_implemented_fallback(const c10::OperatorHandle& op,
                                               c10::DispatchKeySet dispatch_keys,
                                               torch::jit::Stack* stack) const override {
    next_->basic_autograd_not_implemented_fallback(op, dispatch_keys, stack);
  }

 private:
  at::impl::VariableHooksInterface* next_;
};

}  // namespace torch::castoff
