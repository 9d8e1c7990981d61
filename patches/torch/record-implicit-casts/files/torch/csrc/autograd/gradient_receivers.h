#pragma once

// What the records ask of the node that a gradient travels to. Where torch has no grad_dtype of its
// own, the topic of that name answers.

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <vector>

#if __has_include(<torch/csrc/autograd/grad_dtype.h>)

#include <torch/csrc/autograd/grad_dtype.h>
#include <torch/csrc/autograd/view_nodes.h>

namespace torch::autograd::implicit_casts {

using grad_dtype::demanding_node;
using grad_dtype::hands_on;
using grad_dtype::leaves_behind;

inline void add_engine_users(int64_t count) {
  grad_dtype::engine_users.fetch_add(count, std::memory_order_relaxed);
}

}  // namespace torch::autograd::implicit_casts

#else

namespace torch::autograd::implicit_casts {

inline const Node& demanding_node(const Edge& edge) {
  return *edge.function;
}

// Which leaves, and whether a gradient was rounded for them, is asked by torch_xla's
// wide_grads_report alone.
inline std::vector<const at::Tensor*> leaves_behind(const Edge& /*edge*/) {
  return {};
}
inline bool hands_on(const Node& /*node*/) {
  return true;
}

inline void add_engine_users(int64_t /*count*/) {}

}  // namespace torch::autograd::implicit_casts

#endif
