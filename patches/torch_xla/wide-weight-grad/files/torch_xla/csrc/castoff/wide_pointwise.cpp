// mul and addcmul: the weights of layer, group and RMS norms, which torch_xla takes apart into
// them.
#include <torch_xla/csrc/castoff/wide_weight_grad.h>

#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/mul_ops.h>

namespace torch_xla::wide_weight_grad {
namespace {

using at::Scalar;

// Of [addend +] value * lhs * rhs, the two of which it saves. What was broadcast the engine sums
// up, in the dtype it is in.
class WideMul final : public Formula {
 public:
  std::string name() const override {
    return has_addend ? "WideAddcmulBackward0" : "WideMulBackward0";
  }

  bool has_addend = false;
  Scalar value = 1;

  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    const size_t first = has_addend ? 1 : 0;
    if (has_addend && wants.any[0]) results[0] = wants.wide[0] ? to_float(grad) : grad;
    for (const size_t which : {first, first + 1}) {
      if (!wants.any[which]) continue;
      const Tensor& other = saved[which == first ? 1 : 0];
      results[which] =
          wants.wide[which] ? scaled(to_float(grad).mul(other)) : grad.mul(scaled(other));
    }
  }
  std::vector<c10::IValue> constants() const override { return {has_addend, value}; }

 private:
  Tensor scaled(const Tensor& t) const { return has_addend ? t.mul(value) : t; }
};

Tensor mul(DispatchKeySet keys, const Tensor& self, const Tensor& other) {
  using Op = at::_ops::mul_Tensor;
  if (!in_use()) return Overridden<Op>::call(keys, self, other);
  const Weights weights(self, other);
  if (!weights.any() || has_forward_gradient(self, other)) {
    return Overridden<Op>::call(keys, self, other);
  }
  const auto node = make_node(std::make_shared<const WideMul>(), self, other);
  node->save_factors(0, self, other);
  const Tensor result =
      record(node, [&] { return Op::redispatch(keys & c10::after_autograd_keyset, self, other); });
  hand_on(result, weights);
  return result;
}

Tensor addcmul(DispatchKeySet keys, const Tensor& self, const Tensor& tensor1,
               const Tensor& tensor2, const Scalar& value) {
  using Op = at::_ops::addcmul;
  if (!in_use() || (!is_wide(self) && !is_wide(tensor1) && !is_wide(tensor2)) ||
      has_forward_gradient(self, tensor1, tensor2)) {
    return Overridden<Op>::call(keys, self, tensor1, tensor2, value);
  }
  auto formula = std::make_shared<WideMul>();
  formula->has_addend = true;
  formula->value = value;
  const auto node = make_node(std::move(formula), self, tensor1, tensor2);
  node->save_factors(1, tensor1, tensor2);
  return record(node, [&] {
    return Op::redispatch(keys & c10::after_autograd_keyset, self, tensor1, tensor2, value);
  });
}

}  // namespace

void register_pointwise(torch::Library& library) {
  override_kernel<at::_ops::mul_Tensor>(library, TORCH_FN(mul));
  override_kernel<at::_ops::addcmul>(library, TORCH_FN(addcmul));
}

}  // namespace torch_xla::wide_weight_grad
