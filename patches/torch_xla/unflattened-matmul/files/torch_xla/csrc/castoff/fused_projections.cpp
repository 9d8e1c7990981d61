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

#include <algorithm>
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

constexpr size_t kMostNodes = 4;  // between a stack and its last view

// The nodes from what is viewed to a stack, which is the last of them; nothing if it is no stack
// that was permuted.
std::vector<Value> down_to_stack(const Tensor& self) {
  static const OpKind stack = OpKind::Get("aten::stack");
  static const OpKind view = OpKind::Get("aten::view");
  const Node* outermost = pending(self);
  if (!is(outermost, permute()) && !is(outermost, view)) return {};
  std::vector<Value> nodes = {lazy_ir::unsharded_value(self)};
  bool permuted = false;
  while (is(nodes.back().node.get(), permute()) || is(nodes.back().node.get(), view)) {
    if (nodes.size() > kMostNodes) return {};
    permuted |= is(nodes.back().node.get(), permute());
    nodes.push_back(lazy_ir::operand(*nodes.back().node, 0));
  }
  return permuted && is(nodes.back().node.get(), stack) ? nodes : std::vector<Value>();
}

// The only dimension in which sizes differ; -1 if there are none or several.
int64_t differing(const Sizes& a, const Sizes& b) {
  if (a.size() != b.size()) return -1;
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin());
  const bool once = x != a.end() && std::equal(x + 1, a.end(), y + 1);
  return once ? x - a.begin() : -1;
}

// The dimension of a view that `dim`, of these sizes, is in it; -1 if it was merged or split.
int64_t viewed_as(at::IntArrayRef sizes, int64_t dim, at::IntArrayRef view) {
  int64_t before = 1;
  for (size_t i = 0; i < view.size(); before *= view[i++]) {
    const bool same = before == product(sizes.slice(0, dim)) && view[i] == sizes[dim];
    if (same) return static_cast<int64_t>(i);
  }
  return -1;
}

// What the nodes, the last one first, make of one part, with a dimension of one element where they
// have the stack's.
std::optional<Tensor> part_by(const std::vector<Value>& nodes, const Value& part,
                              const Tensor& like) {
  auto whole = lazy_ir::static_sizes(nodes.back());
  Value found(lazy_ir::clone(*nodes.back().node, {part}), 0);
  for (auto each = nodes.rbegin() + 1; whole && each != nodes.rend(); ++each) {
    const auto sizes = lazy_ir::static_sizes(found), next = lazy_ir::static_sizes(*each);
    const int64_t dim = sizes ? differing(*whole, *sizes) : -1;
    if (dim < 0 || !next) return std::nullopt;
    if (is(each->node.get(), permute())) {
      found = Value(lazy_ir::clone(*each->node, {found}), 0);
    } else {
      const int64_t at = viewed_as(*whole, dim, *next);
      if (at < 0) return std::nullopt;
      const Sizes viewed = with(*next, at, 1);
      found = lazy_ir::unsharded_value(at::_ops::view_copy::redispatch(
          kXla, lazy_ir::tensor_of(found, like), c10::fromIntArrayRefSlow(viewed)));
    }
    whole = next;
  }
  return found ? std::optional(lazy_ir::tensor_of(found, like)) : std::nullopt;
}

// Whether little is added to tokens that are padded to whole tiles, as to an image's 197 or 257. To
// the 49 of a Swin's window a seventh is.
bool fill_tiles(int64_t tokens) {
  const int64_t rest = tokens % kTileRows;
  return rest == 0 || 16 * (kTileRows - rest) <= tokens;
}

// The gradients of the parts side by side, where each is not padded much by itself.
std::optional<Tensor> gradient_of(const Tensor& self, at::IntArrayRef sizes) {
  const std::vector<Value> nodes = down_to_stack(self);
  const int64_t at = nodes.empty() ? -1 : split(sizes, self.sizes());
  if (at < 0 || self.numel() == 0) return std::nullopt;
  const Node& stacked = *nodes.back().node;
  const int64_t count = static_cast<int64_t>(stacked.operands().size());
  if (self.size(at) != count || count < 2 || !fill_tiles(sizes[at - 1])) return std::nullopt;
  std::vector<Tensor> found;
  for (int64_t i = 0; i < count; ++i) {
    const auto own = part_by(nodes, lazy_ir::operand(stacked, i), self);
    if (!own || lazy_ir::static_sizes(lazy_ir::unsharded_value(*own)) != with(self.sizes(), at, 1))
      return std::nullopt;
    const Sizes flat = with(sizes, at, sizes[at] / count);
    found.push_back(at::_ops::view_copy::redispatch(kXla, *own, c10::fromIntArrayRefSlow(flat)));
  }
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
