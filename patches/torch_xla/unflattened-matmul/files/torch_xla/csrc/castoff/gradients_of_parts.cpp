// The gradient of a tensor of which a program reads each part: `proj[0], proj[1], proj[2]`, or the
// halves of rotary positions.
//
// torch makes zeros for each part, writes the part's gradient into them, and autograd adds them up:
// as many passes over the whole as there are parts. Where the parts are all of the tensor, and none
// is read twice, their gradients side by side are the same numbers.

#include "torch_xla/csrc/castoff/gradients_of_parts.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/select_backward_ops.h>
#include <ATen/ops/slice_backward_ops.h>
#include <ATen/ops/stack_ops.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "torch_xla/csrc/castoff/kernels.h"
#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/target.h"

namespace castoff {
namespace {

using lazy_ir::Node;
using lazy_ir::Value;

// A range of the whole's dimension, and what is to be there. It keeps nothing: the node that wrote
// it into zeros does.
struct Part {
  int64_t start, end;
  std::weak_ptr<Node> node;
  size_t index;
};

// What a node is known to be: these parts, in order, and zeros.
struct Parts {
  std::weak_ptr<Node> node;
  int64_t dim, size;
  bool selected;  // each part is one element of the dimension, and does not have it
  std::vector<Part> parts;
};

// A backward pass has one thread for a device. Entries whose node is gone are of earlier graphs.
thread_local std::unordered_map<const Node*, Parts> known;
constexpr size_t kMostKnown = 256;

void remember(const Value& value, Parts parts) {
  if (known.size() >= kMostKnown) {
    for (auto each = known.begin(); each != known.end();) {
      each = each->second.node.expired() ? known.erase(each) : std::next(each);
    }
  }
  if (known.size() >= kMostKnown || value.index != 0) return;
  parts.node = value.node;
  known.insert_or_assign(value.node.get(), std::move(parts));
}

const Parts* parts_of(const Tensor& t) {
  const lazy_ir::Data* data = lazy_ir::data_of(t);
  if (data == nullptr || !data->ir_value || data->ir_value.index != 0) return nullptr;
  const auto found = known.find(data->ir_value.node.get());
  if (found == known.end() || found->second.node.expired()) return nullptr;
  return &found->second;
}

// ---- the gradient of one part

void remember_gradient(const Tensor& result, const Value& part, int64_t dim, int64_t start,
                       int64_t end, bool selected) {
  const Value value = lazy_ir::unsharded_value(result);
  if (!value || !part) return;
  remember(value, {{}, dim, result.size(dim), selected, {{start, end, part.node, part.index}}});
}

// The part's gradient, if a graph is to compute it, on a TPU.
Value pending_gradient(const Tensor& gradient) {
  return is_for_tpu() && lazy_ir::ready(gradient) ? lazy_ir::unsharded_value(gradient) : Value();
}

struct GradientsOfParts;
template <class Op>
using Before = Overridden<GradientsOfParts, Op, c10::DispatchKey::XLA>;
using Select = Before<at::_ops::select_backward>;
using Slice = Before<at::_ops::slice_backward>;
using Add = Before<at::_ops::add_Tensor>;

Tensor select_backward(c10::DispatchKeySet keys, const Tensor& gradient, c10::SymIntArrayRef sizes,
                       int64_t dim, c10::SymInt index) {
  const Value part = index.is_symbolic() ? Value() : pending_gradient(gradient);
  const int64_t at = part ? index.as_int_unchecked() : 0;
  Tensor result = Select::call(keys, gradient, sizes, dim, std::move(index));
  if (!part) return result;
  const int64_t wrapped = at::maybe_wrap_dim(dim, result.dim());
  const int64_t start = at < 0 ? at + result.size(wrapped) : at;
  remember_gradient(result, part, wrapped, start, start + 1, true);
  return result;
}

Tensor slice_backward(c10::DispatchKeySet keys, const Tensor& gradient, c10::SymIntArrayRef sizes,
                      int64_t dim, c10::SymInt start, c10::SymInt end, c10::SymInt step) {
  const Value part = start.is_symbolic() || step != 1 ? Value() : pending_gradient(gradient);
  const int64_t first = part ? start.as_int_unchecked() : 0;
  Tensor result =
      Slice::call(keys, gradient, sizes, dim, std::move(start), std::move(end), std::move(step));
  if (!part) return result;
  const int64_t wrapped = at::maybe_wrap_dim(dim, result.dim()), size = result.size(wrapped);
  const int64_t from = std::clamp<int64_t>(first < 0 ? first + size : first, 0, size);
  const int64_t columns = gradient.size(wrapped);
  if (columns > 0) remember_gradient(result, part, wrapped, from, from + columns, false);
  return result;
}

// ---- their sum

// The parts of both, in order; nothing if they are of another kind, or overlap.
std::optional<Parts> together(const Parts& a, const Parts& b) {
  if (a.dim != b.dim || a.size != b.size || a.selected != b.selected) return std::nullopt;
  Parts all{{}, a.dim, a.size, a.selected, {}};
  std::merge(a.parts.begin(), a.parts.end(), b.parts.begin(), b.parts.end(),
             std::back_inserter(all.parts),
             [](const Part& x, const Part& y) { return x.start < y.start; });
  for (size_t i = 1; i < all.parts.size(); ++i) {
    if (all.parts[i].start < all.parts[i - 1].end) return std::nullopt;
  }
  return all;
}

bool is_whole(const Parts& all) {
  int64_t covered = 0;
  for (const Part& part : all.parts) covered += part.end - part.start;
  return covered == all.size;  // they do not overlap
}

// The parts side by side; undefined if one of them is gone.
Tensor side_by_side(const Parts& all, const Tensor& like) {
  std::vector<Tensor> parts;
  for (const Part& part : all.parts) {
    const Value value(part.node.lock(), part.index);
    if (!value) return {};
    parts.push_back(lazy_ir::tensor_of(value, like));
  }
  return all.selected ? at::_ops::stack::redispatch(kXla, parts, all.dim)
                      : at::_ops::cat::redispatch(kXla, parts, all.dim);
}

bool are_alike(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

std::optional<Parts> parts_of_sum(const Tensor& a, const Tensor& b, const at::Scalar& alpha) {
  const Parts* first = parts_of(a);
  const Parts* second = first == nullptr ? nullptr : parts_of(b);
  const bool adds = alpha.isIntegral(/*includeBool=*/false) && alpha.toLong() == 1;
  if (second == nullptr || !adds || !are_alike(a, b)) return std::nullopt;
  return together(*first, *second);
}

// Every sum of a program passes here: not in boxed form.
Tensor add(c10::DispatchKeySet keys, const Tensor& self, const Tensor& other,
           const at::Scalar& alpha) {
  if (C10_LIKELY(known.empty())) return Add::call(keys, self, other, alpha);
  auto all = parts_of_sum(self, other, alpha);
  if (!all) return Add::call(keys, self, other, alpha);
  Tensor sum = is_whole(*all) ? side_by_side(*all, self) : Tensor();
  if (sum.defined()) return sum;
  sum = Add::call(keys, self, other, alpha);
  if (const Value value = lazy_ir::unsharded_value(sum)) remember(value, *std::move(all));
  return sum;
}

}  // namespace

void install_gradients_of_parts(torch::Library& xla) {
  Select::by(xla, select_backward);
  Slice::by(xla, slice_backward);
  Add::by(xla, add);
}

}  // namespace castoff
