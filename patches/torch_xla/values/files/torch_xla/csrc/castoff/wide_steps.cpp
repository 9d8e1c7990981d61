// Formulas of several steps, each of which torch_xla rounds to the tensors' dtype, or whose digits
// cancel out. torch computes them in float32 and rounds once.

#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/select_copy.h>
#include <ATen/ops/transpose_copy.h>
#include <ATen/ops/where.h>
#include <ATen/ops/where_ops.h>

#include <cmath>
#include <limits>
#include <vector>

#include "torch_xla/csrc/castoff/division.h"
#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/filled.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/target.h"
#include "torch_xla/csrc/castoff/values.h"
#include "torch_xla/csrc/castoff/wide.h"

// Of topic native-mul, where it is in the build.
extern "C" [[gnu::weak]] bool castoff_native_mul_enabled();

namespace castoff {

// Whether an operator that models of bfloat16 are made of is computed in float32: for who
// multiplies in bfloat16 (topic native-mul) it stays in bfloat16, too.
bool is_computed_wide(ScalarType dtype) {
  if (C10_LIKELY(dtype != ScalarType::BFloat16)) return dtype == ScalarType::Half;
  return castoff_native_mul_enabled == nullptr || !castoff_native_mul_enabled();
}

namespace {

// ---- gradients of activations

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
  call.answer((grad * filled((self <= 0).logical_not(), negative, scale)).to(dtype));
}

// grad_output, self. At -3 and 3, too.
void hardswish_backward(Call& call) {
  const Below below;
  const ScalarType dtype = call.tensor(0).scalar_type();
  const Tensor grad = widened(call.tensor(0)), self = widened(call.tensor(1));
  const Tensor upwards = filled((self < 3).logical_not(), self / 3 + 0.5, 1);
  call.answer((grad * filled(self <= -3, upwards, 0)).to(dtype));
}

// grad_output, self, buffer: the sigmoid of -self, exact where it is small.
void log_sigmoid_backward(Call& call) {
  const Below below;
  const ScalarType dtype = call.tensor(0).scalar_type();
  const Tensor grad = widened(call.tensor(0)), self = widened(call.tensor(1));
  call.answer((grad / (self.exp() + 1)).to(dtype));
}

// ---- steps in float32

// self, other, …: as torch's kernels, which take the rest of the division off first. 3 // 0.3 is 9,
// where torch_xla's floor(3 / 0.3) is 10.
void divide_down(Call& call) {
  const Tensor self = call.tensor(0), other = call.tensor(1);
  const ScalarType dtype = at::result_type(self, other);
  if (!c10::isFloatingType(dtype)) return call.proceed();
  const Below below;
  const ScalarType wide = is_half(dtype) ? ScalarType::Float : dtype;
  const Tensor a = operand(self, other, wide), b = operand(other, self, wide);
  const Tensor rest = a.fmod(b);
  const Tensor is_below = (rest != 0).logical_and((rest < 0) != (b < 0));
  const Tensor ratio = a / b, whole = ((a - rest) / b - is_below.to(wide)).round();
  const Tensor quotient = at::where(whole == 0, ratio * 0, whole);  // with the sign of the ratio
  call.answer(at::where(b == 0, ratio, quotient).to(dtype));
}

// Argument `mode`: without one, it is the division that XLA has.
template <size_t mode>
void divide(Call& call) {
  if (C10_LIKELY(call[mode].isNone())) return call.proceed();
  if (call[mode].toStringRef() == "floor") return divide_down(call);
  compute_wide(call);
}

// Of integers torch_xla rounds to integers, as the weight of lerp.
void compute_floats_wide(Call& call) {
  check_no_integers(call);
  compute_wide(call);
}

// Operators of float16 alone: in bfloat16 they are as models use them, and right.
void compute_float16_wide(Call& call) {
  if (C10_LIKELY(call.tensor(0).scalar_type() != ScalarType::Half)) return call.proceed();
  compute_wide(call);
}

void compute_wide_unless_native(Call& call) {
  if (C10_LIKELY(!is_computed_wide(call.tensor(0).scalar_type()))) return call.proceed();
  compute_wide(call);
}

// self, approximate. Far below 0 the error of XLA's erf, times self, is not 0. On a TPU, where the
// comparison costs a tenth of a layer's cycles, that stays: it is 1e-7 of self.
void gelu(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  check_floats(call);
  if (dtype != ScalarType::Float && !is_computed_wide(dtype)) return call.proceed();
  if (call[1].toStringRef() != "none" || is_for_tpu()) return compute_wide(call);
  const Tensor wide = widened(call.tensor(0));
  call[0] = wide;
  call.proceed();
  const Tensor is_near = at::_ops::ge_Scalar::redispatch(kXla, wide, -5.5);
  const Tensor zero = at::_ops::mul_Scalar::redispatch(kXla, wide, 0.0);  // or NaN
  const Tensor found =
      at::_ops::where_self::redispatch(kXla, is_near, call.result().toTensor(), zero);
  call.result() = dtype == ScalarType::Float ? found : cast(found, dtype);
}

// self, dim, half_to_float
void log_softmax(Call& call) {
  check_floats(call);
  if (call[2].toBool()) return call.proceed();
  compute_wide_unless_native(call);
}

// grad_output, output, dim, input_dtype
void log_softmax_backward(Call& call) {
  if (C10_LIKELY(!is_computed_wide(call[3].toScalarType()))) return call.proceed();
  call[3] = ScalarType::Float;
  compute_wide(call);
}

// self: torch's formula, 1 + erf(x), has no digits left where x is far below 0. Above autograd.
void normal_distribution(Call& call) {
  const Tensor self = call.tensor(0);
  const ScalarType dtype = is_integral(self) ? default_dtype() : self.scalar_type();
  const Tensor x = self.to(is_half(dtype) ? ScalarType::Float : dtype);
  call.answer(((x * -M_SQRT1_2).erfc() * 0.5).to(dtype));
}

// ---- cumulative sums

// Cumulative sums of bfloat16 on a TPU, in float32 and with fewer cycles than in bfloat16: within
// blocks as products with a triangle of ones, which its matrix unit sums, and then over the blocks.
// Times 0 an infinity or a NaN would reach the elements before it. They are counted apart, an
// infinity as 1, a negative one as 128 and a NaN as both, which bfloat16 has.
Tensor cumsum_by_products(const Tensor& self, int64_t dim) {
  constexpr int64_t kBlock = 64;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int64_t size = self.size(dim), padding = (kBlock - size % kBlock) % kBlock;
  const Tensor rows = dim == self.dim() - 1 ? self : at::transpose_copy(self, dim, -1);
  const Tensor padded = padding == 0 ? rows : at::constant_pad_nd(rows, {0, padding}, 0);
  std::vector<int64_t> shape = padded.sizes().vec();
  shape.back() /= kBlock;
  shape.push_back(kBlock);
  const Tensor blocks = padded.view(shape), is_finite = at::isfinite(blocks);
  const Tensor triangle = widened(at::ones({kBlock, kBlock}, self.options()).triu());
  const Tensor others = at::where(blocks == kInfinity, 1.0, at::where(blocks < 0, 128.0, 129.0));
  const Tensor marks = cast(at::where(is_finite, 0.0, others), self.scalar_type());
  const Tensor counts = at::matmul(widened(marks), triangle);
  const Tensor negative = (counts / 128).floor(), positive = counts - negative * 128;
  const Tensor sums = at::matmul(widened(at::where(is_finite, blocks, 0.0)), triangle) +
                      at::where(positive > 0, kInfinity, 0.0) +
                      at::where(negative > 0, -kInfinity, 0.0);
  const Tensor ends = at::select_copy(sums, -1, kBlock - 1).cumsum(-1);
  shape.back() = 1;
  const Tensor before = at::constant_pad_nd(ends.slice(-1, 0, -1), {1, 0}, 0).view(shape);
  Tensor result = (sums + before).view(padded.sizes());
  if (padding > 0) result = result.slice(-1, 0, size);
  result = cast(result, self.scalar_type());
  return dim == self.dim() - 1 ? result : at::transpose_copy(result, dim, -1);
}

// self, dim, dtype
void cumsum(Call& call) {
  const ScalarType from = call.tensor(0).scalar_type();
  const ScalarType to = call[2].isNone() ? from : call[2].toScalarType();
  if (call.tensor(0).numel() == 0) return call.on_the_cpu();
  if (C10_LIKELY(!is_half(to))) return call.proceed();
  const Tensor self = from == to ? call.tensor(0) : cast(call.tensor(0), to);
  const int64_t dim = at::maybe_wrap_dim(call[1].toInt(), self.dim());
  if (is_for_tpu() && to == ScalarType::BFloat16 && self.dim() > 0 && self.size(dim) > 64) {
    const Below below;
    return call.answer(cumsum_by_products(self, dim));
  }
  call[0] = cast(self, ScalarType::Float);
  call[2] = c10::IValue();
  call.proceed();
  round(call, to);
}

}  // namespace

void mend_wide_steps(torch::Library& xla, torch::Library& autograd) {
  remedy(xla, elu_backward, "elu_backward");
  remedy(xla, hardswish_backward, "hardswish_backward");
  remedy(xla, log_sigmoid_backward, "log_sigmoid_backward");
  remedy(xla, divide_down, "floor_divide");
  remedy(xla, divide<2>, "div.Tensor_mode");
  remedy(xla, compute_floats_wide, "lerp.Scalar lerp.Tensor softplus");
  remedy(xla, compute_wide, "softplus_backward");
  remedy(xla, compute_float16_wide,
         "addcdiv addcmul convolution_backward_overrideable convolution_overrideable "
         "sigmoid_backward");
  remedy(xla, gelu, "gelu");
  remedy(xla, compute_wide_unless_native, "gelu_backward");
  remedy(xla, log_softmax, "_log_softmax");
  remedy(xla, log_softmax_backward, "_log_softmax_backward_data");
  remedy(xla, cumsum, "cumsum");
  remedy(autograd, compute_wide_with_gradients<is_half>, "cosine_similarity", kAutograd);
  remedy(autograd, normal_distribution, "special_ndtr", kAutograd);
}

}  // namespace castoff
