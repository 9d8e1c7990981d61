// For torch/_module_to.py: what of a parameter's autograd state Python does not reach.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <mutex>
#include <typeinfo>
#include <utility>

namespace torch::autograd::module_to {
namespace {

at::Tensor tensor_of(c10::TensorImpl* impl) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(impl));
}

// What dies clears the hooks of its node, so `tensor` no longer has one.
auto take_accumulator(const at::Tensor& tensor) {
  auto* meta = impl::get_autograd_meta(tensor);
  if (meta == nullptr) {
    return decltype(meta->grad_accumulator_.lock())();
  }
  const std::lock_guard<std::mutex> lock(meta->mutex_);
  auto node = meta->grad_accumulator_.lock();
  meta->grad_accumulator_.reset();
  return node;
}

// The node of `from` becomes that of `to`. So hooks on it stay; a graph that was built before has
// gradients of the old device, which the engine refuses.
void carry_node(const at::Tensor& from, const at::Tensor& to) {
  const auto node = take_accumulator(from);
  if (!node || typeid(*node) != typeid(AccumulateGrad)) {
    return;
  }
  node->clear_input_metadata();
  node->add_input_metadata(to);
  static_cast<AccumulateGrad&>(*node).variable = to;
  auto* meta = impl::materialize_autograd_meta(to);
  const std::lock_guard<std::mutex> lock(meta->mutex_);
  meta->grad_accumulator_ = node;
}

}  // namespace
}  // namespace torch::autograd::module_to

// `from` is what a parameter was and `to` what it is: the node that accumulates its gradient, and
// the count of its versions, which earlier views share, go over.
extern "C" C10_EXPORT void castoff_module_to_carry(c10::TensorImpl* from, c10::TensorImpl* to) {
  namespace module_to = torch::autograd::module_to;
  if (!from->is_inference() && !to->is_inference()) {
    to->set_version_counter(from->version_counter());
  }
  module_to::carry_node(module_to::tensor_of(from), module_to::tensor_of(to));
}
