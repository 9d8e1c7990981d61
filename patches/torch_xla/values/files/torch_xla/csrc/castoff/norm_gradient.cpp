// The gradient of a layer_norm or group_norm that is computed in float32 for rows of bfloat16 or
// float16.
//
// torch computes these by a batch norm of one image, whose channels are the rows or the groups. XLA
// makes of that operator's gradient sums that are divided by the variance once for each element,
// and a TPU's compiler writes an array of those to memory. Here it is a formula of the normalised
// rows and of two means.

#include "torch_xla/csrc/castoff/norm_gradient.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/view_copy.h>

#include <utility>

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/target.h"

namespace castoff {
namespace {

using at::Tensor;
using lazy_ir::OpKind;
using lazy_ir::Value;

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
// XLA's own.
bool are_widened(const Tensor& rows) {
  static const OpKind cast = OpKind::Get("xla::cast");
  const Value source = viewed(rows);
  return source && source.node->op() == cast;
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
  const at::AutoDispatchBelowADInplaceOrView below;
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

void mend_norm_gradient(torch::Library& xla) {
  remedy(xla, gradient, {{"aten::native_batch_norm_backward", ""}});
}

}  // namespace castoff
