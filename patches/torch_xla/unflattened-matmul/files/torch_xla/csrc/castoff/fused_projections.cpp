// Query, key and value of one linear, as `reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)`.
//
// A TPU's compiler transposes and pads an array whose lanes are heads of one of three projections.
// Here each part is a range of the product's columns, viewed and permuted by itself, and the
// gradient of the product is the parts' gradients side by side: the same elements.

#include "torch_xla/csrc/castoff/fused_projections.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/select_copy_ops.h>
#include <ATen/ops/slice_copy_ops.h>
#include <ATen/ops/view_copy_ops.h>

#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/target.h"

namespace castoff {
namespace {

using lazy_ir::Node;
using lazy_ir::OpKind;
using lazy_ir::Value;
using Sizes = std::vector<int64_t>;

// The pending node of a tensor; nullptr if there is none, or if it may have a sharding.
const Node* pending(const Tensor& t) {
  if (!is_for_tpu() || !lazy_ir::ready(t)) return nullptr;
  return lazy_ir::unsharded_value(t).node.get();  // which the tensor keeps
}

bool is(const Node* node, const OpKind& kind) {
  return node != nullptr && node->op() == kind;
}

const OpKind& permute() {
  static const OpKind kind = OpKind::Get("aten::permute");
  return kind;
}

// What a node like this one, of these operands, makes, if it has these sizes. A node does not say
// what its attributes are, such as the order of a permutation; the sizes of another result do.
std::optional<Tensor> again(const Node& node, const Tensor& operand, const Sizes& sizes) {
  const lazy_ir::Data* data = lazy_ir::data_of(operand);
  if (data == nullptr || !data->ir_value) return std::nullopt;
  const Value result(lazy_ir::clone(node, {data->ir_value}), 0);
  if (lazy_ir::static_sizes(result) != sizes) return std::nullopt;
  return lazy_ir::tensor_of(result, operand);
}

Sizes with(at::IntArrayRef sizes, int64_t dim, int64_t size) {
  Sizes changed = sizes.vec();
  changed[dim] = size;
  return changed;
}

int64_t product(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// The first dimension of several that the last one of a view, of `rank` dimensions, was split into
// or merged from; -1 if others were changed as well.
int64_t split(at::IntArrayRef whole, at::IntArrayRef parts) {
  const int64_t rank = static_cast<int64_t>(whole.size());
  if (rank < 2 || static_cast<int64_t>(parts.size()) < rank + 1) return -1;
  const int64_t dim = rank - 1;
  const bool same = whole.slice(0, dim) == parts.slice(0, dim);
  return same && product(parts.slice(dim)) == whole[dim] ? dim : -1;
}

// ---- unbind, of self along dim

std::optional<std::vector<Tensor>> parts_of(const Tensor& self, int64_t dim) {
  static const OpKind view = OpKind::Get("aten::view");
  const Node* permuted = pending(self);
  if (!is(permuted, permute())) return std::nullopt;
  const Value viewed = lazy_ir::operand(*permuted, 0);
  if (!is(viewed.node.get(), view)) return std::nullopt;
  const Value source = lazy_ir::operand(*viewed.node, 0);
  const auto whole = lazy_ir::static_sizes(source), parts = lazy_ir::static_sizes(viewed);
  const int64_t at = whole && parts ? split(*whole, *parts) : -1;
  const int64_t count = self.size(dim);
  if (at < 0 || (*parts)[at] != count || count < 2 || self.numel() == 0) return std::nullopt;
  const Tensor all = lazy_ir::tensor_of(source, self);
  const int64_t columns = whole->back() / count;
  std::vector<Tensor> found;
  for (int64_t i = 0; i < count; ++i) {
    const Tensor own =
        at::_ops::slice_copy_Tensor::redispatch(kXla, all, -1, i * columns, (i + 1) * columns, 1);
    const Sizes sizes = with(*parts, at, 1);
    const auto part = again(
        *permuted, at::_ops::view_copy::redispatch(kXla, own, c10::fromIntArrayRefSlow(sizes)),
        with(self.sizes(), dim, 1));
    if (!part) return std::nullopt;
    found.push_back(at::_ops::select_copy_int::redispatch(kXla, *part, dim, 0));
  }
  return found;
}

void unbind(Call& call) {
  if (C10_LIKELY(!is_for_tpu()) || !call[1].isInt()) return call.proceed();
  const Tensor& self = call.tensor(0);
  const int64_t dim = call[1].toInt();
  auto found = parts_of(self, dim < 0 ? dim + self.dim() : dim);
  if (!found) return call.proceed();
  call.answer(*std::move(found));
}

// ---- the view of a gradient

// The gradients of the parts side by side; not of tokens that fill no tiles, which would be padded
// in each: fewer cycles, but more memory.
std::optional<Tensor> gradient_of(const Tensor& self, at::IntArrayRef sizes) {
  static const OpKind stack = OpKind::Get("aten::stack");
  const Node* permuted = pending(self);
  if (!is(permuted, permute())) return std::nullopt;
  const Value stacked = lazy_ir::operand(*permuted, 0);
  const int64_t at = split(sizes, self.sizes());
  if (!is(stacked.node.get(), stack) || at < 0 || self.numel() == 0) return std::nullopt;
  const int64_t count = static_cast<int64_t>(stacked.node->operands().size());
  if (self.size(at) != count || count < 2 || sizes[at - 1] % kTileRows != 0) return std::nullopt;
  const auto all = lazy_ir::static_sizes(stacked);
  std::vector<Tensor> found;
  for (int64_t i = 0; all && i < count; ++i) {
    const Value part = lazy_ir::operand(*stacked.node, i);
    // Stacked alone, it has a dimension of one element.
    const Value single(lazy_ir::clone(*stacked.node, {part}), 0);
    const auto own = again(*permuted, lazy_ir::tensor_of(single, self), with(self.sizes(), at, 1));
    if (!own) return std::nullopt;
    const Sizes flat = with(sizes, at, sizes[at] / count);
    found.push_back(at::_ops::view_copy::redispatch(kXla, *own, c10::fromIntArrayRefSlow(flat)));
  }
  if (found.empty()) return std::nullopt;
  return at::_ops::cat::redispatch(kXla, found, -1);
}

struct FusedProjections;
using View = Overridden<FusedProjections, at::_ops::view_copy, c10::DispatchKey::XLA>;

// Every view of a program passes here: not in boxed form.
Tensor view(c10::DispatchKeySet keys, const Tensor& self, c10::SymIntArrayRef sizes) {
  if (C10_UNLIKELY(is_for_tpu())) {
    const auto known = c10::asIntArrayRefSlowOpt(sizes);
    const auto found = known ? gradient_of(self, *known) : std::nullopt;
    if (found) return *found;
  }
  return View::call(keys, self, sizes);
}

}  // namespace

void install_fused_projections(torch::Library& xla) {
  remedy(xla, unbind, "unbind_copy.int");
  View::by(xla, view);
}

}  // namespace castoff
