// The arrays that sums of float32 read in the graph that is being traced.

#pragma once

#include <ATen/core/Tensor.h>

// Of a topic that is not on every pin.
#if __has_include("torch_xla/csrc/castoff/lazy_ir.h")

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/lazy_ir.h"

namespace castoff {

// A forward pass adds to them, the backward pass, which may be another thread, asks.
class ReadByLosses {
 public:
  void add(const at::Tensor& t) {
    const lazy_ir::NodePtr node = node_of(t);
    if (node == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    last_[next_++ % last_.size()] = {node, t.numel()};
  }

  // Whether `t` and one of them, of as many elements, are computed from one product.
  bool have_one_source_with(const at::Tensor& t) {
    const std::vector<lazy_ir::NodePtr> others = of_size(t.numel());
    const lazy_ir::NodePtr node = others.empty() ? nullptr : node_of(t);
    if (node == nullptr) return false;
    const Nodes products = products_behind({node});
    const Nodes of_losses = products_behind(others);
    return std::any_of(products.begin(), products.end(),
                       [&](const auto* product) { return of_losses.count(product) != 0; });
  }

 private:
  using Nodes = std::unordered_set<const lazy_ir::Node*>;

  // A node that is gone is no longer part of a graph.
  struct Entry {
    std::weak_ptr<lazy_ir::Node> node;
    int64_t numel = 0;
  };

  static lazy_ir::NodePtr node_of(const at::Tensor& t) {
    const lazy_ir::Data* data = lazy_ir::ready(t) ? lazy_ir::data_of(t) : nullptr;
    return data == nullptr ? nullptr : data->ir_value.node;
  }

  std::vector<lazy_ir::NodePtr> of_size(int64_t numel) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<lazy_ir::NodePtr> found;
    for (const Entry& entry : last_) {
      if (entry.numel != numel) continue;
      if (lazy_ir::NodePtr node = entry.node.lock()) found.push_back(std::move(node));
    }
    return found;
  }

  static bool is_product(const lazy_ir::Node& node) {
    using lazy_ir::OpKind;
    static const std::array<OpKind, 5> kinds = {
        OpKind::Get("aten::mm"), OpKind::Get("aten::addmm"), OpKind::Get("aten::bmm"),
        OpKind::Get("xla::dot_general"), OpKind::Get("aten::convolution_overrideable")};
    return std::find(kinds.begin(), kinds.end(), node.op()) != kinds.end();
  }

  // The last ones: a loss's formula is short.
  static Nodes products_behind(const std::vector<lazy_ir::NodePtr>& from) {
    constexpr size_t kMost = 64;
    std::vector<const lazy_ir::Node*> visited;
    Nodes seen, products;
    const auto visit = [&](const lazy_ir::Node* node) {
      if (seen.insert(node).second) visited.push_back(node);
    };
    for (const lazy_ir::NodePtr& node : from) visit(node.get());
    for (size_t i = 0; i < visited.size() && i < kMost; ++i) {
      if (is_product(*visited[i])) {
        products.insert(visited[i]);
      } else {
        for (const torch::lazy::Output& operand : visited[i]->operands()) visit(operand.node);
      }
    }
    return products;
  }

  std::mutex mutex_;
  std::array<Entry, 8> last_;
  size_t next_ = 0;
};

// Whether a tensor of float32 is one of bfloat16 that was widened.
inline bool is_widened(const at::Tensor& t) {
  static const auto cast = lazy_ir::OpKind::Get("xla::cast");
  const lazy_ir::Data* data = lazy_ir::ready(t) ? lazy_ir::data_of(t) : nullptr;
  if (data == nullptr || !data->ir_value || data->ir_value.node->op() != cast) return false;
  const lazy_ir::Value source = lazy_ir::operand(*data->ir_value.node, 0);
  return lazy_ir::element_type(source) == lazy_ir::ElementType::kBF16;
}

}  // namespace castoff

#else

namespace castoff {

struct ReadByLosses {
  void add(const at::Tensor&) {}
  bool have_one_source_with(const at::Tensor&) { return false; }
};

inline bool is_widened(const at::Tensor&) {
  return false;
}

}  // namespace castoff

#endif
