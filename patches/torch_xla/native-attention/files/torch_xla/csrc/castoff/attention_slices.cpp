// Causal attention in slices of queries, each against the keys up to it; other attention in one
// slice, against all keys.
//
// Of the scores half are of keys that come after their query. Here those are not computed, and of
// the others no slice waits for the backward pass, which computes it again: what is saved grows
// with the tokens and not with their square. The batch and the heads stay whole, so that shardings
// over them do.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/detach_copy_ops.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "torch_xla/csrc/castoff/attention_formula.h"
#include "torch_xla/csrc/castoff/finite.h"
#include "torch_xla/csrc/castoff/target.h"

namespace castoff::attention {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Attention of fewer tokens gains little.
constexpr int64_t kLeastTokens = 2048;
// With one slice.
constexpr int64_t kLeastSharded = 4096;
// The compiler takes as long for each slice, whatever its size.
constexpr int64_t kMostSlices = 4;
constexpr int64_t kLeastSlice = 1024;
// The lanes of a TPU.
constexpr int64_t kMultiple = 128;

// Consecutive tokens.
struct Range {
  int64_t begin, end;

  int64_t size() const { return end - begin; }
};

Tensor of(const Tensor& t, int64_t dim, const Range& range) {
  return range.size() == t.size(dim) ? t : t.narrow(dim, range.begin, range.size());
}

// The keys up to the last of some queries, or all.
Range keys_for(const Range& queries, const Tensor& key, const Form& form) {
  return {0, form.causal ? std::min(queries.end, key.size(-2)) : key.size(-2)};
}

bool is_spmd() {
  const char* asked = std::getenv("XLA_USE_SPMD");  // torch_xla's use_spmd() sets it
  return asked != nullptr && std::string_view(asked) != "0";
}

// Under SPMD the tokens can be sharded, and a slice would be of some devices: one slice.
std::vector<Range> slices(int64_t queries, const Form& form) {
  int64_t size = queries;
  if (form.causal && !is_spmd()) {
    const int64_t least = (queries + kMostSlices - 1) / kMostSlices;
    size = std::max(kLeastSlice, (least + kMultiple - 1) / kMultiple * kMultiple);
  }
  std::vector<Range> found;
  for (int64_t begin = 0; begin < queries; begin += size) {
    found.push_back({begin, std::min(begin + size, queries)});
  }
  return found;
}

// The same tensors, whose computation XLA takes for another one than that of the forward pass: it
// would keep that one's scores otherwise.
std::vector<Tensor> behind_barrier(const std::vector<Tensor>& tensors) {
  using Signature = std::vector<Tensor>(at::TensorList);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("castoff::optimization_barrier", "")
                             .typed<Signature>();
  return op.call(tensors);
}

// Of some queries and the keys up to them. A mask for the last of these keys alone would need two
// products for one: more to compile, and more temporary memory.
Tensor scores(const Range& queries, const Tensor& query, const Tensor& key, const Form& form) {
  const Range keys = keys_for(queries, key, form);
  const Tensor all =
      times(by_width(of(query, -2, queries), of(key, -2, keys), form.batch), form.scale);
  return form.causal && keys.end > queries.begin + 1 ? without_later(all, queries.begin) : all;
}

// Which of these weights dropout keeps.
std::optional<Tensor> kept_of(const std::optional<Tensor>& kept, const Range& queries,
                              const Range& keys) {
  return kept ? std::optional<Tensor>(of(of(*kept, -2, queries), -1, keys)) : std::nullopt;
}

// The result for some queries, and the logarithm of the sums of their scores' exponentials. Both
// are divided, or reduced, where there are fewer numbers than scores.
std::pair<Tensor, Tensor> forward_of(const Range& range, const Tensor& query, const Tensor& key,
                                     const Tensor& value, const std::optional<Tensor>& kept,
                                     const Form& form) {
  const Range keys = keys_for(range, key, form);
  const Tensor found = scores(range, query, key, form);
  const FiniteExtremes extremes;
  const Tensor greatest = found.amax({-1}, /*keepdim=*/true);
  const Tensor powers = found.sub(greatest).exp();
  const Tensor total = powers.sum({-1}, /*keepdim=*/true);
  const Tensor taken = drop(factor(powers, value, form), kept_of(kept, range, keys));
  const Tensor result = by_keys(taken, of(value, -2, keys), form.batch);
  return {times(result.div(total), of_kept(form)), greatest.add(total.log())};
}

// `t`, a sum for each of the first keys, with zeros for the others.
Tensor for_keys(const Tensor& t, int64_t keys) {
  const int64_t more = keys - t.size(-2);
  return more == 0 ? t : at::constant_pad_nd(t, {0, 0, 0, more});
}

// What the gradients of a slice's scores are computed from.
struct Backward {
  Tensor query, key, value, grad, logarithm, of_row;
  std::optional<Tensor> kept;
  Form form;
  bool wants_query, wants_key, wants_value;

  // Of all slices so far: the sums over their queries, for each key up to them.
  Tensor of_key, of_value;

  // The gradient of a slice of the query; it adds to those of key and value.
  Tensor of_slice(const Range& range) {
    const Range keys = keys_for(range, key, form);
    const Tensor cotangent = of(grad, -2, range);
    const std::optional<Tensor> own = kept_of(kept, range, keys);
    const Tensor p = scores(range, query, key, form).sub(of(logarithm, -2, range)).exp();
    if (wants_value) {
      add(of_value, by_rows(drop(factor(p, value, form), own), cotangent, form.batch));
    }
    if (!wants_query && !wants_key) return {};
    const Tensor of_kept_weights = by_width(cotangent, of(value, -2, keys), form.batch);
    const Tensor of_weights = times(drop(of_kept_weights, own), of_kept(form));
    const Tensor of_scores = factor(p.mul(of_weights.sub(of(of_row, -2, range))), query, form);
    if (wants_key) add(of_key, by_rows(of_scores, of(query, -2, range), form.batch));
    return wants_query ? by_keys(of_scores, of(key, -2, keys), form.batch) : Tensor();
  }

 private:
  // No slice has fewer keys than the one before it.
  static void add(Tensor& total, const Tensor& found) {
    total = total.defined() ? for_keys(total, found.size(-2)).add(found) : found;
  }
};

// As Attention, of native_attention.cpp, is to autograd.
class Sliced final : public torch::autograd::Function<Sliced> {
 public:
  static constexpr bool is_traceable = true;  // by compiled autograd

  static Tensor forward(AutogradContext* ctx, const Tensor& query, const Tensor& key,
                        const Tensor& value, const Form& form) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::vector<int64_t> sizes = query.sizes().vec();
    sizes.back() = key.size(-2);
    const std::optional<Tensor> kept = draw_kept(query, sizes, form);
    std::vector<Tensor> results, logarithms;
    for (const Range& range : slices(query.size(-2), form)) {
      auto [result, logarithm] = forward_of(range, query, expanded(key, query, form.batch),
                                            expanded(value, query, form.batch), kept, form);
      results.push_back(std::move(result));
      logarithms.push_back(std::move(logarithm));
    }
    const Tensor wide = at::cat(results, -2), narrow = wide.to(query.scalar_type());
    // Not the result itself, which the program may write to.
    const Tensor result =
        form.kind == Weights::kNarrow ? at::_ops::detach_copy::call(narrow) : wide;
    ctx->save_for_backward(
        {query, key, value, result, at::cat(logarithms, -2), kept.value_or(Tensor())});
    save(ctx, form);
    return narrow;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Form form = saved_form(ctx);
    std::optional<Tensor> kept;
    if (saved[5].defined()) kept = saved[5];
    if (at::GradMode::is_enabled()) {  // with create_graph
      const Saved whole{saved[0], saved[1], saved[2], {}, {}, std::nullopt, kept};
      variable_list results = whole_gradients(ctx, whole, grads[0], form);
      results.erase(results.begin() + 3);  // there is no mask
      return results;
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return gradients(ctx, saved, grads[0], kept, form);
  }

 private:
  static variable_list gradients(AutogradContext* ctx, const variable_list& saved,
                                 const Tensor& grad, const std::optional<Tensor>& kept,
                                 const Form& form) {
    const std::vector<Tensor> again =
        behind_barrier({saved[0], saved[1], saved[2], grad, saved[4]});
    const Tensor &query = again[0], &key = saved[1], &value = saved[2];
    Backward pass{query,
                  expanded(again[1], query, form.batch),
                  expanded(again[2], query, form.batch),
                  again[3],
                  again[4],
                  row_sums(saved[3], grad),
                  kept,
                  form,
                  ctx->needs_input_grad(0),
                  ctx->needs_input_grad(1),
                  ctx->needs_input_grad(2),
                  {},
                  {}};
    std::vector<Tensor> of_query;
    for (const Range& range : slices(query.size(-2), form))
      of_query.push_back(pass.of_slice(range));
    variable_list results(4);
    if (pass.wants_query) results[0] = times(at::cat(of_query, -2), form.scale);
    if (pass.wants_key) {
      results[1] = times(for_keys(pass.of_key, key.size(-2)).sum_to_size(key.sizes()), form.scale);
    }
    if (pass.wants_value) {
      results[2] =
          times(for_keys(pass.of_value, value.size(-2)).sum_to_size(value.sizes()), of_kept(form));
    }
    return results;
  }
};

}  // namespace

bool is_in_slices(const Tensor& query, const Tensor& key, const Form& form) {
  if (form.again && !is_spmd()) return true;
  // Rows of several heads, as on other devices, are no tokens.
  return form.causal && is_for_tpu() && query.size(-2) == form.sizes.end()[-2] &&
         std::min(query.size(-2), key.size(-2)) >= (is_spmd() ? kLeastSharded : kLeastTokens);
}

Tensor in_slices(const Tensor& query, const Tensor& key, const Tensor& value, const Form& form) {
  return Sliced::apply(query, key, value, form);
}

}  // namespace castoff::attention
