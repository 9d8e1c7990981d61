// Results in the dtype to which torch promotes their operands, where torch_xla keeps that of one of
// them. Two operands of different float dtypes are mixed-operands' matter, but for comparisons.

#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/view_as_complex_copy.h>
#include <ATen/ops/view_as_real_copy.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using c10::IValue;

// Through the dispatcher, as some of the kernels are above autograd, and an operand may be on the
// CPU: a number in a tensor's clothes.
Tensor converted(const Tensor& t, ScalarType dtype) {
  return at::_ops::_to_copy::call(t, dtype, std::nullopt, std::nullopt, std::nullopt,
                                  /*non_blocking=*/false, std::nullopt);
}

void convert(Call& call, size_t i, ScalarType dtype) {
  if (call.tensor(i).scalar_type() != dtype) call[i] = converted(call.tensor(i), dtype);
}

// ---- sums of integers

// Cumulative operators without dtype=; -1: the operator has no such argument.
template <int dtype>
void sum_in_int64(Call& call) {
  const bool asked = dtype >= 0 && !call[dtype].isNone();
  if (C10_UNLIKELY(!asked && is_integral(call.tensor(0)))) convert(call, 0, ScalarType::Long);
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

// ---- quotients of complex numbers, of which torch_xla divides the real parts

template <class Other>
ScalarType result_type(const Tensor& self, const Other& other) {
  at::native::ResultTypeState state = at::native::update_result_type_state(self, {});
  return at::native::result_type(at::native::update_result_type_state(other, state));
}

// `like` is on the device; of two operands one can be a number of the CPU.
Tensor quotient(const Tensor& self, const Tensor& other, ScalarType dtype, const Tensor& like) {
  const Below below;
  const auto sent = [&](const Tensor& t, ScalarType to) { return t.to(like.device(), to); };
  const Tensor dividend = sent(self, dtype);
  if (other.is_complex()) return dividend.mul(sent(other, dtype).reciprocal());
  const Tensor divisor = sent(other, c10::toRealValueType(dtype));
  return at::view_as_complex_copy(at::view_as_real_copy(dividend).div(divisor.unsqueeze(-1)));
}

// self, other
void divide(Call& call) {
  const Tensor self = call.tensor(0), other = call.tensor(1);
  if (C10_LIKELY(!self.is_complex() && !other.is_complex())) return call.proceed();
  const Tensor& like = self.device().is_cpu() ? other : self;
  call.answer(quotient(self, other, result_type(self, other), like));
}

// self, a number
void divide_by_number(Call& call) {
  const Tensor self = call.tensor(0);
  const Scalar number = call[1].toScalar();
  if (C10_LIKELY(!self.is_complex() && !number.isComplex())) return call.proceed();
  const Tensor other = at::full({}, number, at::TensorOptions().dtype(number.type()));
  call.answer(quotient(self, other, result_type(self, number), self));
}

// ---- operands that are promoted

// The dtype to which torch promotes the arguments from `first` to before `end`, if it is not that
// of each of them. Wrapped numbers take the dtype of the others, but for a first one: torch_xla's
// result is of its dtype.
std::optional<ScalarType> promoted(Call& call, size_t first, size_t end) {
  caffe2::TypeMeta dtype = call.tensor(first).dtype();
  bool one = true;
  for (size_t i = first + 1; i < end; ++i) {
    if (is_tensor(call[i])) one &= call.tensor(i).dtype() == dtype;
  }
  if (C10_LIKELY(one)) return std::nullopt;
  at::native::ResultTypeState state = {};
  for (size_t i = first; i < end; ++i) {
    if (is_tensor(call[i])) state = at::native::update_result_type_state(call.tensor(i), state);
  }
  const ScalarType result = at::native::result_type(state);
  for (size_t i = first; i < end; ++i) {
    if (!is_tensor(call[i]) || call.tensor(i).scalar_type() == result) continue;
    if (i == first || !call.tensor(i).unsafeGetTensorImpl()->is_wrapped_number()) return result;
  }
  return std::nullopt;
}

bool are_floats(Call& call, size_t first, size_t end) {
  for (size_t i = first; i < end; ++i) {
    if (is_tensor(call[i]) && !c10::isFloatingType(call.tensor(i).scalar_type())) return false;
  }
  return true;
}

void convert(Call& call, size_t first, size_t end, ScalarType dtype) {
  for (size_t i = first; i < end; ++i) {
    if (is_tensor(call[i])) convert(call, i, dtype);
  }
}

// Operators that keep the dtype of one of their operands; but for `where`, whose first is a mask,
// they have no complex ones.
template <size_t first, size_t end>
void promote(Call& call) {
  for (size_t i = first; first == 0 && i < end; ++i) {
    if (is_tensor(call[i])) check_real(call, i);
  }
  const auto dtype = promoted(call, first, end);
  if (C10_UNLIKELY(dtype.has_value()) && !are_floats(call, first, end)) {
    convert(call, first, end, *dtype);
  }
  call.proceed();
}

// self, other: integers, as torch's kernels ask; the compiler ends the process with others. Of a
// tensor and a number torch_xla's kernel gives int64.
void shift(Call& call) {
  const auto dtype = promoted(call, 0, 2);
  const ScalarType found = dtype.value_or(call.tensor(0).scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isIntegralType(found, /*includeBool=*/false),
                              call.op().schema().name(), ": expected integers, but found ", found,
                              ".");
  if (dtype) {
    convert(call, 0, 2, *dtype);
  } else {
    for (size_t i = 0; i < 2; ++i) {
      const bool is_number = call.tensor(i).unsafeGetTensorImpl()->is_wrapped_number();
      const Tensor other = call.tensor(1 - i);
      if (C10_UNLIKELY(is_number) && is_integral(other)) {
        const Below below;
        call[i] = at::full({}, call.tensor(i).item(), other.options());
      }
    }
  }
  call.proceed();
}

// Two tensors are compared in the higher of their dtypes. That is torch's way, but where neither
// has it, as of bfloat16 and float16, or where a 0-d tensor has the higher one.
template <bool is_ordered>
void compare(Call& call) {
  for (size_t i = 0; is_ordered && i < 2; ++i) check_real(call, i);
  if (const auto dtype = promoted(call, 0, 2)) {
    const ScalarType a = call.tensor(0).scalar_type(), b = call.tensor(1).scalar_type();
    const bool is_higher = *dtype == c10::promoteTypes(a, b) && (*dtype == a || *dtype == b);
    if (!is_higher) convert(call, 0, 2, *dtype);
  }
  call.proceed();
}

// Sums and differences of int8 and uint8, which are int16; the rest torch_xla promotes itself.
void add(Call& call) {
  const ScalarType a = call.tensor(0).scalar_type(), b = call.tensor(1).scalar_type();
  const bool are_bytes = (a == ScalarType::Char && b == ScalarType::Byte) ||
                         (a == ScalarType::Byte && b == ScalarType::Char);
  if (C10_UNLIKELY(are_bytes)) return promote<0, 2>(call);
  call.proceed();
}

// An integer tensor and a bound that is no integer, or a bool one and a bound that is a number.
void clamp_by_number(Call& call) {
  const Tensor& self = call.tensor(0);
  check_real(call);
  if (C10_LIKELY(!is_integral(self))) return call.proceed();
  ScalarType dtype = self.scalar_type();
  for (size_t i = 1; i < call.size(); ++i) {
    if (call[i].isNone()) continue;
    const Scalar bound = call[i].toScalar();
    if (bound.isFloatingPoint()) dtype = default_dtype();
    if (bound.isIntegral(/*includeBool=*/false) && dtype == ScalarType::Bool) {
      dtype = ScalarType::Long;
    }
  }
  convert(call, 0, dtype);
  call.proceed();
}

// An integer tensor and a number that is no integer: torch_xla takes the number for an integer. It
// has no remainder of bools.
void remainder_by_number(Call& call) {
  const bool is_bool = call.tensor(0).scalar_type() == ScalarType::Bool;
  if (C10_UNLIKELY(is_integral(call.tensor(0)) && call[1].toScalar().isFloatingPoint())) {
    convert(call, 0, default_dtype());
  } else if (C10_UNLIKELY(is_bool && call[1].toScalar().isIntegral(/*includeBool=*/false))) {
    convert(call, 0, ScalarType::Long);
  }
  call.proceed();
}

// ---- comparisons

// A tensor of at most float32 and a Python number, which takes the tensor's dtype.
template <bool is_ordered>
void compare_with_number(Call& call) {
  if constexpr (is_ordered) check_real(call);
  const ScalarType dtype = call.tensor(0).scalar_type();
  if (dtype != ScalarType::Float && !is_half(dtype)) return call.proceed();
  const Scalar number = call[1].toScalar();
  if (!number.isComplex() && !number.isSymbolic()) {
    const auto value = static_cast<float>(number.toDouble());
    const float rounded = dtype == ScalarType::BFloat16 ? static_cast<float>(c10::BFloat16(value))
                          : dtype == ScalarType::Half   ? static_cast<float>(c10::Half(value))
                                                        : value;
    if (static_cast<double>(rounded) != number.toDouble()) call[1] = Scalar(rounded);
  }
  call.proceed();
}

// ---- functions that give floats

// torch_xla takes float32 for the default dtype, and fails of bool.
void of_bool(Call& call) {
  const bool is_bool = call.tensor(0).scalar_type() == ScalarType::Bool;
  const ScalarType dtype = default_dtype();
  if (C10_UNLIKELY(is_bool || (dtype != ScalarType::Float && is_integral(call.tensor(0))))) {
    convert(call, 0, dtype);
  }
  call.proceed();
}

void of_integers(Call& call) {
  if (C10_UNLIKELY(is_integral(call.tensor(0)))) convert(call, 0, default_dtype());
  call.proceed();
}

// Two tensors of bool, of which XLA has no such function.
void of_bools(Call& call) {
  const auto is_bool = [&](size_t i) { return call.tensor(i).scalar_type() == ScalarType::Bool; };
  if (C10_UNLIKELY(is_bool(0) && is_bool(1))) convert(call, 0, 2, default_dtype());
  call.proceed();
}

// ---- concatenation

// Tensors of one dimension without elements are left out, but take part in the promotion.
void concatenate(Call& call) {
  const auto tensors = call[0].toListRef();
  const bool leaves_out = std::any_of(tensors.begin(), tensors.end(), [](const IValue& t) {
    return t.toTensor().dim() == 1 && t.toTensor().numel() == 0;
  });
  if (C10_LIKELY(!leaves_out)) return call.proceed();
  const ScalarType dtype = at::native::result_type(call[0].toTensorVector());
  call.proceed();
  call.result() = converted(call.result().toTensor(), dtype);
}

// ---- normalisations with parameters of another dtype

// input, …, weight, bias: with float32 parameters a narrower input is computed in float32, and the
// first result takes the input's dtype. Not under autocast, which has float32 results on CUDA.
template <size_t weight, size_t bias>
void normalise(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  if (C10_LIKELY(!is_half(dtype))) return call.proceed();
  size_t parameters = 0, of_float = 0;
  for (size_t i : {weight, bias}) {
    if (!is_tensor(call[i])) continue;
    ++parameters;
    of_float += call.tensor(i).scalar_type() == ScalarType::Float;
  }
  if (C10_LIKELY(of_float == 0) || of_float != parameters || autocast_enabled()) {
    return call.proceed();
  }
  convert(call, 0, ScalarType::Float);
  call.proceed();
  call.result() = converted(call.result().toTensor(), dtype);
}

void override_normalisations(c10::DispatchKey key) {
  torch::Library& lib = library(torch::Library::IMPL, "aten", key);
  remedy(lib, normalise<2, 3>, "native_layer_norm", key);
  remedy(lib, normalise<1, 2>, "native_group_norm", key);
}

// ---- registration

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, sum_in_int64<2>, "cumprod cumsum");
  remedy(xla, sum_in_int64<-1>, "trace");
  remedy(xla, count_nonzero, "count_nonzero count_nonzero.dim_IntList");
  remedy(xla, promote<0, 2>,
         "atan2 bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor clamp_max.Tensor "
         "clamp_min.Tensor maximum minimum remainder.Tensor");
  remedy(
      xla, shift,
      "__lshift__.Tensor __rshift__.Tensor bitwise_left_shift.Tensor bitwise_right_shift.Tensor");
  remedy(xla, remainder_by_number, "remainder.Scalar");
  remedy(xla, add, "add.Tensor sub.Tensor");
  remedy(xla, promote<0, 3>, "clamp.Tensor");
  remedy(xla, promote<1, 3>, "where.self");
  remedy(xla, compare<false>, "eq.Tensor ne.Tensor");
  remedy(xla, compare<true>, "ge.Tensor gt.Tensor le.Tensor lt.Tensor");
  remedy(xla, clamp_by_number, "clamp clamp_max clamp_min");
  remedy(xla, compare_with_number<false>, "eq.Scalar ne.Scalar");
  remedy(xla, compare_with_number<true>, "ge.Scalar gt.Scalar le.Scalar lt.Scalar");
  remedy(xla, of_bool,
         "acos acosh asin asinh atan atanh cos cosh erf exp expm1 isnan log log10 log1p log2 logit "
         "reciprocal rsqrt sigmoid sin sinh sqrt tan tanh");
  remedy(xla, of_bools, "atan2");
  remedy(xla, of_integers, "erfc erfinv logsumexp native_dropout_backward");
  remedy(xla, concatenate, "cat");
  remedy(xla, divide, "div.Tensor");
  remedy(xla, divide_by_number, "div.Scalar");
  // Both: under inference mode there is no autograd to pass.
  override_normalisations(c10::DispatchKey::AutogradXLA);
  override_normalisations(c10::DispatchKey::XLA);
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_result_dtypes_install)
