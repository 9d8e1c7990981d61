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
#include <ATen/ops/stack_ops.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/remedy.h"
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

// gradient, sizes of the whole, dim, index
void select_backward(Call& call) {
  const Value part = pending_gradient(call.tensor(0));
  if (!part || !call[3].isInt()) return call.proceed();
  const int64_t dim = call[2].toInt(), index = call[3].toInt();
  call.proceed();
  const Tensor& result = call.result().toTensor();
  const int64_t wrapped = at::maybe_wrap_dim(dim, result.dim());
  const int64_t start = index < 0 ? index + result.size(wrapped) : index;
  remember_gradient(result, part, wrapped, start, start + 1, true);
}

// gradient, sizes of the whole, dim, start, end, step
void slice_backward(Call& call) {
  const Value part = pending_gradient(call.tensor(0));
  const bool known_bounds = call[3].isInt() && call[4].isInt() && call[5].isInt();
  if (!part || !known_bounds || call[5].toInt() != 1) return call.proceed();
  const int64_t columns = call.tensor(0).size(call[2].toInt());
  const int64_t dim = call[2].toInt(), first = call[3].toInt();
  call.proceed();
  const Tensor& result = call.result().toTensor();
  const int64_t wrapped = at::maybe_wrap_dim(dim, result.dim()), size = result.size(wrapped);
  const int64_t start = std::clamp<int64_t>(first < 0 ? first + size : first, 0, size);
  if (columns > 0) remember_gradient(result, part, wrapped, start, start + columns, false);
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

struct GradientsOfParts;
using Add = Overridden<GradientsOfParts, at::_ops::add_Tensor, c10::DispatchKey::XLA>;

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
  remedy(xla, select_backward, "select_backward");
  remedy(xla, slice_backward, "slice_backward");
  Add::by(xla, add);
}

}  // namespace castoff
