// Operators whose values torch_xla gets wrong, or whose arguments it refuses. Each remedy takes the
// calls of that form alone.

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/resampling.h"
#include "torch_xla/csrc/castoff/wide.h"

namespace castoff {
namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using Below = at::AutoDispatchBelowADInplaceOrView;

bool is_integral(const Tensor& t) {
  return c10::isIntegralType(t.scalar_type(), /*includeBool=*/true);
}

ScalarType default_dtype() {
  return c10::typeMetaToScalarType(c10::get_default_dtype());
}

// ---- wrong values

// grad_output, alpha, scale, input_scale, is_result, self_or_result. torch_xla takes the last one
// for the result, whatever it is.
void elu_backward(Call& call) {
  if (call[4].toBool()) return call.proceed();
  const Below below;
  const double alpha = call[1].toScalar().toDouble(), scale = call[2].toScalar().toDouble();
  const double input_scale = call[3].toScalar().toDouble();
  const ScalarType dtype = call.tensor(0).scalar_type();
  const Tensor grad = widened(call.tensor(0)), self = widened(call.tensor(5));
  const Tensor negative = (self * input_scale).exp() * (alpha * scale * input_scale);
  call.answer((grad * at::where(self <= 0, negative, scale)).to(dtype));
}

// self, p, then dim, keepdim and dtype where the operator has them (-1: it has not). torch_xla
// sums powers, whatever the order is.
template <int dim, int keepdim, int dtype>
void norm(Call& call) {
  const double p = call[1].isNone() ? 2.0 : call[1].toScalar().toDouble();
  if (C10_LIKELY(!std::isinf(p))) return call.proceed();
  const Below below;
  Tensor magnitude = call.tensor(0).abs();
  if (dtype >= 0 && !call[dtype].isNone()) magnitude = magnitude.to(call[dtype].toScalarType());
  std::vector<int64_t> dims;
  if (dim >= 0 && !call[dim].isNone()) dims = call[dim].toIntVector();
  const bool keep = keepdim >= 0 && call[keepdim].toBool();
  call.answer(p > 0 ? magnitude.amax(dims, keep) : magnitude.amin(dims, keep));
}

// grad_output, self. At -3 and 3, too.
void hardswish_backward(Call& call) {
  const Below below;
  const ScalarType dtype = call.tensor(0).scalar_type();
  const Tensor grad = widened(call.tensor(0)), self = widened(call.tensor(1));
  const Tensor slope = at::where(self <= -3, 0.0, at::where(self < 3, self / 3 + 0.5, 1.0));
  call.answer((grad * slope).to(dtype));
}

// grad_output, self, buffer: the sigmoid of -self, exact where it is small.
void log_sigmoid_backward(Call& call) {
  const Below below;
  const ScalarType dtype = call.tensor(0).scalar_type();
  const Tensor grad = widened(call.tensor(0)), self = widened(call.tensor(1));
  call.answer((grad / (self.exp() + 1)).to(dtype));
}

// self, p: the order 0 counts the elements that differ.
void count_differences(Call& call) {
  if (C10_LIKELY(call[1].toDouble() != 0)) return call.proceed();
  call.on_the_cpu();
}

// tensors, dim, num_chunks. torch's own kernel writes to a view of the padded tensor, which is a
// copy below functionalization.
void chunk_cat(Call& call) {
  const Below below;
  const auto tensors = call[0].toTensorVector();
  const int64_t chunks = call[2].toInt();
  TORCH_CHECK(!tensors.empty() && chunks > 0,
              "_chunk_cat: expected tensors, and a number of chunks of at least 1, but got ",
              tensors.size(), " tensors and ", chunks, " chunks.");
  const int64_t dim = at::maybe_wrap_dim(call[1].toInt(), tensors[0].dim());
  std::vector<Tensor> chunked;
  for (const Tensor& t : tensors) {
    TORCH_CHECK(t.dim() > dim && t.scalar_type() == tensors[0].scalar_type(),
                "_chunk_cat: expected tensors of one dtype with dimension ", dim, ", but got ",
                c10::toString(t.scalar_type()), " with ", t.dim(), " dimensions.");
    const int64_t padding = (chunks - t.size(dim) % chunks) % chunks;
    std::vector<int64_t> pad(2 * (t.dim() - dim), 0);
    pad.back() = padding;
    const Tensor padded = padding > 0 ? at::constant_pad_nd(t, pad, 0) : t;
    auto shape = padded.sizes().vec();
    int64_t length = 1;
    for (int64_t i = dim; i < t.dim(); ++i) length *= shape[i];
    shape.resize(dim);
    shape.insert(shape.end(), {chunks, length / chunks});
    chunked.push_back(padded.reshape(shape));
  }
  call.answer(at::cat(chunked, dim + 1));
}

// self, dim: where several elements are equal, the index of the last one.
void cummax(Call& call) {
  const Tensor self = call.tensor(0);
  const int64_t dim = at::maybe_wrap_dim(call[1].toInt(), self.dim());
  call.proceed();
  thread_local bool is_of_positions = false;  // the call below
  if (is_of_positions || self.dim() == 0 || self.numel() == 0) return;
  const Below below;
  const Tensor& values = call.result().toTensor();
  std::vector<int64_t> shape(self.dim(), 1);
  shape[dim] = self.size(dim);
  const Tensor position =
      at::arange(self.size(dim), self.options().dtype(ScalarType::Long)).view(shape);
  Tensor is_largest = self == values;
  if (!is_integral(self)) is_largest = is_largest.logical_or(self.isnan());
  const Tensor reached = at::where(is_largest, position.expand_as(self), 0);
  is_of_positions = true;
  const auto leave = c10::make_scope_exit([] { is_of_positions = false; });
  call.result(1) = std::get<0>(reached.cummax(dim));
}

// ---- tensors without elements

void clone_if_empty(Call& call) {
  if (C10_LIKELY(call.tensor(0).numel() > 0)) return call.proceed();
  const Below below;
  call.answer(at::clone(call.tensor(0)));
}

void on_the_cpu_if_empty(Call& call) {
  if (C10_LIKELY(call.tensor(0).numel() > 0)) return call.proceed();
  call.on_the_cpu();
}

Tensor with_batch(const Tensor& t) {
  return t.dim() > 0 ? t : t.view({1});
}

// self, target, …: also of one row of scores and one class.
void nll_loss(Call& call) {
  const Tensor self = call.tensor(0);
  if (self.numel() == 0) return call.on_the_cpu();
  if (C10_LIKELY(self.dim() != 1)) return call.proceed();
  const Below below;
  call[0] = self.unsqueeze(0);
  call[1] = with_batch(call.tensor(1));
  call.proceed();
  call.result() = call.result().toTensor().view(at::IntArrayRef());
}

// grad_output, self, target, …
void nll_loss_backward(Call& call) {
  const Tensor self = call.tensor(1);
  if (self.numel() == 0) return call.on_the_cpu();
  if (C10_LIKELY(self.dim() != 1)) return call.proceed();
  const Below below;
  constexpr size_t kReduction = 4;
  if (call[kReduction].toInt() == at::Reduction::None) call[0] = with_batch(call.tensor(0));
  call[1] = self.unsqueeze(0);
  call[2] = with_batch(call.tensor(2));
  call.proceed();
  call.result() = call.result().toTensor().squeeze(0);
}

// ---- matrices

// The determinant's factors, without which it has no gradient: torch_xla has none of them.
thread_local bool wants_factors = false;

// Above autograd.
void slogdet_with_gradients(Call& call) {
  const bool outer = wants_factors;
  const auto leave = c10::make_scope_exit([outer] { wants_factors = outer; });
  wants_factors = c10::GradMode::is_enabled() && call.tensor(0).requires_grad();
  call.proceed();
}

void slogdet(Call& call) {
  if (wants_factors || call.tensor(0).numel() == 0) return call.on_the_cpu();
  call.proceed();
}

// torch_xla decomposes the first of a batch's dimensions with the second, and fails where there is
// nothing to decompose.
void svd(Call& call) {
  if (C10_LIKELY(call.tensor(0).dim() == 2 && call.tensor(0).numel() > 0)) return call.proceed();
  call.on_the_cpu();
}

// The inverse, and a number for each matrix.
void inverse(Call& call) {
  const Tensor self = call.tensor(0);
  call.proceed();
  const at::IntArrayRef batch = self.sizes().slice(0, self.dim() - 2);
  if (call.result(1).toTensor().sizes() == batch) return;
  const Below below;
  call.result(1) = at::zeros(batch, self.options().dtype(ScalarType::Int));
}

// ---- refused arguments

// Two operands of different ranks, of which none is 0.
void broadcast(Call& call) {
  const Tensor self = call.tensor(0), other = call.tensor(1);
  if (C10_LIKELY(self.dim() == other.dim() || self.dim() == 0 || other.dim() == 0)) {
    return call.proceed();
  }
  const auto shape = at::infer_size(self.sizes(), other.sizes());
  const Below below;
  call[0] = self.expand(shape);
  call[1] = other.expand(shape);
  call.proceed();
}

void of_integers(Call& call) {
  if (C10_UNLIKELY(is_integral(call.tensor(0)))) {
    call[0] = cast(call.tensor(0), default_dtype());
  }
  call.proceed();
}

// Sections, or the indices to split at, in a tensor: read here, as on the CPU.
void read_sections(Call& call) {
  call[1] = call.tensor(1).cpu();
  call.proceed();
}

// ---- results of another dtype

// Averages of integers are integers, rounded towards zero.
void average_integers(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  if (C10_LIKELY(!is_integral(call.tensor(0)))) return call.proceed();
  call[0] = cast(call.tensor(0), ScalarType::Double);
  call.proceed();
  call.result() = cast(call.result().toTensor(), dtype);
}

// ---- what torch computes in float32 and rounds once

// Argument `mode`: without one, it is the division that XLA has.
template <size_t mode>
void divide_wide(Call& call) {
  if (C10_LIKELY(call[mode].isNone())) return call.proceed();
  compute_wide(call);
}

// Operators of float16 alone: in bfloat16 they are as models use them, and right.
void compute_float16_wide(Call& call) {
  if (C10_LIKELY(call.tensor(0).scalar_type() != ScalarType::Half)) return call.proceed();
  compute_wide(call);
}

// self, dim, half_to_float
void log_softmax(Call& call) {
  if (call[2].toBool()) return call.proceed();
  compute_float16_wide(call);
}

// grad_output, output, dim, input_dtype
void log_softmax_backward(Call& call) {
  if (C10_LIKELY(call[3].toScalarType() != ScalarType::Half)) return call.proceed();
  call[3] = ScalarType::Float;
  compute_float16_wide(call);
}

// Argument `dtype`, where the operator has it, is none.
template <size_t dtype>
void sum(Call& call) {
  if (C10_LIKELY(call[dtype].isNone())) return compute_float16_wide(call);
  call.proceed();
}

// input, weight, bias, running_mean, running_var, …: the statistics are written to.
void batch_norm(Call& call) {
  constexpr size_t kStatistics[] = {3, 4};
  const bool is_met = call.tensor(0).scalar_type() == ScalarType::Half;
  if (C10_LIKELY(!is_met) || !have_dtype(call, ScalarType::Half)) return call.proceed();
  std::vector<std::pair<Tensor, Tensor>> written;
  for (size_t i : kStatistics) {
    if (is_half_tensor(call[i])) written.emplace_back(call.tensor(i), widened(call.tensor(i)));
  }
  size_t next = 0;
  for (size_t i : kStatistics) {
    if (is_half_tensor(call[i])) call[i] = written[next++].second;
  }
  widen(call);
  call.proceed();
  round(call, ScalarType::Half);
  const Below below;
  for (auto& [statistic, wide] : written) statistic.copy_(wide);
}

// Above autograd, so that the gradients are computed so, too.
template <bool bfloat16_too>
void compute_wide_with_gradients(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  const bool is_met = bfloat16_too ? is_half(dtype) : dtype == ScalarType::Half;
  if (C10_LIKELY(!is_met) || !have_dtype(call, dtype)) return call.proceed();
  for (size_t i = 0; i < call.size(); ++i) {
    if (is_half_tensor(call[i])) call[i] = call.tensor(i).to(ScalarType::Float);
  }
  call.proceed();
  for (size_t i = 0; i < call.results(); ++i) {
    if (call.result(i).isTensor() && call.result(i).toTensor().defined()) {
      call.result(i) = call.result(i).toTensor().to(dtype);
    }
  }
}

// ---- registration

void mend_values(torch::Library& xla) {
  remedy(xla, elu_backward, {{"aten::elu_backward", ""}});
  remedy(xla, hardswish_backward, {{"aten::hardswish_backward", ""}});
  remedy(xla, log_sigmoid_backward, {{"aten::log_sigmoid_backward", ""}});
  remedy(xla, norm<-1, -1, -1>, {{"aten::norm", "Scalar"}});
  remedy(xla, norm<-1, -1, 2>, {{"aten::norm", "ScalarOpt_dtype"}});
  remedy(xla, norm<2, 3, -1>, {{"aten::norm", "ScalarOpt_dim"}});
  remedy(xla, norm<2, 3, 4>,
         {{"aten::norm", "ScalarOpt_dim_dtype"}, {"aten::linalg_vector_norm", ""}});
  remedy(xla, chunk_cat, {{"aten::_chunk_cat", ""}});
  remedy(xla, cummax, {{"aten::cummax", ""}});
  remedy(xla, average_integers, {{"aten::avg_pool2d", ""}, {"aten::avg_pool3d", ""}});
}

void mend_refusals(torch::Library& xla, torch::Library& autograd) {
  remedy(xla, clone_if_empty, {{"aten::roll", ""}});
  remedy(xla, on_the_cpu_if_empty, {{"aten::cumprod", ""}});
  remedy(xla, nll_loss, {{"aten::nll_loss_forward", ""}, {"aten::nll_loss2d_forward", ""}});
  remedy(xla, nll_loss_backward,
         {{"aten::nll_loss_backward", ""}, {"aten::nll_loss2d_backward", ""}});
  remedy(xla, count_differences, {{"aten::_pdist_forward", ""}});
  remedy(xla, slogdet, {{"aten::_linalg_slogdet", ""}});
  override_kernel<Remedied>(autograd, c10::DispatchKey::AutogradXLA, "aten::_linalg_slogdet", "",
                            Remedy{slogdet_with_gradients});
  remedy(xla, svd, {{"aten::_linalg_svd", ""}});
  remedy(xla, inverse, {{"aten::linalg_inv_ex", ""}});
  remedy(xla, broadcast, {{"aten::clamp_max", "Tensor"}, {"aten::clamp_min", "Tensor"}});
  remedy(xla, of_integers,
         {{"aten::erfc", ""}, {"aten::erfinv", ""}, {"aten::native_dropout_backward", ""}});
  override_kernel<Remedied>(autograd, c10::DispatchKey::AutogradXLA, "aten::tensor_split",
                            "tensor_indices_or_sections", Remedy{read_sections});
}

void mend_steps(torch::Library& xla, torch::Library& autograd) {
  remedy(xla, compute_wide,
         {
             {"aten::floor_divide", ""},
             {"aten::lerp", "Scalar"},
             {"aten::lerp", "Tensor"},
         });
  remedy(xla, divide_wide<2>, {{"aten::div", "Tensor_mode"}});
  remedy(xla, compute_float16_wide,
         {
             {"aten::addcmul", ""},
             {"aten::convolution_backward_overrideable", ""},
             {"aten::convolution_overrideable", ""},
             {"aten::gelu", ""},
             {"aten::gelu_backward", ""},
         });
  remedy(xla, sum<1>, {{"aten::sum", ""}});
  remedy(xla, sum<3>, {{"aten::sum", "dim_IntList"}});
  remedy(xla, log_softmax, {{"aten::_log_softmax", ""}});
  remedy(xla, log_softmax_backward, {{"aten::_log_softmax_backward_data", ""}});
  remedy(xla, batch_norm,
         {{"aten::_native_batch_norm_legit", ""}, {"aten::native_batch_norm", ""}});
  override_kernel<Remedied>(autograd, c10::DispatchKey::AutogradXLA, "aten::cosine_similarity", "",
                            Remedy{compute_wide_with_gradients<true>});
  for (const char* name : {"aten::native_layer_norm", "aten::native_group_norm"}) {
    override_kernel<Remedied>(autograd, c10::DispatchKey::AutogradXLA, name, "",
                              Remedy{compute_wide_with_gradients<false>});
  }
}

void install() {
  const QuietOverride quiet;
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  torch::Library& autograd = library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradXLA);
  mend_values(xla);
  mend_refusals(xla, autograd);
  mend_steps(xla, autograd);
  mend_resampling(xla);
}

}  // namespace
}  // namespace castoff

// Puts the kernels in place; nullptr, or what went wrong. Call it once.
extern "C" __attribute__((visibility("default"))) const char* castoff_values_install() {
  return castoff::put_in_place(castoff::install);
}
