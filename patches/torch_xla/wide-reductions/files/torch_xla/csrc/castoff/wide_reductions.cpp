// Reductions of bfloat16 and float16, and operators that torch_xla composes of several in these
// dtypes, computed in float32 and rounded once, as torch's CPU and CUDA kernels do. With dtype= the
// operand is converted first, as torch documents.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_to_copy_ops.h>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using at::ScalarType;
using at::Tensor;

bool is_half_tensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && is_half(value.toTensor().scalar_type());
}

// Rounds the results of the answered call that are float32.
void round(Call& call, ScalarType dtype) {
  for (size_t i = 0; i < call.results(); ++i) {
    if (!call.result(i).isTensor()) continue;
    const Tensor& result = call.result(i).toTensor();
    if (result.defined() && result.scalar_type() == ScalarType::Float) {
      call.result(i) = cast(result, dtype);
    }
  }
}

void widen(Call& call) {
  for (size_t i = 0; i < call.size(); ++i) {
    if (is_half_tensor(call[i])) call[i] = cast(call.tensor(i), ScalarType::Float);
  }
}

// Every operand in float32, every float32 result in the dtype of the first operand.
void compute_wide(Call& call) {
  if (C10_LIKELY(!is_half_tensor(call[0]))) return call.proceed();
  const ScalarType dtype = call.tensor(0).scalar_type();
  widen(call);
  call.proceed();
  round(call, dtype);
}

// ---- reductions with dtype=

// `dtype` is the number of that argument.
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

// ---- softmax

// self, dim, half_to_float
void softmax(Call& call) {
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

// ---- operators that torch composes of others above torch_xla's kernels

Tensor cast_above(const Tensor& t, ScalarType dtype) {
  return at::_ops::_to_copy::call(t, dtype, std::nullopt, std::nullopt, std::nullopt,
                                  /*non_blocking=*/false, std::nullopt);
}

// grad, self
void composed_backward(Call& call) {
  if (C10_LIKELY(!is_half_tensor(call[0]) || !is_half_tensor(call[1]))) return call.proceed();
  const ScalarType dtype = call.tensor(0).scalar_type();
  for (size_t i : {0, 1}) call[i] = cast_above(call.tensor(i), ScalarType::Float);
  call.proceed();
  call.result() = cast_above(call.result().toTensor(), dtype);
}

// ---- registration

void install() {
  const QuietOverride quiet;
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, reduce_wide<1>, {{"aten::mean", ""}, {"aten::prod", ""}, {"aten::sum", ""}});
  remedy(xla, reduce_wide<2>, {{"aten::cumprod", ""}, {"aten::cumsum", ""}});
  remedy(xla, reduce_wide<3>,
         {{"aten::mean", "dim"}, {"aten::prod", "dim_int"}, {"aten::sum", "dim_IntList"}});
  remedy(xla, reduce_wide<4>,
         {{"aten::linalg_vector_norm", ""}, {"aten::norm", "ScalarOpt_dim_dtype"}});
  remedy(xla, softmax, {{"aten::_log_softmax", ""}, {"aten::_softmax", ""}});
  remedy(xla, softmax_backward,
         {{"aten::_log_softmax_backward_data", ""}, {"aten::_softmax_backward_data", ""}});
  remedy(xla, compute_wide,
         {
             {"aten::_adaptive_avg_pool2d", ""},
             {"aten::_adaptive_avg_pool2d_backward", ""},
             {"aten::_adaptive_avg_pool3d", ""},
             {"aten::_adaptive_avg_pool3d_backward", ""},
             {"aten::_cdist_forward", ""},
             {"aten::addcdiv", ""},
             {"aten::addcmul", ""},
             {"aten::atan2", ""},
             {"aten::avg_pool2d", ""},
             {"aten::avg_pool2d_backward", ""},
             {"aten::avg_pool3d", ""},
             {"aten::avg_pool3d_backward", ""},
             {"aten::binary_cross_entropy", ""},
             {"aten::binary_cross_entropy_backward", ""},
             {"aten::binary_cross_entropy_with_logits", ""},
             {"aten::celu", ""},
             {"aten::elu", ""},
             {"aten::elu_backward", ""},
             {"aten::embedding_dense_backward", ""},
             {"aten::gelu", ""},
             {"aten::gelu_backward", ""},
             {"aten::hardsigmoid_backward", ""},
             {"aten::hardswish", ""},
             {"aten::hardswish_backward", ""},
             {"aten::index_add", ""},
             {"aten::lerp", "Scalar"},
             {"aten::lerp", "Tensor"},
             {"aten::log10", ""},
             {"aten::log2", ""},
             {"aten::log_sigmoid_backward", ""},
             {"aten::log_sigmoid_forward", ""},
             {"aten::logsumexp", ""},
             {"aten::mse_loss", ""},
             {"aten::mse_loss_backward", ""},
             {"aten::nll_loss2d_forward", ""},
             {"aten::nll_loss_forward", ""},
             {"aten::norm", "Scalar"},
             {"aten::norm", "ScalarOpt_dim"},
             {"aten::scatter_add", ""},
             {"aten::scatter_reduce", "two"},
             {"aten::selu", ""},
             {"aten::smooth_l1_loss", ""},
             {"aten::smooth_l1_loss_backward", ""},
             {"aten::softplus", ""},
             {"aten::softplus_backward", ""},
             {"aten::std", ""},
             {"aten::std", "correction"},
             {"aten::std", "dim"},
             {"aten::std_mean", "correction"},
             {"aten::upsample_bilinear2d", ""},
             {"aten::upsample_bilinear2d_backward", ""},
             {"aten::var", "correction"},
             {"aten::var_mean", "correction"},
         });
  torch::Library& autograd = library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradXLA);
  for (const char* name : {"aten::mish_backward", "aten::silu_backward"}) {
    override_kernel<Remedied>(autograd, c10::DispatchKey::AutogradXLA, name, "",
                              Remedy{composed_backward});
  }
}

}  // namespace
}  // namespace castoff

// Puts the kernels in place; nullptr, or what went wrong. Call it once.
extern "C" __attribute__((visibility("default"))) const char* castoff_wide_reductions_install() {
  return castoff::put_in_place(castoff::install);
}
