// What is written to a view by expand(). Functionalization adds the differences of all elements to
// the base: `base + sum(written - base)`, which rounds, is NaN where the base is infinite, adds a
// change as often as it was written, and is refused for booleans.
#include "expanded_writes.h"

#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/bitwise_and_ops.h>
#include <ATen/ops/bitwise_or_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/expand_copy_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/permute_copy_ops.h>
#include <ATen/ops/view_copy_ops.h>

namespace torch::castoff {
namespace {

namespace ops = at::_ops;
using at::Tensor;

// NaN in place of NaN is no change.
Tensor changed(const Tensor& before, const Tensor& written) {
  const Tensor differs = ops::ne_Tensor::call(before, written);
  if (!before.is_floating_point() && !before.is_complex()) return differs;
  const Tensor number = ops::bitwise_or_Tensor::call(ops::eq_Tensor::call(before, before),
                                                     ops::eq_Tensor::call(written, written));
  return ops::bitwise_and_Tensor::call(differs, number);
}

// Of a view of `base`, with what is one element of it side by side in a last dimension.
Tensor side_by_side(const Tensor& base, const Tensor& of_view) {
  c10::SmallVector<int64_t, 5> order, stretched;
  const int64_t added = of_view.dim() - base.dim();
  for (int64_t d = 0; d < of_view.dim(); ++d) {
    const bool is_stretched = d < added || base.sym_size(d - added) != of_view.sym_size(d);
    (is_stretched ? stretched : order).push_back(d);
  }
  order.append(stretched.begin(), stretched.end());
  c10::SymDimVector shape(base.sym_sizes());
  shape.push_back(of_view.sym_numel() / base.sym_numel());
  return ops::view_copy::call(ops::permute_copy::call(of_view, order), shape);
}

}  // namespace

Tensor expanded_base(const Tensor& base, const Tensor& written) {
  if (written.sym_numel() == base.sym_numel()) {
    return ops::view_copy::call(written, base.sym_sizes());
  }
  if (written.sym_numel() == 0) return ops::view_copy::call(base, base.sym_sizes());
  const Tensor before = ops::expand_copy::call(base, written.sym_sizes(), /*implicit=*/false);
  const Tensor is_changed = ops::_to_copy::call(side_by_side(base, changed(before, written)),
                                                at::kInt, {}, {}, {}, false, {});
  const Tensor first = ops::argmax::call(is_changed, -1, /*keepdim=*/true);
  const Tensor value = ops::gather::call(side_by_side(base, written), -1, first, false);
  return ops::view_copy::call(value, base.sym_sizes());
}

}  // namespace torch::castoff
