// The scores of attention that is written by hand, `(query @ key.mT + bias).softmax(-1)`, where the
// bias has the heads and not the batch: relative positions, as those of T5 and Swin.
//
// torch flattens batch and heads for the product. A TPU's compiler then writes the bias to memory
// for each batch, and the softmax is no part of the products. Here the product that a softmax reads
// has the batch's dimensions, and so has the one that its gradient reads: the same sums. Without
// such a bias either form may take more.

#include "torch_xla/csrc/castoff/scores_with_bias.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_ops.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/dot_general.h"
#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/permuted.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/target.h"

namespace castoff {
namespace {

using lazy_ir::OpKind;
using lazy_ir::Value;
using Sizes = std::vector<int64_t>;

bool is(const Value& value, const OpKind& kind) {
  return value.node->op() == kind;
}

const OpKind& cast_kind() {
  static const OpKind kind = OpKind::Get("xla::cast");
  return kind;
}

const OpKind& add_kind() {
  static const OpKind kind = OpKind::Get("aten::add");
  return kind;
}

const OpKind& mul_kind() {
  static const OpKind kind = OpKind::Get("aten::mul");
  return kind;
}

const OpKind& view_kind() {
  static const OpKind kind = OpKind::Get("aten::view");
  return kind;
}

// ---- the product

// A factor of a product of matrices before its batch was flattened.
struct Factor {
  Tensor t;
  bool is_transposed;  // whether the product gets its matrices transposed
};

std::optional<Factor> unflattened(Value factor, const Sizes& batch, const Tensor& like) {
  static const OpKind permute = OpKind::Get("aten::permute");
  const bool permuted = is(factor, permute);
  if (permuted) {
    if (!is_transposed(factor, like)) return std::nullopt;
    factor = lazy_ir::operand(*factor.node, 0);
  }
  if (!is(factor, view_kind())) return std::nullopt;
  const Value source = lazy_ir::operand(*factor.node, 0);
  const auto flat = lazy_ir::static_sizes(factor), sizes = lazy_ir::static_sizes(source);
  if (!flat || !sizes || flat->size() != 3 || sizes->size() != batch.size() + 2) {
    return std::nullopt;
  }
  if (!std::equal(batch.begin(), batch.end(), sizes->begin()) ||
      !std::equal(flat->end() - 2, flat->end(), sizes->end() - 2)) {
    return std::nullopt;
  }
  return Factor{lazy_ir::tensor_of(source, like), permuted};
}

// A tensor of the dtype of a value, which is bfloat16 or float32.
Tensor like(const Value& value, const at::Device& device) {
  const bool is_narrow = lazy_ir::element_type(value) == lazy_ir::ElementType::kBF16;
  return at::_ops::empty_memory_format::redispatch(
      kXla, c10::fromIntArrayRefSlow({1}), is_narrow ? at::kBFloat16 : at::kFloat, at::kStrided,
      device, std::nullopt, std::nullopt);
}

// A view of a product of two batches of matrices, computed with the batch's dimensions; an empty
// value if it is none.
Value product(const Value& viewed, const at::Device& device) {
  static const OpKind matmul = OpKind::Get("aten::matmul");
  const Value flat = lazy_ir::operand(*viewed.node, 0);
  const auto sizes = lazy_ir::static_sizes(viewed);
  const bool is_narrow = lazy_ir::element_type(viewed) == lazy_ir::ElementType::kBF16;
  if (!is(flat, matmul) || !is_narrow || !sizes || sizes->size() < 4) return {};
  const Tensor narrow = like(viewed, device);
  Sizes batch(sizes->begin(), sizes->end() - 2);
  const auto left = unflattened(lazy_ir::operand(*flat.node, 0), batch, narrow);
  const auto right = unflattened(lazy_ir::operand(*flat.node, 1), batch, narrow);
  if (!left || !right) return {};
  const auto rank = static_cast<int64_t>(sizes->size());
  std::iota(batch.begin(), batch.end(), 0);
  return lazy_ir::unsharded_value(dot_general(left->t, right->t, {rank - 1 - left->is_transposed},
                                              {rank - 2 + right->is_transposed}, batch,
                                              at::kBFloat16));
}

// ---- what is computed of it

// Whether what is added to scores of these sizes has each head, and not each batch.
bool is_of_heads(const Value& bias, const Sizes& scores) {
  const auto sizes = lazy_ir::static_sizes(bias);
  if (!sizes || sizes->size() < 3 || sizes->size() > scores.size()) return false;
  const int64_t heads = sizes->end()[-3];
  const auto whole =
      std::accumulate(sizes->begin(), sizes->end() - 3, int64_t{1}, std::multiplies<>());
  return heads > 1 && heads == scores.end()[-3] && whole == 1 && scores.front() > 1;
}

// A node of one more value in the place of an operand.
Value with_operand(const Value& value, size_t index, const Value& operand) {
  std::vector<Value> operands;
  for (size_t i = 0; i < value.node->operands().size(); ++i) {
    operands.push_back(i == index ? operand : lazy_ir::operand(*value.node, i));
  }
  return Value(lazy_ir::clone(*value.node, operands), value.index);
}

// How far a formula of scores is read: a scale, a bias, a mask, and the views and casts in between.
constexpr int kMostSteps = 8;

// Which operands of a node may be scores of as many elements: none, the first, or the first two.
size_t operands_of_scores(const Value& value) {
  if (is(value, view_kind()) || is(value, cast_kind()) || is(value, mul_kind())) return 1;
  return is(value, add_kind()) ? 2 : 0;
}

// What a softmax reads, of a product that has the batch's dimensions. `has_bias`: whether a bias of
// the heads is added on the way. Empty if it reads no such product.
Value unflattened_scores(const Value& value, const at::Device& device, bool* has_bias,
                         int steps = kMostSteps) {
  if (is(value, view_kind())) {
    if (Value found = product(value, device)) return found;
  }
  const size_t count = steps == 0 ? 0 : operands_of_scores(value);
  const auto sizes = lazy_ir::static_sizes(value);
  for (size_t i = 0; i < count; ++i) {
    const Value operand = lazy_ir::operand(*value.node, i);
    if (!is(value, view_kind()) && lazy_ir::static_sizes(operand) != sizes) continue;
    const Value scores = unflattened_scores(operand, device, has_bias, steps - 1);
    if (!scores) continue;
    if (is(value, view_kind())) {
      return lazy_ir::view_again(*value.node, scores, like(value, device));
    }
    if (count == 2) *has_bias |= is_of_heads(lazy_ir::operand(*value.node, 1 - i), *sizes);
    return with_operand(value, i, scores);
  }
  return {};
}

// Whether such a bias may be found, asked before anything is made.
bool may_have_bias(const Value& value, int steps = kMostSteps) {
  const size_t count = steps == 0 ? 0 : operands_of_scores(value);
  const auto sizes = count == 2 ? lazy_ir::static_sizes(value) : std::nullopt;
  for (size_t i = 0; i < count; ++i) {
    const Value operand = lazy_ir::operand(*value.node, i);
    if ((sizes && is_of_heads(operand, *sizes)) || may_have_bias(operand, steps - 1)) return true;
  }
  return false;
}

// Whether scores, of a formula that unflattened_scores() reads, are of a product with more
// dimensions than bmm has.
bool are_unflattened(const Value& value, int steps = kMostSteps) {
  static const OpKind dot = OpKind::Get("xla::dot_general");
  if (is(value, dot)) return true;
  const size_t count = steps == 0 ? 0 : operands_of_scores(value);
  for (size_t i = 0; i < count; ++i) {
    if (are_unflattened(lazy_ir::operand(*value.node, i), steps - 1)) return true;
  }
  return false;
}

// Whether a softmax, or a cast of it, is of such scores.
bool is_of_unflattened(Value output) {
  static const OpKind softmax = OpKind::Get("aten::softmax");
  while (is(output, cast_kind())) output = lazy_ir::operand(*output.node, 0);
  return is(output, softmax) && are_unflattened(lazy_ir::operand(*output.node, 0));
}

// ---- kernels

// The scores that a softmax reads, or the gradient of its result, of an unflattened product.
void read_unflattened(Call& call, bool needs_bias) {
  const Tensor read = call.tensor(0);
  const Value value = lazy_ir::unsharded_value(read);
  if (!value || !lazy_ir::ready(read) || (needs_bias && !may_have_bias(value))) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  bool has_bias = !needs_bias;
  const Value found = unflattened_scores(value, read.device(), &has_bias);
  if (found && has_bias) call[0] = lazy_ir::tensor_of(found, read);
}

bool may_have_heads(Call& call) {
  return is_for_tpu() && call.tensor(0).dim() > 3;
}

// self, dim, half_to_float
void softmax(Call& call) {
  if (C10_UNLIKELY(may_have_heads(call))) read_unflattened(call, /*needs_bias=*/true);
  call.proceed();
}

// grad_output, output, dim, input_dtype
void softmax_backward(Call& call) {
  if (C10_UNLIKELY(may_have_heads(call))) {
    const Value output = lazy_ir::unsharded_value(call.tensor(1));
    if (output && is_of_unflattened(output)) read_unflattened(call, /*needs_bias=*/false);
  }
  call.proceed();
}

}  // namespace

void install_scores_with_bias(torch::Library& xla) {
  remedy(xla, softmax, "_softmax");
  remedy(xla, softmax_backward, "_softmax_backward_data");
}

}  // namespace castoff
