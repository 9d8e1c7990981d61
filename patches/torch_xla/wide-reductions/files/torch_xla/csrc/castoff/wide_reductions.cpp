// Means, norms, softmax, pooling and losses of bfloat16 and float16, computed in float32 and
// rounded once, as torch's CPU and CUDA kernels do. With dtype= the operand is converted first, as
// torch documents. Of sums, those that a backward pass adds.

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/view_copy_ops.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/joined_heads.h"
#include "torch_xla/csrc/castoff/read_by_losses.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/target.h"
#include "torch_xla/csrc/castoff/wide.h"

namespace castoff {
namespace {

// ---- what losses read

ReadByLosses& read_by_losses() {
  static auto& arrays = *new ReadByLosses();
  return arrays;
}

// Notes what is summed to one number. Only a TPU's compiler fuses that with other sums.
template <Remedy compute>
void noted(Call& call) {
  if (C10_LIKELY(!is_for_tpu())) return compute(call);
  std::vector<at::Tensor> read;
  for (size_t i = 0; i < call.size(); ++i) {
    if (is_tensor(call[i]) && call.tensor(i).is_floating_point()) read.push_back(call.tensor(i));
  }
  compute(call);
  if (call.result().toTensor().numel() != 1) return;
  for (const at::Tensor& t : read) read_by_losses().add(t);
}

// ---- reductions with dtype=, which is argument `dtype`

template <size_t dtype>
void reduce_wide(Call& call) {
  const ScalarType from = call.tensor(0).scalar_type();
  const ScalarType to = call[dtype].isNone() ? from : call[dtype].toScalarType();
  if (C10_LIKELY(from == to && !is_half(from))) return call.proceed();
  if (from != to) call[0] = cast(call.tensor(0), to);
  if (!is_half(to)) return call.proceed();
  call[0] = cast(call.tensor(0), ScalarType::Float);
  call[dtype] = ScalarType::Float;
  call.proceed();
  round(call, to);
}

// ---- sums in a backward pass

// bfloat16 has 8 digits: adding ones, a sum stays at 256.
constexpr int64_t kManyElements = 256;

// How many elements each sum adds up; `dims` is argument 1, or absent for all.
int64_t summands(Call& call, bool has_dims) {
  const at::Tensor& x = call.tensor(0);
  if (!has_dims || call[1].isNone() || call[1].toIntVector().empty()) return x.numel();
  int64_t count = 1;
  for (const int64_t dim : call[1].toIntVector()) count *= x.size(dim);
  return count;
}

// A TPU's compiler sums bfloat16 in float32 by itself, and takes a sum of widened numbers for one
// of bfloat16. But it fuses sums over one array only where these are of one dtype: the gradient of
// a bias would be another pass over what a loss sums in float32. What is computed in float32 stays
// so; adding the least number of float32, which is 0 on a TPU, is the cheapest that changes
// nothing. (A clamp without bounds loses NaN on XLA:CPU.)
at::Tensor kept_wide(const at::Tensor& t) {
  return at::_ops::add_Scalar::redispatch(kXla, t, std::numeric_limits<float>::denorm_min(), 1);
}

at::Tensor sum_over(const at::Tensor& t, at::IntArrayRef dims) {
  return at::_ops::sum_dim_IntList::redispatch(kXla, t, dims, /*keepdim=*/false, /*dtype=*/{});
}

// Sums over the last dimension, as those of a channel, or over tokens: those that were measured to
// gain.
bool gains_by_one_dtype(Call& call) {
  const at::Tensor& x = call.tensor(0);
  if (call[1].isNone() || x.dim() < 2) return false;
  const std::vector<int64_t> dims = call[1].toIntVector();
  const bool is_over_columns = std::find(dims.begin(), dims.end(), x.dim() - 1) != dims.end();
  return is_over_columns ? x.size(-1) > 1 : x.dim() == 3;
}

// On a TPU the gradient of a normalisation's bias, which sums what was widened for it, is one of
// float32, as that of the weight is.
bool is_of_a_norms_bias(Call& call, bool has_dims) {
  return has_dims && is_for_tpu() && call.tensor(0).scalar_type() == ScalarType::Float &&
         gains_by_one_dtype(call) && is_widened(call.tensor(0));
}

// The gradient of the bias of attention's query, key or value, whose heads were joined. Where the
// tokens are no multiple of 8, the rows of a TPU's tile, joining them moves the whole, and does so
// once more for this sum if it is of what was joined.
bool sums_heads(Call& call) {
  constexpr int64_t kRows = 8;
  const at::Tensor joined = call.tensor(0);
  if (joined.dim() != 3 || joined.size(1) % kRows == 0 || call[1].isNone() ||
      call[1].toIntVector() != std::vector<int64_t>{0, 1}) {
    return false;
  }
  const at::Tensor heads = before_heads_were_joined(joined);
  if (!heads.defined()) return false;
  const at::Tensor over_tokens = kept_wide(sum_over(widened(heads), 2));
  const int64_t width = joined.size(2);
  const auto sizes = call[2].toBool() ? std::vector<int64_t>{1, 1, width} : std::vector{width};
  const at::Tensor result = at::_ops::view_copy::redispatch(kXla, sum_over(over_tokens, 0),
                                                            c10::fromIntArrayRefSlow(sizes));
  call.answer(cast(result, joined.scalar_type()));
  return true;
}

// The gradient of an operand that was broadcast, such as a bias, is a sum that the program does not
// write. One that it writes has the dtype= that it gives.
template <size_t dtype>
void sum(Call& call) {
  if (!call[dtype].isNone() || torch::autograd::get_current_graph_task_id() == -1) {
    return call.proceed();
  }
  if (!is_half_tensor(call[0])) {
    if (is_of_a_norms_bias(call, dtype == 3)) call[0] = kept_wide(call.tensor(0));
    return call.proceed();
  }
  if (dtype == 3 && is_for_tpu() && sums_heads(call)) return;
  if (summands(call, dtype == 3) < kManyElements ||
      (is_for_tpu() && !read_by_losses().have_one_source_with(call.tensor(0)))) {
    return call.proceed();
  }
  const ScalarType to = call.tensor(0).scalar_type();
  widen(call);
  if (is_for_tpu()) call[0] = kept_wide(call.tensor(0));
  call.proceed();
  round(call, to);
}

// The gradient of a bias, which XLA:CPU sums in bfloat16.
// grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups,
// output_mask
void convolution_backward(Call& call) {
  if (C10_LIKELY(!is_half_tensor(call[0])) || is_for_tpu()) return call.proceed();
  c10::List<bool> mask = call[9].toBoolList().copy();
  const at::Tensor grad = call.tensor(0);
  if (!mask[2] || grad.size(1) * kManyElements > grad.numel()) return call.proceed();
  std::vector<int64_t> dims(grad.dim() - 1);
  for (size_t i = 1; i < dims.size(); ++i) dims[i] = static_cast<int64_t>(i) + 1;
  mask[2] = false;
  call[9] = mask;
  call.proceed();
  call.result(2) = cast(sum_over(widened(grad), dims), grad.scalar_type());
}

// ---- losses

// The square of a half difference, in float32: on a TPU the gradient has that difference, as on
// stock, and another one in float32 would be computed beside it. torch rounds it, too.
// self, target, reduction
void mse_loss(Call& call) {
  if (C10_UNLIKELY(!call.tensor(0).is_floating_point())) check_no_integers(call, 1);
  if (C10_LIKELY(!is_for_tpu()) || !is_half_tensor(call[0]) ||
      !have_dtype(call, call.tensor(0).scalar_type())) {
    return compute_wide(call);
  }
  const ScalarType to = call.tensor(0).scalar_type();
  const int64_t reduction = call[2].toInt();
  const at::Tensor difference = cast(
      at::_ops::sub_Tensor::redispatch(kXla, call.tensor(0), call.tensor(1), 1), ScalarType::Float);
  at::Tensor result = at::_ops::mul_Tensor::redispatch(kXla, difference, difference);
  if (reduction == at::Reduction::Mean) {
    result = at::_ops::mean::redispatch(kXla, result, {});
  } else if (reduction == at::Reduction::Sum) {
    result = at::_ops::sum::redispatch(kXla, result, {});
  }
  call.answer(cast(result, to));
}

// ---- softmax

// self, dim, half_to_float
void softmax(Call& call) {
  check_floats(call);
  if (C10_LIKELY(!is_half_tensor(call[0]))) return call.proceed();
  const ScalarType dtype = call[2].toBool() ? ScalarType::Float : call.tensor(0).scalar_type();
  widen(call);
  call[2] = false;
  call.proceed();
  if (dtype != ScalarType::Float) round(call, dtype);
}

// grad_output, output, dim, input_dtype
void softmax_backward(Call& call) {
  const ScalarType dtype = call[3].toScalarType();
  if (C10_LIKELY(!is_half(dtype))) return call.proceed();
  widen(call);
  call[3] = ScalarType::Float;
  call.proceed();
  round(call, dtype);
}

// ---- registration

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, noted<reduce_wide<1>>, "mean");
  remedy(xla, noted<reduce_wide<3>>, "mean.dim");
  remedy(xla, sum<1>, "sum");
  remedy(xla, sum<3>, "sum.dim_IntList");
  remedy(xla, convolution_backward, "convolution_backward_overrideable");
  remedy(xla, reduce_wide<4>, "linalg_vector_norm norm.ScalarOpt_dim_dtype");
  remedy(xla, softmax, "_softmax");
  remedy(xla, softmax_backward, "_softmax_backward_data");
  remedy(xla, noted<mse_loss>, "mse_loss");
  remedy(xla, noted<compute_wide>,
         "binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss");
  remedy(xla, compute_wide,
         "_adaptive_avg_pool2d avg_pool2d log_sigmoid_forward norm.Scalar norm.ScalarOpt_dim std "
         "std.correction std.dim std_mean.correction var.correction var_mean.correction");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_wide_reductions_install)
