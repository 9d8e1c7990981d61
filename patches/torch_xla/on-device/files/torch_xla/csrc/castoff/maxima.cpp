// Maxima and minima of floating-point numbers. Their node is _lowerings/maxima.py's; here it is
// copied for each call but the first of its dtype, sizes and dimensions: Python would cost as much
// as two maxima.

#include "torch_xla/csrc/castoff/maxima.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full_ops.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/finite.h"
#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using at::Tensor;
using lazy_ir::NodePtr;
using lazy_ir::Value;

constexpr size_t kMost = 4096;

using Form = std::vector<int64_t>;

// What the node depends on: dtype and sizes of the tensor, and the operator's other arguments.
Form form_of(Call& call, const Tensor& self) {
  Form form{static_cast<int64_t>(self.scalar_type()), self.device().index()};
  for (size_t i = 1; i < call.size(); ++i) {
    if (call[i].isIntList()) {
      const auto dims = call[i].toDimVector();
      form.push_back(static_cast<int64_t>(dims.size()));
      form.insert(form.end(), dims.begin(), dims.end());
    } else {
      form.push_back(call[i].isBool() ? call[i].toBool() : call[i].toInt());
    }
  }
  form.insert(form.end(), self.sizes().begin(), self.sizes().end());
  return form;
}

// The nodes of one operator, of operands that hold nothing.
class Nodes {
 public:
  NodePtr find(const Form& form) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = nodes_.find(form);
    return found == nodes_.end() ? nullptr : found->second;
  }

  void add(const Form& form, NodePtr node) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (nodes_.size() >= kMost) nodes_.clear();
    nodes_.emplace(form, std::move(node));
  }

 private:
  mutable std::mutex mutex_;
  std::map<Form, NodePtr> nodes_;
};

// What a tensor that a kernel has just returned is to be computed by: no one has annotated it yet.
Value* value_of(const Tensor& result) {
  lazy_ir::Data* data = lazy_ir::data_of(result);
  return data == nullptr || !data->ir_value ? nullptr : &data->ir_value;
}

// One number in all places of a tensor like this one, which holds no buffer.
Tensor filled_like(const Tensor& self) {
  return at::_ops::full::redispatch(kXla, c10::fromIntArrayRefSlow(self.sizes()), 0,
                                    self.scalar_type(), at::kStrided, self.device(),
                                    /*pin_memory=*/false);
}

// Calls torch_xla's kernel, and puts the node in place of its own, or Python's function, which is
// in place when this is installed.
class Extreme final : public OverrideKernel {
 public:
  Extreme(const c10::OperatorHandle& op, c10::DispatchKey key, const PresentKernel& earlier)
      : OverrideKernel(op, key), earlier_(earlier), nodes_(*new Nodes) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    Call call(op, keys, *stack, op.schema().arguments().size(), earlier_);
    const Tensor self = call.tensor(0);
    if (!self.is_floating_point() || has_finite_extremes) return call.proceed();
    if (self.dim() == 0 || self.numel() == 0) return call.proceed();
    const bool reads_ir = !lazy_ir::refusal() && lazy_ir::ready(self);
    if (!reads_ir) return call_overridden(op, keys, stack);
    const Form form = form_of(call, self);
    const NodePtr node = nodes_.find(form);
    const std::vector<c10::IValue> arguments(call.begin(), call.end());
    call.proceed();
    Value* value = value_of(call.result().toTensor());
    if (value != nullptr && node != nullptr) {
      if (is_of(*value, node->operand(0))) {
        *value = lazy_ir::clone(*node, {lazy_ir::operand(*value->node, 0)});
      }
      return;
    }
    const Tensor filled = filled_like(self);
    const Value* operand = value_of(filled);
    if (value != nullptr && operand != nullptr && !is_of(*value, *operand)) return;
    // The first of its form, or torch_xla has computed it already.
    torch::jit::drop(*stack, call.results());
    stack->insert(stack->end(), arguments.begin(), arguments.end());
    call_overridden(op, keys, stack);
    value = value_of(call.result().toTensor());
    if (value == nullptr || operand == nullptr) return;
    nodes_.add(form, lazy_ir::clone(*value->node, {*operand}));
  }

 private:
  // Whether the value is of an operand of this one's element type: what a tensor holds can be of
  // another dtype than it says.
  static bool is_of(const Value& value, const torch::lazy::Output& operand) {
    return lazy_ir::element_type(value.node->operand(0)) == lazy_ir::element_type(operand);
  }

  const PresentKernel earlier_;
  Nodes& nodes_;  // nodes are not to be deleted at the exit
};

}  // namespace

void begin_maxima_at_infinity(torch::Library& xla, const EarlierKernel& earlier) {
  constexpr std::pair<const char*, const char*> kOperators[] = {
      {"amax", ""}, {"amin", ""}, {"max", ""}, {"max", "dim"}, {"min", ""}, {"min", "dim"}};
  for (const auto& [name, overload] : kOperators) {
    override_kernel<Extreme>(xla, c10::DispatchKey::XLA, (std::string("aten::") + name).c_str(),
                             overload, earlier(name, overload));
  }
}

}  // namespace castoff
