// scaled_dot_product_attention of bfloat16 or float16 tensors, from products of these tensors.
//
// torch's formula, which is all that XLA has, widens the query, the key and the value to float32
// and multiplies those. Here both products take them as they are and accumulate in float32, in
// which everything between the products is computed as well. Calls of other forms go to the kernel
// that is overridden: torch's formula.

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "torch_xla/csrc/castoff/above_autograd.h"
#include "torch_xla/csrc/castoff/attention_formula.h"
#include "torch_xla/csrc/castoff/finite.h"
#include "torch_xla/csrc/castoff/target.h"

namespace castoff {
namespace {

using at::IntArrayRef;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using namespace attention;  // NOLINT(google-build-using-namespace)

// ---- which weights

// What the process asks for. kAuto: kRounded where torch's formula would round no less.
enum class Choice : int { kAuto, kWide, kNarrow };

std::atomic<Choice> choice{Choice::kAuto};
std::atomic<bool> default_precision{true};

// Whether this process's products of float32 tensors round these to bfloat16.
bool rounds_operands() {
  return default_precision && is_for_tpu();
}

// Whether torch's formula, which multiplies the query and the key by the root of the scale, changes
// no digit of them by it. If it does, a TPU rounds the products, which here are not rounded.
bool scales_exactly(double scale) {
  int exponent = 0;
  return std::frexp(std::sqrt(std::abs(scale)), &exponent) == 0.5;
}

// The last dimension of a tile, as of a TPU's registers.
constexpr int64_t kLanes = 128;

// The memory next to a TPU's cores, as on v5e and v6e.
constexpr int64_t kNear = int64_t{1} << 27;

// The bytes of float32 weights, one for each query and key of each head.
int64_t bytes_of(IntArrayRef scores) {
  return c10::multiply_integers(scores) * static_cast<int64_t>(sizeof(float));
}

// Whether attention is all of a graph, or nearly: nothing computed the query, or the key whose
// gradient is asked for.
bool is_alone(const Tensor& query, const Tensor& key) {
  return query.is_leaf() || (key.is_leaf() && key.requires_grad());
}

// Whether these take a third of that memory or more and no more than all of it: rounded, what waits
// for the backward pass leaves room there. Fewer leave it in any case, and more are nowhere near:
// weights that are computed within the products then take fewer cycles. So they do if attention is
// all of the graph, as nothing else waits.
bool crowd(IntArrayRef scores, bool alone) {
  const int64_t bytes = bytes_of(scores);
  return bytes >= kNear / 3 && bytes <= kNear && !alone;
}

// float16's weights stay float32 unless asked for: their gradients may leave its range. So do those
// of an exact scale: in the gradients of the query and the key the row sums of rounded weights are
// less exact than torch's, by less than a rounded query and key are.
Weights weights_of(ScalarType dtype, double scale, bool crowded) {
  switch (choice.load()) {
    case Choice::kWide:
      return Weights::kWide;
    case Choice::kNarrow:
      return Weights::kNarrow;
    case Choice::kAuto:
      break;
  }
  const bool rounded = dtype == ScalarType::BFloat16 && rounds_operands() && !scales_exactly(scale);
  if (!rounded) return Weights::kWide;
  return crowded ? Weights::kNarrow : Weights::kRounded;
}

// Whether float32 weights would wait for the backward pass in the memory that torch's formula saves
// by its rounding. More of them than are near do not crowd it; if attention is all of the graph and
// not causal, it takes fewer cycles so in any case.
bool is_computed_again(const Form& form, ScalarType dtype, bool alone) {
  return choice == Choice::kAuto && form.kind == Weights::kWide && dtype == ScalarType::BFloat16 &&
         rounds_operands() && ((alone && !form.causal) || bytes_of(form.sizes) <= kNear);
}

// Whether they wait nevertheless. Where a head is as wide as the lanes of a TPU and they are few,
// the second product takes longer than they do. If attention is all of the graph, they leave room
// enough in any case, of causal attention if they are not many, as its row sums are computed beside
// them.
bool is_kept(const Form& form, const Tensor& query, bool alone) {
  if (form.scale >= 1) return false;
  const int64_t bytes = bytes_of(form.sizes);
  if (alone) return !form.causal || bytes <= kNear / 2;
  return query.size(-1) >= kLanes && bytes <= kNear / 4;
}

// ---- the formula

// Products as the mask sees them. Those of a query with a dimension for the queries that share a
// key have as many dimensions as their mask.
Tensor as_scores(const Tensor& products, const Form& form) {
  const bool is_grouped = products.dim() > static_cast<int64_t>(form.sizes.size());
  return is_grouped ? products : viewed(products, form.sizes);
}

// Softmax with zeros where a mask leaves a query no key, and no NaN in the gradients there: `mask`
// is true for what is seen.
Tensor softmax_of_seen(const Tensor& scores, const Tensor& mask) {
  const Tensor rows = mask.logical_not().all(-1, /*keepdim=*/true);
  const Tensor seen = at::where(mask, scores, -kInfinity);
  return at::where(rows, 0.0, at::softmax(at::where(rows, 0.0, seen), -1));
}

// The same where -inf was added to what is not seen. A mask of numbers is often as large as the
// scores, and another pass over it costs more than bounds do. Both change nothing else, as the
// greatest power of a row is 1.
Tensor bounded_softmax(const Tensor& scores) {
  const Tensor bounded = scores.clamp_min(std::numeric_limits<float>::lowest());
  const FiniteExtremes extremes;
  const Tensor powers = scores.sub(bounded.amax({-1}, /*keepdim=*/true)).exp();
  return powers.div(powers.sum({-1}, /*keepdim=*/true).clamp_min(1));
}

Tensor softmax(const Tensor& scores, const std::optional<Tensor>& mask, const Form& form) {
  if (form.causal) return at::softmax(without_later(scores), -1);
  if (!mask) return at::softmax(scores, -1);
  const bool is_bool = mask->scalar_type() == at::kBool;
  return is_bool ? softmax_of_seen(scores, *mask) : bounded_softmax(scores.add(*mask));
}

Tensor weights(const Tensor& query, const Tensor& key, const std::optional<Tensor>& mask,
               const Form& form) {
  // A TPU's compiler has one fusion for a product and its softmax, if there is nothing between
  // them.
  const bool scales_query = form.alone && !form.causal && !at::GradMode::is_enabled();
  const Tensor taken = scales_query ? query.mul(form.scale) : query;
  const Tensor dots = by_width(taken, expanded(key, query, form.batch), form.batch);
  const Tensor products = scales_query ? dots : times(dots, form.scale);
  const Tensor p = viewed(softmax(as_scores(products, form), mask, form), products.sizes());
  return form.kind == Weights::kNarrow ? p.to(query.scalar_type()) : p;
}

// ---- autograd

std::optional<Tensor> optional(const Tensor& t) {
  return t.defined() ? std::optional<Tensor>(t) : std::nullopt;
}

}  // namespace

namespace attention {

variable_list whole_gradients(AutogradContext* ctx, const Saved& saved, const Tensor& grad,
                              const Form& form) {
  const auto& [query, key, value, weights_before, result, mask, kept] = saved;
  // With create_graph the weights are computed again, from operators that differentiate.
  const bool again = at::GradMode::is_enabled();
  std::optional<at::AutoDispatchBelowADInplaceOrView> below_autograd;
  if (!again) below_autograd.emplace();
  const Tensor p = again ? weights(query, key, mask, form) : weights_before;
  const Tensor taken = factor(p, value, form);

  variable_list results(5);
  if (ctx->needs_input_grad(2)) {
    const Tensor of_value = by_rows(drop(taken, kept), grad, form.batch);
    results[2] = times(of_value.sum_to_size(value.sizes()), of_kept(form));
  }
  const bool of_mask = mask && ctx->needs_input_grad(3);
  if (!of_mask && !ctx->needs_input_grad(0) && !ctx->needs_input_grad(1)) return results;

  const Tensor of_kept_weights = by_width(grad, expanded(value, query, form.batch), form.batch);
  const Tensor of_weights = times(drop(of_kept_weights, kept), of_kept(form));
  // What softmax takes off all of a row is the sum of p * of_weights over it, which is also that
  // of grad * result: a sum of fewer numbers, and known before the weights' gradients are.
  const bool by_weights = again || (form.alone && form.causal);
  const Tensor of_row =
      by_weights ? p.mul(of_weights).sum({-1}, /*keepdim=*/true) : row_sums(result, grad);
  Tensor of_scores = p.mul(of_weights.sub(of_row));
  if (of_mask) results[3] = as_scores(of_scores, form).sum_to_size(mask->sizes());
  of_scores = factor(of_scores, query, form);
  if (ctx->needs_input_grad(0)) {
    const Tensor of_query = by_keys(of_scores, expanded(key, query, form.batch), form.batch);
    results[0] = times(of_query, form.scale);
  }
  if (ctx->needs_input_grad(1)) {
    const Tensor of_key = by_rows(of_scores, query, form.batch);
    results[1] = times(of_key.sum_to_size(key.sizes()), form.scale);
  }
  return results;
}

}  // namespace attention

namespace {

// Everything that changes another tensor's dtype in between is exact, but for what form.kind asks
// for. The gradients are float32: the engine rounds them once, or not at all for a leaf whose
// grad_dtype is float32.
class Attention final : public torch::autograd::Function<Attention> {
 public:
  static constexpr bool is_traceable = true;  // by compiled autograd

  static Tensor forward(AutogradContext* ctx, const Tensor& query, const Tensor& key,
                        const Tensor& value, const std::optional<Tensor>& mask, const Form& form) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Tensor p = weights(query, key, mask, form);
    const std::optional<Tensor> kept = draw_kept(p, p.sizes(), form);
    const Tensor taken = drop(factor(p, value, form), kept);
    const Tensor of_value = by_keys(taken, expanded(value, query, form.batch), form.batch);
    const Tensor wide = times(of_value, of_kept(form));
    const Tensor narrow = wide.to(query.scalar_type());
    // Not the result itself, which the program may write to.
    const Tensor result =
        form.kind == Weights::kNarrow ? at::_ops::detach_copy::call(narrow) : wide;
    ctx->save_for_backward(
        {query, key, value, p, result, mask.value_or(Tensor()), kept.value_or(Tensor())});
    save(ctx, form);
    return narrow;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Saved tensors{saved[0], saved[1],           saved[2],          saved[3],
                        saved[4], optional(saved[5]), optional(saved[6])};
    return whole_gradients(ctx, tensors, grads[0], saved_form(ctx));
  }
};

// ---- which calls

bool is_empty(const Tensor& t) {
  return t.dim() < 2 || t.numel() == 0;
}

// Whether a mask of these sizes is one for scores of those. torch takes no others, and says why.
bool is_mask_of(const Tensor& mask, IntArrayRef scores, ScalarType dtype) {
  const ScalarType type = mask.scalar_type();
  return is_plain(mask, /*traced=*/true) &&
         (type == at::kBool || type == at::kFloat || type == dtype) &&
         at::is_expandable_to(mask.sizes(), scores);
}

// How many heads of the query share one of `t`, the key or the value.
int64_t group(const Tensor& query, const Tensor& t, bool enable_gqa) {
  if (query.dim() < 3 || t.dim() != query.dim()) return 1;
  const int64_t heads = query.size(-3), own = t.size(-3);
  return (enable_gqa || own == 1) && heads % own == 0 ? heads / own : 1;
}

// The sizes of a query, `shared` of whose heads have a key and a value in common. On a TPU they get
// a dimension of their own. Rows of one matrix, as elsewhere, would have their mask made in memory.
std::vector<int64_t> grouped(IntArrayRef sizes, int64_t shared) {
  std::vector<int64_t> found = sizes.vec();
  found.end()[-3] /= shared;
  if (is_for_tpu()) {
    found.insert(found.end() - 2, shared);
  } else {
    found.end()[-2] *= shared;
  }
  return found;
}

// A mask of scores that have such a dimension.
Tensor grouped(const Tensor& mask, int64_t shared) {
  if (mask.dim() < 3) return mask;
  return mask.size(-3) == 1 ? mask.unsqueeze(-3)
                            : mask.unflatten(-3, {mask.size(-3) / shared, shared});
}

// Whether the key, or the value, has all batches of a query of these sizes, or one for them.
bool reaches(const Tensor& t, IntArrayRef query, int64_t batch) {
  std::vector<int64_t> sizes = query.slice(0, batch).vec();
  sizes.push_back(t.size(-2));
  sizes.push_back(t.size(-1));
  return at::is_expandable_to(t.sizes(), sizes);
}

// Few tokens that fill no tiles, with a mask, as the 77 words of a CLIP: on a TPU their scores
// would be written in float32, where the compiler fuses torch's formula.
bool fill_no_tiles(const Tensor& query, const Tensor& key) {
  constexpr int64_t kFew = 128;
  return query.sizes() == key.sizes() && query.size(-2) < kFew && query.size(-2) % kTileRows != 0;
}

std::vector<int64_t> sizes_of_scores(const Tensor& query, const Tensor& key) {
  std::vector<int64_t> sizes = query.sizes().vec();
  sizes.back() = key.size(-2);
  return sizes;
}

// Heads that fill a quarter of the lanes or less, and causal attention of few keys that is all of a
// graph. v5e's compiler fuses torch's formula there, and takes up to 2.6 times as long for another
// one. v6e's does not, but which of them it is to be is not known.
bool have_few_scores(const Tensor& query, const Tensor& key, bool causal, double scale) {
  constexpr int64_t kFew = 256;
  if (query.scalar_type() != ScalarType::BFloat16 || !rounds_operands()) return false;
  const bool few = key.size(-2) <= kFew;
  if (query.size(-1) > kLanes / 4) {
    return few && causal && query.requires_grad() && is_alone(query, key);
  }
  return few || (scales_exactly(scale) && bytes_of(sizes_of_scores(query, key)) <= kNear);
}

// Tokens that fill no tiles, as the 257 of an image or the 511 before the last one of a text: v5e's
// compiler copies what the products take and give, less of it in torch's formula, which takes up to
// 2.7 times as long in training otherwise. Many scores are in layouts in which it does not, and so
// are those of fewer or more tokens, or of heads that share a key. Where attention is all of a
// graph, only causal attention's are copied.
bool leave_part_of_a_tile(const Tensor& query, const Tensor& key, bool causal) {
  if (query.scalar_type() != ScalarType::BFloat16 || !rounds_operands()) return false;
  constexpr int64_t kLeast = 64, kMost = 640;
  const int64_t tokens = query.size(-2);
  if (!query.requires_grad() || query.sizes() != key.sizes()) return false;
  if (tokens < kLeast || tokens > kMost || tokens % kTileRows == 0) return false;
  const int64_t bytes = bytes_of(sizes_of_scores(query, key));
  return causal ? bytes < kNear : !query.is_leaf() && bytes < kNear / 3;
}

bool is_better_by_torch(const Tensor& query, const Tensor& key, const std::optional<Tensor>& mask,
                        double dropout, bool causal, double scale) {
  if (!is_for_tpu() || choice != Choice::kAuto) return false;
  if (mask ? fill_no_tiles(query, key) : have_few_scores(query, key, causal, scale)) return true;
  return dropout == 0 && leave_part_of_a_tile(query, key, causal);
}

std::optional<Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                const std::optional<Tensor>& mask, double dropout, bool causal,
                                std::optional<double> scale, bool enable_gqa) {
  const ScalarType dtype = query.scalar_type();
  if (!is_half(dtype) || at::globalContext().allowFP16BF16ReductionMathSDP()) return std::nullopt;
  for (const Tensor* t : {&query, &key, &value}) {
    if (!is_plain(*t, /*traced=*/true) || t->scalar_type() != dtype) return std::nullopt;
  }
  if (is_empty(query) || is_empty(key) || is_empty(value) || query.size(-1) != key.size(-1) ||
      key.size(-2) != value.size(-2)) {
    return std::nullopt;
  }
  const int64_t shared = group(query, key, enable_gqa);
  if (shared != group(query, value, enable_gqa)) return std::nullopt;

  const double by = scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  if (is_better_by_torch(query, key, mask, dropout, causal, by)) return std::nullopt;
  Form form{by,    dropout, causal,          Weights::kWide,
            false, false,   query.dim() - 2, sizes_of_scores(query, key)};
  const bool alone = is_alone(query, key);
  form.kind = weights_of(dtype, by, crowd(form.sizes, alone));
  form.again = !mask && is_computed_again(form, dtype, alone);
  form.alone = form.again && is_kept(form, query, alone);
  form.again = form.again && !form.alone;
  if (!(dropout >= 0 && dropout < 1)) return std::nullopt;
  if (mask && (causal || !is_mask_of(*mask, form.sizes, dtype))) return std::nullopt;

  const std::vector<int64_t> rows =
      shared > 1 ? grouped(query.sizes(), shared) : query.sizes().vec();
  if (!reaches(key, rows, form.batch) || !reaches(value, rows, form.batch)) return std::nullopt;
  const Tensor taken = shared > 1 ? query.reshape(rows) : query;
  const std::optional<Tensor> seen =
      mask && taken.dim() > query.dim() ? grouped(*mask, shared) : mask;
  const Tensor result = is_in_slices(taken, key, form)
                            ? in_slices(taken, key, value, form)
                            : Attention::apply(taken, key, value, seen, form);
  std::vector<int64_t> sizes = query.sizes().vec();
  sizes.back() = value.size(-1);
  return shared > 1 ? result.view(sizes) : result;
}

// ---- registration

struct NativeAttention;
using Op = at::_ops::scaled_dot_product_attention;

struct Kernels {
  template <c10::DispatchKey dispatch_key>
  static Tensor call(c10::DispatchKeySet keys, const Tensor& query, const Tensor& key,
                     const Tensor& value, const std::optional<Tensor>& mask, double dropout,
                     bool causal, std::optional<double> scale, bool enable_gqa) {
    if (auto result = attention(query, key, value, mask, dropout, causal, scale, enable_gqa)) {
      return *std::move(result);
    }
    return Overridden<NativeAttention, Op, dispatch_key>::call(keys, query, key, value, mask,
                                                               dropout, causal, scale, enable_gqa);
  }
};

void install() {
  library(torch::Library::FRAGMENT, "castoff", std::nullopt)
      .def("optimization_barrier(Tensor[] tensors) -> Tensor[]");
  override_above_autograd<NativeAttention, Op, Kernels>();
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_native_attention_install)

extern "C" {

// 0: auto, 1: wide, 2: narrow.
__attribute__((visibility("default"))) void castoff_native_attention_choose(int choice) {
  castoff::choice = static_cast<castoff::Choice>(choice);
}

__attribute__((visibility("default"))) void castoff_native_attention_trace_for_tpu(int enable) {
  castoff::traced_for_tpu = enable != 0;
}

__attribute__((visibility("default"))) void castoff_native_attention_default_precision(int set) {
  castoff::default_precision = set != 0;
}

// What kind of weights bfloat16 attention has here, of scores that torch's formula does not compute
// exactly: 0 wide, 1 rounded, 2 narrow.
__attribute__((visibility("default"))) int castoff_native_attention_weights() {
  return static_cast<int>(castoff::weights_of(at::kBFloat16, 0.125, false));
}

}  // extern "C"
