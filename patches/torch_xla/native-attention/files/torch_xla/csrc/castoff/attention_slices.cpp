// Causal attention in slices of queries, each against the keys up to it.
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
#include <ATen/ops/maximum.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "torch_xla/csrc/castoff/attention_formula.h"
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
constexpr int64_t kMostSlices = 8;
constexpr int64_t kLeastSlice = 512;
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

// Keys that a slice of queries is multiplied with at once; of `cut` ones some are later than some
// of these queries.
struct Block {
  Range keys;
  bool cut;
};

// Two, so that only the smaller one is masked.
std::vector<Block> blocks(const Range& queries, int64_t keys) {
  std::vector<Block> found;
  const int64_t before = std::min(queries.begin, keys);
  if (before > 0) found.push_back({{0, before}, false});
  if (before < keys) found.push_back({{before, std::min(queries.end, keys)}, true});
  return found;
}

bool is_spmd() {
  const char* asked = std::getenv("XLA_USE_SPMD");  // torch_xla's use_spmd() sets it
  return asked != nullptr && std::string_view(asked) != "0";
}

// Under SPMD the tokens can be sharded, and a slice would be of some devices: one slice.
std::vector<Range> slices(int64_t queries) {
  int64_t size = queries;
  if (!is_spmd()) {
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

Tensor scores(const Tensor& query, const Tensor& key, bool cut, const Form& form) {
  const Tensor all = times(by_width(query, key, form.batch), form.scale);
  return cut ? without_later(all, all.size(-2), all.size(-1)) : all;
}

Tensor sum(const Tensor& lhs, const Tensor& rhs) {
  return lhs.defined() ? lhs.add(rhs) : rhs;
}

// The result for some queries, and the logarithm of the sums of their scores' exponentials. Both
// are divided, or reduced, where there are fewer numbers than scores.
std::pair<Tensor, Tensor> forward_of(const Range& range, const Tensor& query, const Tensor& key,
                                     const Tensor& value, const std::optional<Tensor>& kept,
                                     const Form& form) {
  const Tensor queries = of(query, -2, range);
  const std::vector<Block> of_keys = blocks(range, key.size(-2));
  std::vector<Tensor> found;
  Tensor greatest, total, result;
  for (const auto& [keys, cut] : of_keys) {
    found.push_back(scores(queries, of(key, -2, keys), cut, form));
    const Tensor own = found.back().amax({-1}, /*keepdim=*/true);
    greatest = greatest.defined() ? at::maximum(greatest, own) : own;
  }
  for (size_t i = 0; i < of_keys.size(); ++i) {
    const Range& keys = of_keys[i].keys;
    const Tensor powers = found[i].sub(greatest).exp();
    total = sum(total, powers.sum({-1}, /*keepdim=*/true));
    std::optional<Tensor> own;
    if (kept) own = of(of(*kept, -2, range), -1, keys);
    const Tensor taken = drop(factor(powers, value, form), own);
    result = sum(result, by_keys(taken, of(value, -2, keys), form.batch));
  }
  return {times(result.div(total), of_kept(form)), greatest.add(total.log())};
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
    Tensor of_query;
    for (const auto& [keys, cut] : blocks(range, key.size(-2))) {
      const Tensor found = of_block(range, keys, cut);
      if (wants_query) of_query = sum(of_query, found);
    }
    return of_query;
  }

 private:
  Tensor of_block(const Range& range, const Range& keys, bool cut) {
    const Tensor queries = of(query, -2, range), own = of(key, -2, keys);
    const Tensor cotangent = of(grad, -2, range);
    std::optional<Tensor> own_kept;
    if (kept) own_kept = of(of(*kept, -2, range), -1, keys);
    const Tensor p = scores(queries, own, cut, form).sub(of(logarithm, -2, range)).exp();
    if (wants_value) {
      add(of_value, by_rows(drop(factor(p, value, form), own_kept), cotangent, form.batch), cut);
    }
    if (!wants_query && !wants_key) return {};
    const Tensor of_kept_weights = by_width(cotangent, of(value, -2, keys), form.batch);
    const Tensor of_weights = times(drop(of_kept_weights, own_kept), of_kept(form));
    const Tensor of_scores = factor(p.mul(of_weights.sub(of(of_row, -2, range))), query, form);
    if (wants_key) add(of_key, by_rows(of_scores, queries, form.batch), cut);
    return wants_query ? by_keys(of_scores, own, form.batch) : Tensor();
  }

  // The first keys that are cut come after all keys so far, and the others are all of these.
  static void add(Tensor& total, const Tensor& found, bool cut) {
    if (cut && total.defined()) {
      total = at::cat({total, found}, -2);
    } else {
      total = sum(total, found);
    }
  }
};

// `t`, a sum for each of the first keys, with zeros for the keys that come after all queries.
Tensor for_all_keys(const Tensor& t, const Tensor& key) {
  const int64_t more = key.size(-2) - t.size(-2);
  return more == 0 ? t : at::constant_pad_nd(t, {0, 0, 0, more});
}

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
    for (const Range& range : slices(query.size(-2))) {
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
    for (const Range& range : slices(query.size(-2))) of_query.push_back(pass.of_slice(range));
    variable_list results(4);
    if (pass.wants_query) results[0] = times(at::cat(of_query, -2), form.scale);
    if (pass.wants_key) {
      results[1] = times(for_all_keys(pass.of_key, key).sum_to_size(key.sizes()), form.scale);
    }
    if (pass.wants_value) {
      results[2] =
          times(for_all_keys(pass.of_value, value).sum_to_size(value.sizes()), of_kept(form));
    }
    return results;
  }
};

}  // namespace

bool is_in_slices(const Tensor& query, const Tensor& key, const Form& form) {
  // Rows of several heads, as on other devices, are no tokens.
  return form.causal && is_for_tpu() && query.size(-2) == form.sizes.end()[-2] &&
         std::min(query.size(-2), key.size(-2)) >= (is_spmd() ? kLeastSharded : kLeastTokens);
}

Tensor in_slices(const Tensor& query, const Tensor& key, const Tensor& value, const Form& form) {
  return Sliced::apply(query, key, value, form);
}

}  // namespace castoff::attention
