// Products of tensors whose leading dimensions were flattened for them, computed unflattened.
//
// torch makes a linear of a tensor with more than two dimensions a product of matrices between two
// views, forward and backward. XLA gives each array one layout, and a TPU's compiler transposes the
// array where the two sides of such a view ask for different ones. Here mm and addmm of such a view
// are one castoff::dot_general of the tensor itself, followed by the view: the same sums.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add_ops.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/dot_general.h"
#include "torch_xla/csrc/castoff/fused_projections.h"
#include "torch_xla/csrc/castoff/gradients_of_parts.h"
#include "torch_xla/csrc/castoff/kernels.h"
#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/permuted.h"
#include "torch_xla/csrc/castoff/products.h"
#include "torch_xla/csrc/castoff/products_of_heads.h"
#include "torch_xla/csrc/castoff/scores_with_bias.h"
#include "torch_xla/csrc/castoff/target.h"

namespace castoff {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using lazy_ir::OpKind;
using lazy_ir::Value;
using torch::jit::Stack;

std::vector<int64_t> leading(int64_t rank) {
  std::vector<int64_t> dims(rank - 1);
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

// Whether all elements are one number, as those of the gradient that a sum hands on. XLA makes the
// product of such a matrix with a weight a sum of the weight, which fuses; in more dimensions it
// multiplies. The gradient of the weight is a product in either form.
bool is_uniform(Value value) {
  static const OpKind constant = OpKind::Get("prim::Constant");
  static const std::array<OpKind, 3> same = {OpKind::Get("aten::expand"), OpKind::Get("aten::view"),
                                             OpKind::Get("xla::cast")};
  while (std::find(same.begin(), same.end(), value.node->op()) != same.end()) {
    value = lazy_ir::operand(*value.node, 0);
  }
  return value.node->op() == constant;
}

struct Source {
  Value value;
  std::vector<int64_t> sizes;

  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
};

// What `matrix`, of these sizes, is a view of, if the view flattens several dimensions, all but the
// last one. Of rows that fill no tiles each batch would be padded.
std::optional<Source> unflattened(const Value& matrix, int64_t rows, int64_t columns) {
  static const OpKind view = OpKind::Get("aten::view");
  if (matrix.node->op() != view || matrix.node->operands().size() != 1) return std::nullopt;
  auto sizes = viewed_sizes(matrix);
  if (!sizes || sizes->empty() || sizes->back() != columns) return std::nullopt;
  const auto several = [](int64_t size) { return size != 1; };
  if (std::count_if(sizes->begin(), sizes->end() - 1, several) < 2) return std::nullopt;
  if (sizes->end()[-2] % kTileRows != 0) return std::nullopt;
  const int64_t of_rows =
      std::accumulate(sizes->begin(), sizes->end() - 1, int64_t{1}, std::multiplies<>());
  if (of_rows != rows) return std::nullopt;
  return Source{lazy_ir::operand(*matrix.node, 0), *std::move(sizes)};
}

// mm, or addmm: the first of its two factors is argument `first`.
class Unflattened final : public OverrideKernel {
 public:
  Unflattened(const OperatorHandle& op, DispatchKey key, const size_t& first)
      : OverrideKernel(op, key), first_(first), arguments_(op.schema().arguments().size()) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const Tensor result =
        is_for_tpu() ? product(stack->data() + stack->size() - arguments_) : Tensor();
    if (!result.defined()) return call_overridden(op, keys, stack);
    torch::jit::drop(*stack, arguments_);
    stack->emplace_back(result);
  }

 private:
  Tensor product(const IValue* arguments) const {
    const Tensor &lhs = arguments[first_].toTensor(), &rhs = arguments[first_ + 1].toTensor();
    const bool are_factors = lhs.dim() == 2 && rhs.dim() == 2 && lhs.size(1) == rhs.size(0) &&
                             lhs.numel() > 0 && rhs.numel() > 0 &&
                             lhs.scalar_type() == rhs.scalar_type() && lhs.is_floating_point();
    if (!are_factors || (first_ > 0 && !is_plain_sum(arguments, rhs))) return {};
    const Value value = lazy_ir::unsharded_value(lhs);
    if (!value) return {};
    static const OpKind view = OpKind::Get("aten::view"), permute = OpKind::Get("aten::permute");
    const bool is_permuted = value.node->op() == permute;
    if (value.node->op() != view && (first_ > 0 || !is_permuted)) return {};
    if (!lazy_ir::ready(lhs) || !hold_one_dtype(value, lhs, rhs)) return {};
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (is_permuted) {
      // A square matrix may be permuted to itself.
      if (lhs.size(0) == lhs.size(1) && !is_transposed(value, lhs)) return {};
      return over_rows(lazy_ir::operand(*value.node, 0), lhs, rhs);
    }
    if (is_uniform(value)) return {};
    const auto rows = unflattened(value, lhs.size(0), lhs.size(1));
    return rows ? of_rows(*rows, value, arguments) : Tensor();
  }

  // held_dtype() makes a tensor; a node tells.
  static bool hold_one_dtype(const Value& value, const Tensor& lhs, const Tensor& rhs) {
    const Value other = lazy_ir::unsharded_value(rhs);
    return other ? lazy_ir::element_type(value) == lazy_ir::element_type(other)
                 : held_dtype(lhs) == held_dtype(rhs);
  }

  // A bias for each column, added as it is.
  static bool is_plain_sum(const IValue* arguments, const Tensor& rhs) {
    const Tensor& bias = arguments[0].toTensor();
    return bias.dim() == 1 && bias.size(0) == rhs.size(1) &&
           bias.scalar_type() == rhs.scalar_type() && lazy_ir::data_of(bias) != nullptr &&
           held_dtype(bias) == held_dtype(rhs) && arguments[3].toScalar().equal(1) &&
           arguments[4].toScalar().equal(1);
  }

  // rows @ rhs, plus a bias: forward, and the gradient of the input. `flat`: lhs.
  Tensor of_rows(const Source& rows, const Value& flat, const IValue* arguments) const {
    const Tensor &lhs = arguments[first_].toTensor(), &rhs = arguments[first_ + 1].toTensor();
    const int64_t last = rows.rank() - 1;
    const Value dot = product_of(rows.value, lazy_ir::unsharded_value(rhs), {last}, {0}, rhs);
    Tensor result = dot ? lazy_ir::tensor_of(dot, lhs)
                        : dot_general(lazy_ir::tensor_of(rows.value, lhs), rhs, {last}, {0}, {},
                                      rhs.scalar_type());
    if (first_ > 0) {
      result = at::_ops::add_Tensor::redispatch(kXla, result, arguments[0].toTensor(), 1);
    } else if (const Value made = lazy_ir::unsharded_value(result)) {
      remember_flattened(made, flat);
    }
    return result.view({lhs.size(0), rhs.size(1)});
  }

  // lhs.T @ rhs, where both flatten the same dimensions: the gradient of a weight. In float32 it
  // stays flat: fewer cycles otherwise, but more temporary memory than with torch's form.
  static Tensor over_rows(const Value& transposed, const Tensor& lhs, const Tensor& rhs) {
    if (rhs.scalar_type() == at::ScalarType::Float) return {};
    const lazy_ir::Data* data = lazy_ir::data_of(rhs);
    if (data == nullptr || !data->ir_value) return {};
    const auto left = unflattened(transposed, lhs.size(1), lhs.size(0));
    if (!left) return {};
    const auto right = unflattened(data->ir_value, rhs.size(0), rhs.size(1));
    if (!right || left->rank() != right->rank() ||
        !std::equal(left->sizes.begin(), left->sizes.end() - 1, right->sizes.begin())) {
      return {};
    }
    const auto rows = leading(left->rank());
    if (const Value dot = product_of(left->value, right->value, rows, rows, rhs)) {
      return lazy_ir::tensor_of(dot, rhs);
    }
    return dot_general(lazy_ir::tensor_of(left->value, lhs), lazy_ir::tensor_of(right->value, rhs),
                       rows, rows, {}, rhs.scalar_type());
  }

  const size_t first_;
  const size_t arguments_;
};

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", DispatchKey::XLA);
  override_kernel<Unflattened>(xla, DispatchKey::XLA, "aten::mm", "", size_t{0});
  override_kernel<Unflattened>(xla, DispatchKey::XLA, "aten::addmm", "", size_t{1});
  install_scores_with_bias(xla);
  install_fused_projections(xla);
  install_gradients_of_parts(xla);
  install_products_of_heads(xla);
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_unflattened_matmul_install)

extern "C" __attribute__((visibility("default"))) void castoff_unflattened_matmul_precision(
    int set) {
  castoff::precision_of_products = set;
}
