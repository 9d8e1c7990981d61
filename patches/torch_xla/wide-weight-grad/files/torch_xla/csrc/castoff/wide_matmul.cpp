// mm, bmm, addmm, baddbmm and mv, which linear, matmul and @ come down to on XLA.
#include <torch_xla/csrc/castoff/wide_weight_grad.h>

#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mv_ops.h>

namespace torch_xla::wide_weight_grad {
namespace {

using at::Scalar;

Tensor times(const Tensor& t, const Scalar& factor) {
  return factor.equal(1) ? t : t.mul(factor);
}

// Of [addend,] lhs, rhs: two matrices, or two batches of matrices. Saves lhs and rhs.
class WideMatmul final : public Formula {
 public:
  std::string name() const override { return "WideMatmulBackward0"; }

  bool batched = false;
  bool has_addend = false;
  Scalar beta = 1;
  Scalar alpha = 1;

  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    const size_t first = has_addend ? 1 : 0;
    if (has_addend && wants.any[0]) {
      results[0] = times(wants.wide[0] ? to_float(grad) : grad, beta);
    }
    if (wants.any[first]) {
      results[first] = times(of_lhs(grad, saved[1], wants.wide[first]), alpha);
    }
    if (wants.any[first + 1]) {
      results[first + 1] = times(of_rhs(grad, saved[0], wants.wide[first + 1]), alpha);
    }
  }
  std::vector<c10::IValue> constants() const override { return {batched, has_addend, beta, alpha}; }

 private:
  Tensor of_lhs(const Tensor& grad, const Tensor& rhs, bool is_wide) const {
    if (is_wide) {
      return batched ? contract(grad, rhs, {2}, {2}, {0}, {0}) : contract(grad, rhs, {1}, {1});
    }
    const Tensor narrow = grad.to(rhs.scalar_type());
    return batched ? narrow.bmm(rhs.transpose(1, 2)) : narrow.mm(rhs.t());
  }
  Tensor of_rhs(const Tensor& grad, const Tensor& lhs, bool is_wide) const {
    if (is_wide) {
      return batched ? contract(lhs, grad, {1}, {1}, {0}, {0}) : contract(lhs, grad, {0}, {0});
    }
    const Tensor narrow = grad.to(lhs.scalar_type());
    return batched ? lhs.transpose(1, 2).bmm(narrow) : lhs.t().mm(narrow);
  }
};

// Of a matrix and a vector, which it saves.
class WideMv final : public Formula {
 public:
  std::string name() const override { return "WideMvBackward0"; }

  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    const Tensor &matrix = saved[0], &vector = saved[1];
    if (wants.any[0]) {
      results[0] = wants.wide[0] ? contract(grad, vector, {}, {}) : grad.outer(vector);
    }
    if (wants.any[1]) {
      results[1] = wants.wide[1] ? contract(matrix, grad, {0}, {0}) : matrix.t().mv(grad);
    }
  }
  std::vector<c10::IValue> constants() const override { return {}; }
};

template <class Op>
std::shared_ptr<const Formula> formula_of() {
  if constexpr (std::is_same_v<Op, at::_ops::mv>) {
    return std::make_shared<const WideMv>();
  } else {
    auto formula = std::make_shared<WideMatmul>();
    formula->batched = std::is_same_v<Op, at::_ops::bmm>;
    return formula;
  }
}

template <class Op>
Tensor product(DispatchKeySet keys, const Tensor& lhs, const Tensor& rhs) {
  if (!in_use()) return Overridden<Op>::call(keys, lhs, rhs);
  const Weights weights(lhs, rhs);
  if (!weights.any() || has_forward_gradient(lhs, rhs)) {
    return Overridden<Op>::call(keys, lhs, rhs);
  }
  const auto node = make_node(formula_of<Op>(), lhs, rhs);
  node->save_factors(0, lhs, rhs);
  const Tensor result =
      record(node, [&] { return Op::redispatch(keys & c10::after_autograd_keyset, lhs, rhs); });
  if (weights.wide.size() == 2) declare_wide(result);  // else the other one is an input
  return result;
}

template <class Op>
Tensor add_product(DispatchKeySet keys, const Tensor& self, const Tensor& lhs, const Tensor& rhs,
                   const Scalar& beta, const Scalar& alpha) {
  if (!in_use() || (!is_wide(self) && !is_wide(lhs) && !is_wide(rhs)) ||
      has_forward_gradient(self, lhs, rhs)) {
    return Overridden<Op>::call(keys, self, lhs, rhs, beta, alpha);
  }
  auto formula = std::make_shared<WideMatmul>();
  formula->batched = std::is_same_v<Op, at::_ops::baddbmm>;
  formula->has_addend = true;
  formula->beta = beta;
  formula->alpha = alpha;
  const auto node = make_node(std::move(formula), self, lhs, rhs);
  node->save_factors(1, lhs, rhs);
  return record(node, [&] {
    return Op::redispatch(keys & c10::after_autograd_keyset, self, lhs, rhs, beta, alpha);
  });
}

}  // namespace

void register_matmuls(torch::Library& library) {
  override_kernel<at::_ops::mm>(library, TORCH_FN(product<at::_ops::mm>));
  override_kernel<at::_ops::bmm>(library, TORCH_FN(product<at::_ops::bmm>));
  override_kernel<at::_ops::mv>(library, TORCH_FN(product<at::_ops::mv>));
  override_kernel<at::_ops::addmm>(library, TORCH_FN(add_product<at::_ops::addmm>));
  override_kernel<at::_ops::baddbmm>(library, TORCH_FN(add_product<at::_ops::baddbmm>));
}

}  // namespace torch_xla::wide_weight_grad
