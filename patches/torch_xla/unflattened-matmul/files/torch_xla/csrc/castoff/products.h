// Products without batch dimensions, as nodes.

#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <optional>
#include <vector>

#include "torch_xla/csrc/castoff/lazy_ir.h"

namespace castoff {

// Which precision matrix products have; torch_xla's own node has the default one, 0, alone.
extern std::atomic<int> precision_of_products;

// The dot_general of two values, in their dtype, which is that of `like`; empty if it takes
// dot_general itself. A clone of a node that is made once: dot_general is computed in Python.
lazy_ir::Value product_of(const lazy_ir::Value& lhs, const lazy_ir::Value& rhs,
                          at::IntArrayRef lhs_contracting, at::IntArrayRef rhs_contracting,
                          const at::Tensor& like);

// The static sizes of what a view is of: a text is read for them, once.
std::optional<std::vector<int64_t>> viewed_sizes(const lazy_ir::Value& view);

// Lets a product of rows that a view had flattened say what that view is.
void remember_flattened(const lazy_ir::Value& product, const lazy_ir::Value& view);

// That view; empty if this is no such product, or one of another precision than products have now.
lazy_ir::Value flattened_rows(const lazy_ir::Value& product);

}  // namespace castoff
