// Linears that a batched product of matrices reads, as that of attention which is written by hand.
//
// bmm has one dimension for batch and heads. For it a TPU's compiler moves the tokens of a linear
// that was computed unflattened in passes of their own, as in a Llama's layer with eager attention:
// 1.09 of stock's cycles on v5e. A linear is not told who will read it. So bmm looks for the
// linears that its factors were made of, by views and rotary positions, and computes them flattened
// after all. Whatever else reads them gets the same numbers.

#include "torch_xla/csrc/castoff/products_of_heads.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "torch_xla/csrc/castoff/dot_general.h"
#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/products.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/target.h"

namespace castoff {
namespace {

using lazy_ir::OpKind;
using lazy_ir::Value;

const OpKind& view_kind() {
  static const OpKind kind = OpKind::Get("aten::view");
  return kind;
}

// Whether a value's elements are those of its operands, moved, or combined as rotary positions are.
bool is_read_through(const Value& value) {
  static const std::array<OpKind, 9> kinds = {
      view_kind(),
      OpKind::Get("xla::cast"),
      OpKind::Get("aten::permute"),
      OpKind::Get("aten::expand"),
      OpKind::Get("aten::mul"),
      OpKind::Get("aten::add"),
      OpKind::Get("aten::neg"),
      OpKind::Get("aten::cat"),
      OpKind::Get("xla::select"),  // a range
  };
  const OpKind& kind = value.node->op();
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

// Whether this product, of a linear without a bias, is of the forward pass: the gradients have the
// weight that is transposed there transposed again.
bool is_of_forward(const Value& product) {
  static const OpKind permute = OpKind::Get("aten::permute");
  const Value columns = lazy_ir::operand(*product.node, 1);
  return columns.node->op() == permute && lazy_ir::operand(*columns.node, 0).node->op() != permute;
}

bool is_view_of_product(const Value& value) {
  static const OpKind dot = OpKind::Get("xla::dot_general");
  return value.node->op() == view_kind() && lazy_ir::operand(*value.node, 0).node->op() == dot;
}

// A bfloat16 linear without a bias whose result unflattened-matmul views, flattened; an empty value
// if this is none. `like`: a tensor of its dtype.
Value flattened(const Value& viewed, const Tensor& like) {
  if (lazy_ir::element_type(viewed) != lazy_ir::ElementType::kBF16) return {};
  const Value product = lazy_ir::operand(*viewed.node, 0);
  const Value rows = flattened_rows(product), columns = lazy_ir::operand(*product.node, 1);
  if (!rows) return {};
  if (Value found = product_of(rows, columns, {1}, {0}, like)) return found;
  return lazy_ir::unsharded_value(dot_general(lazy_ir::tensor_of(rows, like),
                                              lazy_ir::tensor_of(columns, like), {1}, {0}, {},
                                              like.scalar_type()));
}

// How many values are looked at: rotary positions of a key that heads share make about 20.
constexpr size_t kMostValues = 32;

// The views of products that a factor was made of.
void find_products(const Tensor& factor, std::vector<Value>* products) {
  std::vector<Value> found = {lazy_ir::unsharded_value(factor)};
  if (!found.front() || !lazy_ir::ready(factor)) return;
  for (size_t i = 0; i < found.size(); ++i) {
    const Value value = found[i];
    if (is_view_of_product(value)) {
      products->push_back(value);
      continue;
    }
    const size_t count = is_read_through(value) ? value.node->operands().size() : 0;
    for (size_t j = 0; j < count && found.size() < kMostValues; ++j) {
      Value operand = lazy_ir::operand(*value.node, j);
      const auto same = [&](const Value& other) { return other.node == operand.node; };
      if (std::none_of(found.begin(), found.end(), same)) found.push_back(std::move(operand));
    }
  }
}

// Gradients are flattened beside a factor of the forward pass that was: next to one of a linear
// with a bias they take fewer cycles as they are.
void flatten_linears(const Tensor& lhs, const Tensor& rhs) {
  std::vector<Value> products;
  find_products(lhs, &products);
  find_products(rhs, &products);
  const auto is_forward = [](const Value& viewed) {
    return is_of_forward(lazy_ir::operand(*viewed.node, 0));
  };
  if (std::none_of(products.begin(), products.end(), is_forward)) return;
  for (const Value& viewed : products) {
    if (const Value flat = flattened(viewed, lhs)) lazy_ir::replace_operand(viewed, 0, flat);
  }
}

void bmm(Call& call) {
  const Tensor lhs = call.tensor(0), rhs = call.tensor(1);
  const bool are_narrow = lhs.scalar_type() == at::kBFloat16 && rhs.scalar_type() == at::kBFloat16;
  if (C10_UNLIKELY(is_for_tpu()) && are_narrow) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    flatten_linears(lhs, rhs);
  }
  call.proceed();
}

}  // namespace

void install_products_of_heads(torch::Library& xla) {
  remedy(xla, bmm, "bmm");
}

}  // namespace castoff
