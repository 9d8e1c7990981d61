#include <torch/csrc/autograd/data_setter.h>

#include <torch/csrc/autograd/functional_wrapper.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/castoff/kill_switch.h>

#include <mutex>

namespace torch::autograd::data_setter {
namespace {

// Asked here and not where the hunk is: a build without an overlay has no other place.
bool enabled() {
  static const bool enabled = castoff::topic_enabled("data-setter");
  return enabled;
}

bool same_shape(const at::TensorBase& self, const at::TensorBase& new_data) {
  return self.sym_sizes().equals(new_data.sym_sizes());
}

bool same_metadata(const at::TensorBase& self, const at::TensorBase& new_data) {
  return !self.is_nested() && !new_data.is_nested() && self.dtype() == new_data.dtype() &&
         self.device() == new_data.device() && self.layout() == new_data.layout() &&
         same_shape(self, new_data);
}

NodePointer live_accumulator(const at::TensorBase& self) {
  auto* meta = impl::get_autograd_meta(self);
  if (meta == nullptr) {
    return {};
  }
  const std::lock_guard<std::mutex> lock(meta->mutex_);
  return meta->grad_accumulator_.lock();
}

}  // namespace

Reassignment::Reassignment(const at::TensorBase& self, const at::TensorBase& new_data)
    : self_(self), new_data_(new_data) {
  if (!enabled()) {
    return;
  }
  const bool changes = !same_metadata(self, new_data);
  if (!changes && !LeafState::any_in_use()) {
    return;
  }
  state_.keep(self);
  // Nested tensors have no shape to compare.
  if (self.is_nested() || new_data.is_nested()) {
    return;
  }
  auto accumulator = live_accumulator(self);
  if (!accumulator) {
    return;
  }
  if (changes) {
    state_.follow(self, accumulator);
  }
  if (same_shape(self, new_data) && LeafState::may_keep_node(self, new_data)) {
    kept_accumulator_ = std::move(accumulator);
  }
}

Reassignment::~Reassignment() {
  if (enabled()) {
    adopt_wrapped(self_, new_data_);
  }
  state_.finish();
  if (!kept_accumulator_) {
    return;
  }
  auto* meta = impl::get_autograd_meta(self_);
  const std::lock_guard<std::mutex> lock(meta->mutex_);
  if (meta->grad_accumulator_.expired()) {
    meta->grad_accumulator_ = decltype(meta->grad_accumulator_)(kept_accumulator_);
  }
}

}  // namespace torch::autograd::data_setter
