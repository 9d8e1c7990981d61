// mul and addcmul: the weights of layer, group and RMS norms, which torch_xla takes apart into
// them.
#include <torch_xla/csrc/castoff/wide_weight_grad.h>

#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/mul_ops.h>

namespace torch_xla::wide_weight_grad {
namespace {

using at::Scalar;

// Of [addend +] value * lhs * rhs. What was broadcast the engine sums up, in the dtype it is in.
class WideMulBackward0 final : public WideNode {
 public:
  std::string name() const override {
    return has_addend ? "WideAddcmulBackward0" : "WideMulBackward0";
  }

  void save_factors(const Tensor& lhs, const Tensor& rhs) {
    if (should_compute_output(first())) rhs_ = save(rhs);
    if (should_compute_output(first() + 1)) lhs_ = save(lhs);
  }

  bool has_addend = false;
  Scalar value = 1;

 protected:
  void differentiate(const Tensor& grad, variable_list& results) override {
    const Tensor lhs = unpack(lhs_), rhs = unpack(rhs_);
    if (!grad.defined()) return;
    if (has_addend && wants(0)) results[0] = grad;
    if (wants(first())) results[first()] = of_factor(first(), grad, rhs);
    if (wants(first() + 1)) results[first() + 1] = of_factor(first() + 1, grad, lhs);
  }
  void release() override {
    lhs_.reset_data();
    rhs_.reset_data();
  }

 private:
  size_t first() const { return has_addend ? 1 : 0; }

  Tensor of_factor(size_t which, const Tensor& grad, const Tensor& other) const {
    if (wants_wide(which)) return scaled(to_float(grad).mul(other));
    return grad.mul(scaled(other));
  }
  Tensor scaled(const Tensor& t) const { return has_addend ? t.mul(value) : t; }

  SavedVariable lhs_, rhs_;
};

Tensor mul(DispatchKeySet keys, const Tensor& self, const Tensor& other) {
  using Op = at::_ops::mul_Tensor;
  if (!in_use() || (!is_wide(self) && !is_wide(other)) || has_forward_gradient(self, other)) {
    return Previous<Op>::call(keys, self, other);
  }
  const auto node = make_node<WideMulBackward0>();
  node->set_next_edges(torch::autograd::collect_next_edges(self, other));
  node->save_factors(self, other);
  return record(node,
                [&] { return Op::redispatch(keys & c10::after_autograd_keyset, self, other); });
}

Tensor addcmul(DispatchKeySet keys, const Tensor& self, const Tensor& tensor1,
               const Tensor& tensor2, const Scalar& value) {
  using Op = at::_ops::addcmul;
  if (!in_use() || (!is_wide(tensor1) && !is_wide(tensor2)) ||
      has_forward_gradient(self, tensor1, tensor2)) {
    return Previous<Op>::call(keys, self, tensor1, tensor2, value);
  }
  const auto node = make_node<WideMulBackward0>();
  node->has_addend = true;
  node->value = value;
  node->set_next_edges(torch::autograd::collect_next_edges(self, tensor1, tensor2));
  node->save_factors(tensor1, tensor2);
  return record(node, [&] {
    return Op::redispatch(keys & c10::after_autograd_keyset, self, tensor1, tensor2, value);
  });
}

}  // namespace

void register_pointwise(torch::Library& library) {
  stand_before<at::_ops::mul_Tensor>(library, TORCH_FN(mul));
  stand_before<at::_ops::addcmul>(library, TORCH_FN(addcmul));
}

}  // namespace torch_xla::wide_weight_grad
