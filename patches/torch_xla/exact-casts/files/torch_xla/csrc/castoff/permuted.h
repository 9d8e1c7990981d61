// How pending IR permutes dimensions.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/permute_copy_ops.h>

#include <numeric>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/kernels.h"
#include "torch_xla/csrc/castoff/lazy_ir.h"

namespace castoff {

// Whether a node permutes `source` so. A node does not say how it permutes; its hash does.
inline bool is_permuted(const lazy_ir::Node& permuted, const at::Tensor& source,
                        at::IntArrayRef dims) {
  const at::Tensor same = at::_ops::permute_copy::redispatch(kXla, source, dims);
  const lazy_ir::Data* data = lazy_ir::data_of(same);
  return data != nullptr && data->ir_value && data->ir_value.node->hash() == permuted.hash();
}

// Whether a node that permutes exchanges the last two dimensions, and no others.
inline bool is_transposed(const lazy_ir::Value& permuted, const at::Tensor& like) {
  const at::Tensor source = lazy_ir::tensor_of(lazy_ir::operand(*permuted.node, 0), like);
  if (source.dim() < 2) return false;
  std::vector<int64_t> dims(source.dim());
  std::iota(dims.begin(), dims.end(), 0);
  std::swap(dims.end()[-1], dims.end()[-2]);
  return is_permuted(*permuted.node, source, dims);
}

}  // namespace castoff
