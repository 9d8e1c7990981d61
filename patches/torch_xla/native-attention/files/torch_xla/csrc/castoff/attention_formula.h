// The formula of attention, in the parts that its whole form and its form in slices share.

#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "torch_xla/csrc/castoff/dot_general.h"

namespace castoff::attention {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What the softmax of the scores is: float32 (kWide); float32 that is rounded to the operands'
// dtype for its products, and its gradient alike (kRounded); or of that dtype from the start, which
// takes half the memory (kNarrow).
enum class Weights : int64_t { kWide, kRounded, kNarrow };

// What is no tensor in a call. `sizes` are those of the scores, one for each query and key of each
// head. `batch` dimensions lead the query, the key and the value; what the query has between them
// and its last one are rows of one matrix in the products: queries of several heads may share a
// key.
struct Form {
  double scale;
  double dropout;
  bool causal;
  Weights kind;
  // Whether the backward pass computes the scores again, in one slice: no weights wait for it.
  bool again;
  // Whether the weights wait in float32, of an exact scale, and the scores are computed as if
  // attention were all of the graph.
  bool alone;
  int64_t batch;
  std::vector<int64_t> sizes;
};

inline void save(torch::autograd::AutogradContext* ctx, const Form& form) {
  auto& data = ctx->saved_data;
  data["scale"] = form.scale;
  data["dropout"] = form.dropout;
  data["causal"] = form.causal;
  data["kind"] = static_cast<int64_t>(form.kind);
  data["again"] = form.again;
  data["alone"] = form.alone;
  data["batch"] = form.batch;
  data["sizes"] = form.sizes;
}

inline Form saved_form(torch::autograd::AutogradContext* ctx) {
  auto& data = ctx->saved_data;
  return {data["scale"].toDouble(), data["dropout"].toDouble(),
          data["causal"].toBool(),  static_cast<Weights>(data["kind"].toInt()),
          data["again"].toBool(),   data["alone"].toBool(),
          data["batch"].toInt(),    data["sizes"].toIntVector()};
}

// ---- products: float32, of tensors that have the first `batch` dimensions in common

inline std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> dims(end - begin);
  std::iota(dims.begin(), dims.end(), begin);
  return dims;
}

// Over the last dimension of both: the scores of a query and a key, say.
inline at::Tensor by_width(const at::Tensor& lhs, const at::Tensor& rhs, int64_t batch) {
  return dot_general(lhs, rhs, {lhs.dim() - 1}, {rhs.dim() - 1}, range(0, batch),
                     at::ScalarType::Float);
}

// Over the keys, which are the last dimension of the weights and the last but one of `rhs`.
inline at::Tensor by_keys(const at::Tensor& weights, const at::Tensor& rhs, int64_t batch) {
  return dot_general(weights, rhs, {weights.dim() - 1}, {rhs.dim() - 2}, range(0, batch),
                     at::ScalarType::Float);
}

// Over all rows of the weights and of `rhs`, which has as many.
inline at::Tensor by_rows(const at::Tensor& weights, const at::Tensor& rhs, int64_t batch) {
  const std::vector<int64_t> rows = range(batch, rhs.dim() - 1);
  return dot_general(weights, rhs, rows, rows, range(0, batch), at::ScalarType::Float);
}

// The sums over each row of the products of the elements of two matrices.
inline at::Tensor row_sums(const at::Tensor& lhs, const at::Tensor& rhs) {
  return by_width(lhs, rhs, lhs.dim() - 1).unsqueeze(-1);
}

// ---- elements

// `t`, the key or the value, for each batch of the query.
inline at::Tensor expanded(const at::Tensor& t, const at::Tensor& query, int64_t batch) {
  std::vector<int64_t> sizes = query.sizes().slice(0, batch).vec();
  sizes.push_back(t.size(-2));
  sizes.push_back(t.size(-1));
  return t.sizes() == at::IntArrayRef(sizes) ? t : t.expand(sizes);
}

inline at::Tensor times(const at::Tensor& t, double factor) {
  return factor == 1 ? t : t.mul(factor);
}

inline at::Tensor viewed(const at::Tensor& t, at::IntArrayRef sizes) {
  return t.sizes() == sizes ? t : t.view(sizes);
}

// Scores without those of keys that come after the query. The first of these queries is the
// `first`-th.
inline at::Tensor without_later(const at::Tensor& scores, int64_t first = 0) {
  const at::Tensor all =
      at::ones({scores.size(-2), scores.size(-1)}, scores.options().dtype(at::kBool));
  return at::where(all.tril(first), scores, -kInfinity);
}

// The weights, or their gradient, as the products take them.
inline at::Tensor factor(const at::Tensor& t, const at::Tensor& operand, const Form& form) {
  return form.kind == Weights::kWide ? t : t.to(operand.scalar_type());
}

// ---- dropout

// Which of the weights, of these sizes, dropout keeps, drawn as torch draws them, in float32.
inline std::optional<at::Tensor> draw_kept(const at::Tensor& like, at::IntArrayRef sizes,
                                           const Form& form) {
  if (form.dropout == 0) return std::nullopt;
  const at::Tensor drawn = at::empty(form.sizes, like.options().dtype(at::kFloat));
  return viewed(drawn.bernoulli_(1 - form.dropout).ne(0), sizes);
}

// The rest of dropout, a factor, is cheaper where there are fewer numbers.
inline double of_kept(const Form& form) {
  return 1 / (1 - form.dropout);
}

inline at::Tensor drop(const at::Tensor& t, const std::optional<at::Tensor>& kept) {
  return kept ? at::where(*kept, t, 0.0) : t;
}

// ---- what one form hands to the other

// What the backward pass has of the forward pass.
struct Saved {
  at::Tensor query, key, value, weights, result;
  std::optional<at::Tensor> mask, kept;
};

// The gradients of query, key, value, mask and form from all of the weights. With create_graph
// these are computed again, by operators that differentiate.
torch::autograd::variable_list whole_gradients(torch::autograd::AutogradContext* ctx,
                                               const Saved& saved, const at::Tensor& grad,
                                               const Form& form);

// Whether attention of this form, which has no mask, is computed in slices of queries: causal, or
// one slice.
bool is_in_slices(const at::Tensor& query, const at::Tensor& key, const Form& form);

at::Tensor in_slices(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const Form& form);

}  // namespace castoff::attention
