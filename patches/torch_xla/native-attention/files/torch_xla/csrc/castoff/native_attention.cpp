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
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "torch_xla/csrc/castoff/dot_general.h"
#include "torch_xla/csrc/castoff/kernels.h"
#include "torch_xla/csrc/castoff/target.h"

namespace castoff {
namespace {

using at::IntArrayRef;
using at::ScalarType;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- which weights

// What the softmax of the scores is: float32 (kWide); float32 that is rounded to the operands'
// dtype for its products, and its gradient alike (kRounded); or of that dtype from the start, which
// takes half the memory (kNarrow).
enum class Weights : int64_t { kWide, kRounded, kNarrow };

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

// float16's weights stay float32 unless asked for: their gradients may leave its range. So do those
// of an exact scale: in the gradients of the query and the key the row sums of rounded weights are
// less exact than torch's, by less than a rounded query and key are.
Weights weights_of(ScalarType dtype, double scale) {
  switch (choice.load()) {
    case Choice::kWide:
      return Weights::kWide;
    case Choice::kNarrow:
      return Weights::kNarrow;
    case Choice::kAuto:
      break;
  }
  const bool rounded = dtype == ScalarType::BFloat16 && rounds_operands() && !scales_exactly(scale);
  return rounded ? Weights::kRounded : Weights::kWide;
}

// ---- the formula

// What is no tensor in a call. `sizes` are those of the scores, one for each query and key of each
// head; queries of several heads that share a key are rows of one matrix in the products.
struct Form {
  double scale;
  double dropout;
  bool causal;
  Weights kind;
  std::vector<int64_t> sizes;
};

// The product over a dimension of each of two tensors that have all but the last two in common.
Tensor product(const Tensor& lhs, int64_t lhs_dim, const Tensor& rhs, int64_t rhs_dim) {
  std::vector<int64_t> batch(lhs.dim() - 2);
  std::iota(batch.begin(), batch.end(), 0);
  return dot_general(lhs, rhs, {lhs.dim() + lhs_dim}, {rhs.dim() + rhs_dim}, batch,
                     ScalarType::Float);
}

// `t`, the key or the value, for each batch of the query.
Tensor expanded(const Tensor& t, const Tensor& query) {
  std::vector<int64_t> sizes = query.sizes().vec();
  sizes.end()[-2] = t.size(-2);
  sizes.end()[-1] = t.size(-1);
  return t.sizes() == IntArrayRef(sizes) ? t : t.expand(sizes);
}

// The sums over each row of the products of the elements of two matrices, in float32.
Tensor row_sums(const Tensor& lhs, const Tensor& rhs) {
  std::vector<int64_t> batch(lhs.dim() - 1);
  std::iota(batch.begin(), batch.end(), 0);
  return dot_general(lhs, rhs, {lhs.dim() - 1}, {lhs.dim() - 1}, batch, ScalarType::Float)
      .unsqueeze(-1);
}

Tensor times(const Tensor& t, double factor) {
  return factor == 1 ? t : t.mul(factor);
}

Tensor viewed(const Tensor& t, IntArrayRef sizes) {
  return t.sizes() == sizes ? t : t.view(sizes);
}

// Softmax with zeros where a mask leaves a query no key. Both bounds change nothing else, as the
// greatest number of a row is 1 before the division.
Tensor masked_softmax(const Tensor& scores) {
  const Tensor greatest =
      scores.amax({-1}, /*keepdim=*/true).clamp_min(std::numeric_limits<float>::lowest());
  const Tensor powers = scores.sub(greatest).exp();
  return powers.div(powers.sum({-1}, /*keepdim=*/true).clamp_min(1));
}

Tensor weights(const Tensor& query, const Tensor& key, const std::optional<Tensor>& mask,
               const Form& form) {
  const Tensor products = times(product(query, -1, expanded(key, query), -1), form.scale);
  Tensor scores = viewed(products, form.sizes);
  if (form.causal) {
    const IntArrayRef matrix = IntArrayRef(form.sizes).slice(form.sizes.size() - 2);
    const Tensor earlier = at::ones(matrix, query.options().dtype(at::kBool)).tril();
    scores = at::where(earlier, scores, -kInfinity);
  } else if (mask) {
    scores =
        mask->scalar_type() == at::kBool ? at::where(*mask, scores, -kInfinity) : scores.add(*mask);
  }
  const Tensor p =
      viewed(mask ? masked_softmax(scores) : at::softmax(scores, -1), products.sizes());
  return form.kind == Weights::kNarrow ? p.to(query.scalar_type()) : p;
}

// The weights, or their gradient, as the products take them.
Tensor factor(const Tensor& t, const Tensor& operand, const Form& form) {
  return form.kind == Weights::kWide ? t : t.to(operand.scalar_type());
}

// Which weights dropout keeps, drawn as torch draws them, in float32.
std::optional<Tensor> draw_kept(const Tensor& weights, const Form& form) {
  if (form.dropout == 0) return std::nullopt;
  const Tensor drawn = at::empty(form.sizes, weights.options().dtype(at::kFloat));
  return viewed(drawn.bernoulli_(1 - form.dropout).ne(0), weights.sizes());
}

// The rest of dropout, a factor, is cheaper where there are fewer numbers.
double of_kept(const Form& form) {
  return 1 / (1 - form.dropout);
}

Tensor drop(const Tensor& t, const std::optional<Tensor>& kept) {
  return kept ? at::where(*kept, t, 0.0) : t;
}

// ---- autograd

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
    const std::optional<Tensor> kept = draw_kept(p, form);
    const Tensor taken = drop(factor(p, value, form), kept);
    const Tensor wide = times(product(taken, -1, expanded(value, query), -2), of_kept(form));
    const Tensor narrow = wide.to(query.scalar_type());
    // Not the result itself, which the program may write to.
    const Tensor result =
        form.kind == Weights::kNarrow ? at::_ops::detach_copy::call(narrow) : wide;
    ctx->save_for_backward(
        {query, key, value, p, result, mask.value_or(Tensor()), kept.value_or(Tensor())});
    auto& data = ctx->saved_data;
    data["scale"] = form.scale;
    data["dropout"] = form.dropout;
    data["causal"] = form.causal;
    data["kind"] = static_cast<int64_t>(form.kind);
    data["sizes"] = form.sizes;
    return narrow;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &query = saved[0], &key = saved[1], &value = saved[2], &result = saved[4];
    const auto mask = optional(saved[5]), kept = optional(saved[6]);
    auto& data = ctx->saved_data;
    const Form form{data["scale"].toDouble(), data["dropout"].toDouble(), data["causal"].toBool(),
                    static_cast<Weights>(data["kind"].toInt()), data["sizes"].toIntVector()};
    const Tensor& grad = grads[0];

    // With create_graph the weights are computed again, from operators that differentiate.
    const bool again = at::GradMode::is_enabled();
    std::optional<at::AutoDispatchBelowADInplaceOrView> below_autograd;
    if (!again) below_autograd.emplace();
    const Tensor p = again ? weights(query, key, mask, form) : saved[3];
    const Tensor taken = factor(p, value, form);

    variable_list results(5);
    if (ctx->needs_input_grad(2)) {
      const Tensor of_value = product(drop(taken, kept), -2, grad, -2);
      results[2] = times(of_value.sum_to_size(value.sizes()), of_kept(form));
    }
    const bool of_mask = mask && ctx->needs_input_grad(3);
    if (!of_mask && !ctx->needs_input_grad(0) && !ctx->needs_input_grad(1)) return results;

    const Tensor of_kept_weights = product(grad, -1, expanded(value, query), -1);
    const Tensor of_weights = times(drop(of_kept_weights, kept), of_kept(form));
    // What softmax takes off all of a row is the sum of p * of_weights over it, which is also that
    // of grad * result: a sum of fewer numbers, and known before the weights' gradients are.
    const Tensor of_row =
        again ? p.mul(of_weights).sum({-1}, /*keepdim=*/true) : row_sums(result, grad);
    Tensor of_scores = p.mul(of_weights.sub(of_row));
    if (of_mask) results[3] = viewed(of_scores, form.sizes).sum_to_size(mask->sizes());
    of_scores = factor(of_scores, query, form);
    if (ctx->needs_input_grad(0)) {
      results[0] = times(product(of_scores, -1, expanded(key, query), -2), form.scale);
    }
    if (ctx->needs_input_grad(1)) {
      const Tensor of_key = product(of_scores, -2, query, -2);
      results[1] = times(of_key.sum_to_size(key.sizes()), form.scale);
    }
    return results;
  }

 private:
  static std::optional<Tensor> optional(const Tensor& t) {
    return t.defined() ? std::optional<Tensor>(t) : std::nullopt;
  }
};

// ---- which calls

// An XLA tensor that nothing but autograd, functionalization or a tracer of torch.compile looks at.
bool is_plain(const Tensor& t) {
  using c10::impl::TorchDispatchModeTLS;
  static const DispatchKeySet transforms = DispatchKeySet(
      {DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper, DispatchKey::Batched});
  return t.is_xla() && !t.is_nested() && !t.key_set().has_any(transforms) &&
         (!t.key_set().has(DispatchKey::Python) || TorchDispatchModeTLS::any_modes_set()) &&
         !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
         !torch::autograd::isFwGradDefined(t);
}

bool is_empty(const Tensor& t) {
  return t.dim() < 2 || t.numel() == 0;
}

// Whether a mask of these sizes is one for scores of those. torch takes no others, and says why.
bool is_mask_of(const Tensor& mask, IntArrayRef scores, ScalarType dtype) {
  const ScalarType type = mask.scalar_type();
  return mask.defined() && is_plain(mask) &&
         (type == at::kBool || type == at::kFloat || type == dtype) &&
         at::is_expandable_to(mask.sizes(), scores);
}

// How many heads of the query share one of `t`, the key or the value.
int64_t group(const Tensor& query, const Tensor& t, bool enable_gqa) {
  if (query.dim() < 3 || t.dim() != query.dim()) return 1;
  const int64_t heads = query.size(-3), own = t.size(-3);
  return (enable_gqa || own == 1) && heads % own == 0 ? heads / own : 1;
}

std::optional<Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                const std::optional<Tensor>& mask, double dropout, bool causal,
                                std::optional<double> scale, bool enable_gqa) {
  const ScalarType dtype = query.scalar_type();
  if (!is_half(dtype) || !is_plain(query) || !is_plain(key) || !is_plain(value) ||
      key.scalar_type() != dtype || value.scalar_type() != dtype ||
      at::globalContext().allowFP16BF16ReductionMathSDP()) {
    return std::nullopt;
  }
  if (is_empty(query) || is_empty(key) || is_empty(value) || query.size(-1) != key.size(-1) ||
      key.size(-2) != value.size(-2)) {
    return std::nullopt;
  }
  const int64_t shared = group(query, key, enable_gqa);
  if (shared != group(query, value, enable_gqa)) return std::nullopt;

  const double by = scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  Form form{by, dropout, causal, weights_of(dtype, by), query.sizes().vec()};
  form.sizes.back() = key.size(-2);
  if (!(dropout >= 0 && dropout < 1)) return std::nullopt;
  if (mask && (causal || !is_mask_of(*mask, form.sizes, dtype))) return std::nullopt;

  std::vector<int64_t> rows = query.sizes().vec();
  if (shared > 1) {
    rows[rows.size() - 3] /= shared;
    rows[rows.size() - 2] *= shared;
  }
  const auto reaches_all_rows = [&](const Tensor& t) {
    std::vector<int64_t> sizes = rows;
    sizes.end()[-2] = t.size(-2);
    sizes.end()[-1] = t.size(-1);
    return at::is_expandable_to(t.sizes(), sizes);
  };
  if (!reaches_all_rows(key) || !reaches_all_rows(value)) return std::nullopt;
  const Tensor result =
      Attention::apply(shared > 1 ? query.reshape(rows) : query, key, value, mask, form);
  std::vector<int64_t> sizes = query.sizes().vec();
  sizes.back() = value.size(-1);
  return shared > 1 ? result.view(sizes) : result;
}

// ---- registration

struct NativeAttention;

template <DispatchKey dispatch_key>
Tensor kernel(DispatchKeySet keys, const Tensor& query, const Tensor& key, const Tensor& value,
              const std::optional<Tensor>& mask, double dropout, bool causal,
              std::optional<double> scale, bool enable_gqa) {
  if (auto result = attention(query, key, value, mask, dropout, causal, scale, enable_gqa)) {
    return *std::move(result);
  }
  using Op = at::_ops::scaled_dot_product_attention;
  return Overridden<NativeAttention, Op, dispatch_key>::call(keys, query, key, value, mask, dropout,
                                                             causal, scale, enable_gqa);
}

// AutogradXLA is what most calls meet; in inference mode it is Functionalize, or XLA where
// functionalization is off.
template <DispatchKey dispatch_key>
void install_on() {
  torch::Library& aten = library(torch::Library::IMPL, "aten", dispatch_key);
  Overridden<NativeAttention, at::_ops::scaled_dot_product_attention, dispatch_key>::by(
      aten, TORCH_FN(kernel<dispatch_key>));
}

void install() {
  const QuietOverride quiet;
  install_on<DispatchKey::AutogradXLA>();
  install_on<DispatchKey::Functionalize>();
  install_on<DispatchKey::XLA>();
}

}  // namespace
}  // namespace castoff

extern "C" {

// Puts the kernels in place; nullptr, or what went wrong. Call it once.
__attribute__((visibility("default"))) const char* castoff_native_attention_install() {
  return castoff::put_in_place(castoff::install);
}

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
  return static_cast<int>(castoff::weights_of(at::kBFloat16, 0.125));
}

}  // extern "C"
