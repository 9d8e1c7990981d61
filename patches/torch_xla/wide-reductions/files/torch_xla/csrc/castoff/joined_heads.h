// Tensors whose heads were joined for a linear: [batch, tokens, heads * width] of [batch, heads,
// tokens, width], as the gradients of attention's query, key and value are.

#pragma once

#include <ATen/core/Tensor.h>

// Of a topic that is not on every pin.
#if __has_include("torch_xla/csrc/castoff/lazy_ir.h")

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/permuted.h"

namespace castoff {

// The tensor with heads of which pending IR makes one of three dimensions; undefined if there is
// none.
inline at::Tensor before_heads_were_joined(const at::Tensor& joined) {
  static const auto view = lazy_ir::OpKind::Get("aten::view");
  static const auto permute = lazy_ir::OpKind::Get("aten::permute");
  const lazy_ir::Value value =
      lazy_ir::ready(joined) ? lazy_ir::unsharded_value(joined) : lazy_ir::Value();
  if (!value || value.node->op() != view) return {};
  const lazy_ir::Value permuted = lazy_ir::operand(*value.node, 0);
  if (permuted.node->op() != permute) return {};
  const at::Tensor found = lazy_ir::tensor_of(lazy_ir::operand(*permuted.node, 0), joined);
  const bool has_sizes =
      found.dim() == 4 && found.size(0) == joined.size(0) && found.size(2) == joined.size(1);
  return has_sizes && is_permuted(*permuted.node, found, {0, 2, 1, 3}) ? found : at::Tensor();
}

}  // namespace castoff

#else

namespace castoff {

inline at::Tensor before_heads_were_joined(const at::Tensor&) {
  return {};
}

}  // namespace castoff

#endif
