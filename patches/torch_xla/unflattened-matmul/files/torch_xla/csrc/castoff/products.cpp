#include "torch_xla/csrc/castoff/products.h"

#include <ATen/ops/empty_ops.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/dot_general.h"
#include "torch_xla/csrc/castoff/kernels.h"

namespace castoff {

std::atomic<int> precision_of_products{0};

namespace {

using lazy_ir::NodePtr;
using lazy_ir::OpKind;
using lazy_ir::Value;
using Dims = std::vector<int64_t>;

// A tensor of one element, that has these dimensions.
Tensor element(at::IntArrayRef dims, const Tensor& like) {
  const Dims sizes(*std::max_element(dims.begin(), dims.end()) + 1, 1);
  return at::_ops::empty_memory_format::redispatch(kXla, c10::fromIntArrayRefSlow(sizes),
                                                   like.scalar_type(), at::kStrided, like.device(),
                                                   std::nullopt, std::nullopt);
}

// nullptr if such a product is no node of its own, or is not cloned as it is.
NodePtr make_template(at::IntArrayRef lhs, at::IntArrayRef rhs, const Tensor& like) {
  static const OpKind dot = OpKind::Get("xla::dot_general");
  const Tensor made =
      dot_general(element(lhs, like), element(rhs, like), lhs, rhs, {}, like.scalar_type());
  const NodePtr node = lazy_ir::unsharded_value(made).node;
  if (node == nullptr || node->op() != dot) return nullptr;
  const std::vector<Value> operands = {lazy_ir::operand(*node, 0), lazy_ir::operand(*node, 1)};
  return lazy_ir::clone(*node, operands)->hash() == node->hash() ? node : nullptr;
}

struct Flattened final : torch::lazy::UserMetaData {
  explicit Flattened(Value of) : view(std::move(of)) {}
  const Value view;
  const int precision = precision_of_products;
};

struct Viewed final : torch::lazy::UserMetaData {
  explicit Viewed(const Dims& of) : sizes(of) {}
  const Dims sizes;
};

}  // namespace

Value product_of(const Value& lhs, const Value& rhs, at::IntArrayRef lhs_contracting,
                 at::IntArrayRef rhs_contracting, const Tensor& like) {
  if (precision_of_products != 0 || !lhs || !rhs) return {};
  using Key = std::tuple<Dims, Dims, at::ScalarType>;
  static std::mutex mutex;
  static auto& templates = *new std::map<Key, NodePtr>;  // nodes are not to be deleted at the exit
  const Key key(lhs_contracting.vec(), rhs_contracting.vec(), like.scalar_type());
  NodePtr node;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = templates.find(key);
    if (found != templates.end()) node = found->second;
  }
  if (node == nullptr) {
    node = make_template(lhs_contracting, rhs_contracting, like);
    if (node == nullptr) return {};
    const std::lock_guard<std::mutex> lock(mutex);
    templates.emplace(key, node);
  }
  return Value(lazy_ir::clone(*node, {lhs, rhs}), 0);
}

std::optional<Dims> viewed_sizes(const Value& view) {
  const torch::lazy::UserMetaData* metadata = view.node->user_metadata();
  if (const auto* known = dynamic_cast<const Viewed*>(metadata)) return known->sizes;
  auto sizes = lazy_ir::static_sizes(lazy_ir::operand(*view.node, 0));
  if (sizes && metadata == nullptr) view.node->SetUserMetadata(std::make_shared<Viewed>(*sizes));
  return sizes;
}

void remember_flattened(const Value& product, const Value& view) {
  product.node->SetUserMetadata(std::make_shared<Flattened>(view));
}

Value flattened_rows(const Value& product) {
  const auto* found = dynamic_cast<const Flattened*>(product.node->user_metadata());
  const bool is_same = found != nullptr && found->precision == precision_of_products;
  return is_same ? found->view : Value();
}

}  // namespace castoff
