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

// Of [addend,] lhs, rhs: two matrices, or two batches of matrices.
class WideMatmulBackward0 final : public WideNode {
 public:
  std::string name() const override { return "WideMatmulBackward0"; }

  void save_factors(const Tensor& lhs, const Tensor& rhs) {
    if (should_compute_output(first())) rhs_ = save(rhs);
    if (should_compute_output(first() + 1)) lhs_ = save(lhs);
  }

  bool batched = false;
  bool has_addend = false;
  Scalar beta = 1;
  Scalar alpha = 1;

 protected:
  void differentiate(const Tensor& grad, variable_list& results) override {
    const Tensor lhs = unpack(lhs_), rhs = unpack(rhs_);
    if (!grad.defined()) return;
    if (has_addend && wants(0)) results[0] = times(grad, beta);
    if (wants(first())) results[first()] = times(of_lhs(grad, rhs), alpha);
    if (wants(first() + 1)) results[first() + 1] = times(of_rhs(grad, lhs), alpha);
  }
  void release() override {
    lhs_.reset_data();
    rhs_.reset_data();
  }

 private:
  size_t first() const { return has_addend ? 1 : 0; }

  Tensor of_lhs(const Tensor& grad, const Tensor& rhs) const {
    if (wants_wide(first())) {
      return batched ? contract(grad, rhs, {2}, {2}, {0}, {0}) : contract(grad, rhs, {1}, {1});
    }
    return batched ? grad.bmm(rhs.transpose(1, 2)) : grad.mm(rhs.t());
  }
  Tensor of_rhs(const Tensor& grad, const Tensor& lhs) const {
    if (wants_wide(first() + 1)) {
      return batched ? contract(lhs, grad, {1}, {1}, {0}, {0}) : contract(lhs, grad, {0}, {0});
    }
    return batched ? lhs.transpose(1, 2).bmm(grad) : lhs.t().mm(grad);
  }

  SavedVariable lhs_, rhs_;
};

// Of a matrix and a vector.
class WideMvBackward0 final : public WideNode {
 public:
  std::string name() const override { return "WideMvBackward0"; }

  void save_factors(const Tensor& matrix, const Tensor& vector) {
    if (should_compute_output(0)) vector_ = save(vector);
    if (should_compute_output(1)) matrix_ = save(matrix);
  }

 protected:
  void differentiate(const Tensor& grad, variable_list& results) override {
    const Tensor matrix = unpack(matrix_), vector = unpack(vector_);
    if (!grad.defined()) return;
    if (wants(0)) {
      results[0] = wants_wide(0) ? contract(grad, vector, {}, {}) : grad.outer(vector);
    }
    if (wants(1)) {
      results[1] = wants_wide(1) ? contract(matrix, grad, {0}, {0}) : matrix.t().mv(grad);
    }
  }
  void release() override {
    matrix_.reset_data();
    vector_.reset_data();
  }

 private:
  SavedVariable matrix_, vector_;
};

template <class Op>
Tensor product(DispatchKeySet keys, const Tensor& lhs, const Tensor& rhs) {
  if (!in_use() || (!is_wide(lhs) && !is_wide(rhs)) || has_forward_gradient(lhs, rhs)) {
    return Previous<Op>::call(keys, lhs, rhs);
  }
  const auto forward = [&] { return Op::redispatch(keys & c10::after_autograd_keyset, lhs, rhs); };
  constexpr bool is_mv = std::is_same_v<Op, at::_ops::mv>;
  const auto node = make_node<std::conditional_t<is_mv, WideMvBackward0, WideMatmulBackward0>>();
  node->set_next_edges(torch::autograd::collect_next_edges(lhs, rhs));
  if constexpr (!is_mv) node->batched = std::is_same_v<Op, at::_ops::bmm>;
  node->save_factors(lhs, rhs);
  return record(node, forward);
}

template <class Op>
Tensor add_product(DispatchKeySet keys, const Tensor& self, const Tensor& lhs, const Tensor& rhs,
                   const Scalar& beta, const Scalar& alpha) {
  if (!in_use() || (!is_wide(lhs) && !is_wide(rhs)) || has_forward_gradient(self, lhs, rhs)) {
    return Previous<Op>::call(keys, self, lhs, rhs, beta, alpha);
  }
  const auto node = make_node<WideMatmulBackward0>();
  node->set_next_edges(torch::autograd::collect_next_edges(self, lhs, rhs));
  node->batched = std::is_same_v<Op, at::_ops::baddbmm>;
  node->has_addend = true;
  node->beta = beta;
  node->alpha = alpha;
  node->save_factors(lhs, rhs);
  return record(node, [&] {
    return Op::redispatch(keys & c10::after_autograd_keyset, self, lhs, rhs, beta, alpha);
  });
}

}  // namespace

void register_matmuls(torch::Library& library) {
  stand_before<at::_ops::mm>(library, TORCH_FN(product<at::_ops::mm>));
  stand_before<at::_ops::bmm>(library, TORCH_FN(product<at::_ops::bmm>));
  stand_before<at::_ops::mv>(library, TORCH_FN(product<at::_ops::mv>));
  stand_before<at::_ops::addmm>(library, TORCH_FN(add_product<at::_ops::addmm>));
  stand_before<at::_ops::baddbmm>(library, TORCH_FN(add_product<at::_ops::baddbmm>));
}

}  // namespace torch_xla::wide_weight_grad
