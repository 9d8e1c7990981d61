// Results in the dtype to which torch promotes their operands, where torch_xla keeps that of one of
// them. Operands of different float dtypes are mixed-operands' matter.

#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/sum_ops.h>
#include <c10/core/DefaultDtype.h>

#include <vector>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using c10::IValue;

bool is_tensor(const IValue& value) {
  return value.isTensor() && value.toTensor().defined();
}

bool is_integral(const Tensor& t) {
  return c10::isIntegralType(t.scalar_type(), /*includeBool=*/true);
}

ScalarType default_dtype() {
  return c10::typeMetaToScalarType(c10::get_default_dtype());
}

void cast_argument(Call& call, size_t i, ScalarType dtype) {
  if (call.tensor(i).scalar_type() != dtype) call[i] = cast(call.tensor(i), dtype);
}

// ---- sums of integers

// Cumulative operators without dtype=; -1: the operator has no such argument.
template <int dtype>
void sum_in_int64(Call& call) {
  const bool asked = dtype >= 0 && !call[dtype].isNone();
  if (C10_UNLIKELY(!asked && is_integral(call.tensor(0)))) cast_argument(call, 0, ScalarType::Long);
  call.proceed();
}

// self, dim: an int, a list or none, which is every dimension
void count_nonzero(Call& call) {
  const Tensor nonzero = at::_ops::ne_Scalar::redispatch(kXla, call.tensor(0), 0);
  std::vector<int64_t> dims;
  if (call[1].isInt()) dims.push_back(call[1].toInt());
  if (call[1].isIntList()) dims = call[1].toIntVector();
  if (dims.empty()) {
    for (int64_t i = 0; i < nonzero.dim(); ++i) dims.push_back(i);
  }
  call.answer(at::_ops::sum_dim_IntList::redispatch(kXla, nonzero, at::OptionalIntArrayRef(dims),
                                                    /*keepdim=*/false, ScalarType::Long));
}

// ---- operands that are promoted

// The first `operands` arguments, those that are tensors and there, take their common dtype.
template <size_t first, size_t end>
void promote(Call& call) {
  at::native::ResultTypeState state = {};
  bool one = true;
  ScalarType dtype = ScalarType::Undefined;
  for (size_t i = first; i < end; ++i) {
    if (!is_tensor(call[i])) continue;
    const Tensor& t = call.tensor(i);
    if (dtype == ScalarType::Undefined) dtype = t.scalar_type();
    one &= t.scalar_type() == dtype;
    state = at::native::update_result_type_state(t, state);
  }
  if (C10_LIKELY(one)) return call.proceed();
  dtype = at::native::result_type(state);
  for (size_t i = first; i < end; ++i) {
    if (is_tensor(call[i])) cast_argument(call, i, dtype);
  }
  call.proceed();
}

// Two integer tensors of which neither has the common dtype, as of int8 and uint8: torch_xla
// computes in one of theirs. All other pairs of numbers it promotes itself.
void promote_integers(Call& call) {
  const Tensor &a = call.tensor(0), &b = call.tensor(1);
  if (C10_UNLIKELY(a.dtype() != b.dtype()) && is_integral(a) && is_integral(b)) {
    const ScalarType dtype = c10::promoteTypes(a.scalar_type(), b.scalar_type());
    if (dtype != a.scalar_type() && dtype != b.scalar_type()) return promote<0, 2>(call);
  }
  call.proceed();
}

// An integer tensor and a bound that is no integer, or a bool one and a bound that is a number.
void clamp_by_number(Call& call) {
  const Tensor& self = call.tensor(0);
  if (C10_LIKELY(!is_integral(self))) return call.proceed();
  ScalarType dtype = self.scalar_type();
  for (size_t i = 1; i < call.size(); ++i) {
    if (call[i].isNone()) continue;
    const Scalar bound = call[i].toScalar();
    if (bound.isFloatingPoint()) dtype = default_dtype();
    if (bound.isIntegral(false) && dtype == ScalarType::Bool) dtype = ScalarType::Long;
  }
  cast_argument(call, 0, dtype);
  call.proceed();
}

// ---- comparisons

// A bfloat16 or float16 tensor and a Python number, which takes the tensor's dtype.
void compare_with_number(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  const Scalar number = call[1].toScalar();
  if (C10_UNLIKELY(is_half(dtype)) && !number.isComplex()) {
    const float value = static_cast<float>(number.toDouble());
    const float rounded = dtype == ScalarType::BFloat16 ? static_cast<float>(c10::BFloat16(value))
                                                        : static_cast<float>(c10::Half(value));
    if (static_cast<double>(rounded) != number.toDouble()) call[1] = Scalar(rounded);
  }
  call.proceed();
}

// ---- functions that give floats

void of_default_dtype(Call& call) {
  if (C10_UNLIKELY(is_integral(call.tensor(0)))) cast_argument(call, 0, default_dtype());
  call.proceed();
}

// ---- normalisations with parameters of another dtype

Tensor cast_above(const Tensor& t, ScalarType dtype) {
  return at::_ops::_to_copy::call(t, dtype, std::nullopt, std::nullopt, std::nullopt,
                                  /*non_blocking=*/false, std::nullopt);
}

// input, …, weight, bias: with float32 parameters a narrower input is computed in float32, and the
// first result takes the input's dtype.
template <size_t weight, size_t bias>
void normalise(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  const auto is_float = [&](size_t i) {
    return is_tensor(call[i]) && call.tensor(i).scalar_type() == ScalarType::Float;
  };
  if (C10_LIKELY(!is_half(dtype) || !(is_float(weight) || is_float(bias)))) return call.proceed();
  for (size_t i : {size_t{0}, weight, bias}) {
    if (is_tensor(call[i])) call[i] = cast_above(call.tensor(i), ScalarType::Float);
  }
  call.proceed();
  call.result() = cast_above(call.result().toTensor(), dtype);
}

// ---- registration

void install() {
  const QuietOverride quiet;
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, sum_in_int64<2>, {{"aten::cumprod", ""}, {"aten::cumsum", ""}});
  remedy(xla, sum_in_int64<-1>, {{"aten::trace", ""}});
  remedy(xla, count_nonzero, {{"aten::count_nonzero", ""}, {"aten::count_nonzero", "dim_IntList"}});
  remedy(xla, promote<0, 2>,
         {
             {"aten::__lshift__", "Tensor"},
             {"aten::__rshift__", "Tensor"},
             {"aten::bitwise_and", "Tensor"},
             {"aten::bitwise_left_shift", "Tensor"},
             {"aten::bitwise_or", "Tensor"},
             {"aten::bitwise_right_shift", "Tensor"},
             {"aten::bitwise_xor", "Tensor"},
             {"aten::clamp_max", "Tensor"},
             {"aten::clamp_min", "Tensor"},
             {"aten::maximum", ""},
             {"aten::minimum", ""},
         });
  remedy(xla, promote_integers,
         {
             {"aten::add", "Tensor"},
             {"aten::eq", "Tensor"},
             {"aten::ge", "Tensor"},
             {"aten::gt", "Tensor"},
             {"aten::le", "Tensor"},
             {"aten::lt", "Tensor"},
             {"aten::mul", "Tensor"},
             {"aten::ne", "Tensor"},
             {"aten::sub", "Tensor"},
         });
  remedy(xla, promote<0, 3>, {{"aten::clamp", "Tensor"}});
  remedy(xla, promote<1, 3>, {{"aten::where", "self"}});
  remedy(xla, clamp_by_number,
         {{"aten::clamp", ""}, {"aten::clamp_max", ""}, {"aten::clamp_min", ""}});
  remedy(xla, compare_with_number,
         {
             {"aten::eq", "Scalar"},
             {"aten::ge", "Scalar"},
             {"aten::gt", "Scalar"},
             {"aten::le", "Scalar"},
             {"aten::lt", "Scalar"},
             {"aten::ne", "Scalar"},
         });
  remedy(xla, of_default_dtype,
         {
             {"aten::acos", ""},  {"aten::acosh", ""},     {"aten::asin", ""},
             {"aten::asinh", ""}, {"aten::atan", ""},      {"aten::atanh", ""},
             {"aten::cos", ""},   {"aten::cosh", ""},      {"aten::erf", ""},
             {"aten::erfc", ""},  {"aten::erfinv", ""},    {"aten::exp", ""},
             {"aten::expm1", ""}, {"aten::isnan", ""},     {"aten::log", ""},
             {"aten::log10", ""}, {"aten::log1p", ""},     {"aten::log2", ""},
             {"aten::logit", ""}, {"aten::logsumexp", ""}, {"aten::reciprocal", ""},
             {"aten::rsqrt", ""}, {"aten::sigmoid", ""},   {"aten::sin", ""},
             {"aten::sinh", ""},  {"aten::sqrt", ""},      {"aten::tan", ""},
             {"aten::tanh", ""},
         });
  torch::Library& autograd = library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradXLA);
  override_kernel<Remedied>(autograd, c10::DispatchKey::AutogradXLA, "aten::native_layer_norm", "",
                            Remedy{normalise<2, 3>});
  override_kernel<Remedied>(autograd, c10::DispatchKey::AutogradXLA, "aten::native_group_norm", "",
                            Remedy{normalise<1, 2>});
}

}  // namespace
}  // namespace castoff

// Puts the kernels in place; nullptr, or what went wrong. Call it once.
extern "C" __attribute__((visibility("default"))) const char* castoff_result_dtypes_install() {
  return castoff::put_in_place(castoff::install);
}
