// Batch, layer and group norms, computed in float32, and the gradients of the last two.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/view_copy.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/target.h"
#include "torch_xla/csrc/castoff/values.h"
#include "torch_xla/csrc/castoff/wide.h"

namespace castoff {
namespace {

using lazy_ir::OpKind;
using lazy_ir::Value;

// ---- forward

// input, weight, bias, running_mean, running_var, …: the statistics are written to.
void batch_norm(Call& call) {
  const bool is_met = call.tensor(0).scalar_type() == ScalarType::Half;
  if (C10_LIKELY(!is_met) || !have_dtype(call, ScalarType::Half)) return call.proceed();
  std::vector<std::pair<Tensor, Tensor>> written;
  for (size_t i : {3, 4}) {
    if (!is_half_tensor(call[i])) continue;
    written.emplace_back(call.tensor(i), widened(call.tensor(i)));
    call[i] = written.back().second;
  }
  widen(call);
  call.proceed();
  round(call, ScalarType::Half);
  const Below below;
  for (auto& [statistic, wide] : written) statistic.copy_(wide);
}

// A normalised input by the weight and plus the bias, which are arguments 2 and 3 where they are.
Tensor scaled(Call& call, Tensor result) {
  if (is_tensor(call[2])) result = result * call.tensor(2);
  if (is_tensor(call[3])) result = result + call.tensor(3);
  return result;
}

// input, normalized_shape, weight, bias, eps. torch's formula for XLA gives results that are not
// differentiable. Above autograd.
void layer_norm_of_nothing(Call& call) {
  const Tensor input = call.tensor(0);
  const Tensor result = scaled(call, input.clone());
  auto shape = input.sizes().vec();
  const auto normalized = static_cast<int64_t>(call[1].toIntVector().size());
  if (normalized > input.dim()) return call.proceed();  // which refuses it
  std::fill(shape.end() - normalized, shape.end(), 1);
  const Tensor statistic = at::zeros(shape, input.options());
  call.answer(result.to(input.scalar_type()), statistic, statistic.clone());
}

// The formula, of tensors that torch.compile(dynamic=True) traces: torch's own for XLA asks for
// their number of elements. Above autograd.
void layer_norm_of_symbolic_sizes(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  const Tensor input = is_half(dtype) ? call.tensor(0).to(ScalarType::Float) : call.tensor(0);
  std::vector<int64_t> dims(call[1].toList().size());
  if (static_cast<int64_t>(dims.size()) > input.dim()) return call.proceed();  // which refuses it
  std::iota(dims.begin(), dims.end(), -static_cast<int64_t>(dims.size()));
  const Tensor mean = input.mean(dims, /*keepdim=*/true);
  const Tensor centered = input - mean;
  const Tensor variance = centered.square().mean(dims, /*keepdim=*/true);
  const Tensor inverse = (variance + call[4].toDouble()).rsqrt();
  const Tensor result = scaled(call, centered * inverse);
  call.answer(result.to(dtype), mean, inverse);
}

// input, normalized_shape, …: on a TPU tokens in rows that fill no tiles, as the 28 x 28 of a Swin,
// are one dimension, since each row would be padded. Not what was permuted, as ConvNeXt's, which
// has the layout of a convolution.
void layer_norm(Call& call) {
  const Tensor input = call.tensor(0);
  if (C10_UNLIKELY(input.unsafeGetTensorImpl()->has_symbolic_sizes_strides())) {
    return layer_norm_of_symbolic_sizes(call);
  }
  if (C10_UNLIKELY(input.numel() == 0)) return layer_norm_of_nothing(call);
  const bool is_padded = is_for_tpu() && is_half(input.scalar_type()) && input.dim() > 3 &&
                         call[1].toIntVector().size() == 1 && input.size(-2) % kTileRows != 0 &&
                         input.is_contiguous();
  if (C10_LIKELY(!is_padded)) return compute_wide_with_gradients<is_computed_wide>(call);
  call[0] = input.flatten(1, -2);
  compute_wide_with_gradients<is_computed_wide>(call);
  for (size_t i = 0; i < call.results(); ++i) {
    const Tensor result = call.result(i).toTensor();
    call.result(i) = result.unflatten(1, input.sizes().slice(1, input.dim() - 2));
  }
}

// ---- the gradient of a layer_norm or group_norm of widened rows
//
// torch computes these by a batch norm of one image, whose channels are the rows or the groups. XLA
// makes of that operator's gradient sums that are divided by the variance once for each element,
// and a TPU's compiler writes an array of those to memory. Here it is a formula of the normalised
// rows and of two means.

// With as many, a ViT's layer takes more cycles than by XLA's own.
constexpr int64_t kManyElements = 1 << 22;

// grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps,
// output_mask.
constexpr size_t kWeight = 2, kRunning[] = {3, 4}, kSaved[] = {5, 6}, kTrain = 7, kMask = 9;

// What the pending rows are a view of; an empty value if they may have a sharding.
Value viewed(const Tensor& rows) {
  static const OpKind view = OpKind::Get("aten::view");
  if (!lazy_ir::ready(rows)) return {};
  const Value value = lazy_ir::unsharded_value(rows);
  return value && value.node->op() == view ? lazy_ir::operand(*value.node, 0) : Value();
}

// Whether these are the rows of a narrower tensor, widened: layers in float32 take fewer cycles by
// XLA's own. So do those of what was permuted, as ConvNeXt's, which has the layout of a
// convolution.
bool are_widened(const Tensor& rows) {
  static const OpKind cast = OpKind::Get("xla::cast"), permute = OpKind::Get("aten::permute");
  const Value source = viewed(rows);
  if (!source || source.node->op() != cast) return false;
  return lazy_ir::operand(*source.node, 0).node->op() != permute;
}

// Whether this is the gradient of what a weight multiplied: without one, as in a diffusion
// transformer, a layer takes fewer cycles by XLA's own.
bool is_weighted(const Tensor& grad) {
  static const OpKind mul = OpKind::Get("aten::mul");
  const Value source = viewed(grad);
  return source && source.node->op() == mul;
}

bool is_of_rows(Call& call) {
  const Tensor& input = call.tensor(1);
  const bool is_one_image = input.dim() == 3 && input.size(0) == 1;
  if (!is_one_image || input.scalar_type() != at::ScalarType::Float) return false;
  if (input.numel() == 0 || input.numel() >= kManyElements || !call[kTrain].toBool()) return false;
  for (size_t i : kRunning) {
    if (is_tensor(call[i])) return false;
  }
  for (size_t i : kSaved) {
    const bool is_saved = is_tensor(call[i]) && call.tensor(i).numel() == input.size(1) &&
                          call.tensor(i).scalar_type() == input.scalar_type();
    if (!is_saved) return false;
  }
  return !is_tensor(call[kWeight]) && call[kMask].toBoolList()[0] &&
         call.tensor(0).scalar_type() == input.scalar_type() && is_weighted(call.tensor(0)) &&
         are_widened(input);
}

void gradient(Call& call) {
  if (C10_LIKELY(!is_for_tpu()) || !is_of_rows(call)) return call.proceed();
  const Below below;
  const Tensor &grad = call.tensor(0), &input = call.tensor(1);
  const auto of_rows = [&](size_t i) {
    return at::view_copy(call.tensor(kSaved[i]), {1, input.size(1), 1});
  };
  const Tensor scale = of_rows(1), rows = (input - of_rows(0)) * scale;
  const auto mean = [](const Tensor& t) { return t.mean(-1, /*keepdim=*/true); };
  Tensor result = (grad - mean(grad) - rows * mean(grad * rows)) * scale;
  call.answer(std::move(result), Tensor(), Tensor());
}

}  // namespace

void mend_normalization(torch::Library& xla, torch::Library& autograd) {
  remedy(xla, batch_norm, "_native_batch_norm_legit native_batch_norm");
  remedy(xla, gradient, "native_batch_norm_backward");
  remedy(autograd, layer_norm, "native_layer_norm", kAutograd);
  remedy(autograd, compute_wide_with_gradients<is_computed_wide>, "native_group_norm", kAutograd);
}

}  // namespace castoff
