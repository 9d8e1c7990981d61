// Divisions of integers that torch_xla makes in float32, which has no more than 24 of their bits,
// and powers whose exponents have more bits than XLA reads.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/where.h>

#include <torch/csrc/castoff/torch_version.h>

#include <optional>

#include "torch_xla/csrc/castoff/division.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

// Integers that float32 does not have; of the others its quotients round to the right ones.
bool is_wide_integer(ScalarType dtype) {
  return dtype == ScalarType::Int || dtype == ScalarType::Long;
}

// Whether shifts stay on the device: torch_xla 2.1 hands them to the CPU.
constexpr bool kShiftsStay = CASTOFF_TORCH_AT_LEAST(2, 6);

int64_t bits_of(ScalarType dtype) {
  return 8 * static_cast<int64_t>(c10::elementSize(dtype));
}

// Of a number of Python's that is 2^bits, and whose quotients a shift gives rounded down, the bits.
std::optional<int64_t> bits_of_divisor(const Tensor& other, ScalarType dtype) {
  if (!other.unsafeGetTensorImpl()->is_wrapped_number()) return std::nullopt;
  const int64_t divisor = other.item().toLong();
  if (divisor <= 0 || (divisor & (divisor - 1)) != 0) return std::nullopt;
  int64_t bits = 0;
  while ((divisor >> bits) != 1) ++bits;
  return bits < bits_of(dtype) - 1 ? std::optional(bits) : std::nullopt;
}

// self, other
void divide(Call& call, Rounding rounding) {
  const Tensor self = call.tensor(0), other = call.tensor(1);
  const ScalarType dtype = at::result_type(self, other);
  if (C10_LIKELY(!is_wide_integer(dtype))) return call.proceed();
  const Below below;
  if (kShiftsStay && rounding == Rounding::kFloor) {
    if (const auto bits = bits_of_divisor(other, dtype)) {
      return call.answer(operand(self, other, dtype).bitwise_right_shift(at::Scalar(*bits)));
    }
  }
  call.answer(quotient(operand(self, other, dtype), operand(other, self, dtype), rounding));
}

void floor_divide(Call& call) {
  divide(call, Rounding::kFloor);
}

// self, other, rounding_mode
void divide_by_mode(Call& call) {
  if (C10_LIKELY(call[2].isNone())) return call.proceed();
  divide(call, call[2].toStringRef() == "floor" ? Rounding::kFloor : Rounding::kTrunc);
}

// ---- powers

struct Powers;
using TensorPower = Overridden<Powers, at::_ops::pow_Tensor_Tensor, c10::DispatchKey::XLA>;
using NumberPower = Overridden<Powers, at::_ops::pow_Scalar, c10::DispatchKey::XLA>;
using PowerOfNumber = Overridden<Powers, at::_ops::pow_Tensor_Scalar, c10::DispatchKey::XLA>;

bool is_integer(ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/false);
}

// How many bits of an exponent XLA reads at least: what a number of this dtype needs to overflow.
int64_t bits_read(ScalarType dtype) {
  int64_t bits = 3;
  while ((int64_t{1} << bits) < bits_of(dtype)) ++bits;
  return bits;
}

// base ** exponent modulo 2^bits, as in torch, of numbers that are not negative with no more than
// `exponent_bits` bits: the exponent's digits in the base 2^bits_read are exponents of base,
// base ** 2^bits_read, ...
Tensor exact_power(const Tensor& base, const Tensor& exponent, int64_t exponent_bits) {
  const int64_t digit_bits = bits_read(base.scalar_type());
  const int64_t largest = (int64_t{1} << digit_bits) - 1;
  Tensor result, step = base;
  for (int64_t done = 0; done < exponent_bits; done += digit_bits) {
    if (done > 0) step = step * PowerOfNumber::call(kXla, step, at::Scalar(largest));
    const Tensor rest = done == 0 ? exponent : exponent.bitwise_right_shift(at::Scalar(done));
    const Tensor factor = TensorPower::call(kXla, step, rest.bitwise_and(at::Scalar(largest)));
    result = done == 0 ? factor : result * factor;
  }
  return result;
}

// Both of one dtype.
Tensor exact_power(const Tensor& base, const Tensor& exponent) {
  const ScalarType dtype = base.scalar_type();
  if (dtype == ScalarType::Byte) return exact_power(base, exponent, bits_of(dtype));
  // 1 / base is 0 but of 1 and -1.
  const Tensor sign = exponent.bitwise_and(1).mul(-2).add(1);
  const Tensor inverse = (base == 1).to(dtype) + (base == -1).to(dtype) * sign;
  return at::where(exponent < 0, inverse, exact_power(base, exponent, bits_of(dtype) - 1));
}

Tensor power(c10::DispatchKeySet keys, const Tensor& self, const Tensor& exponent) {
  const ScalarType dtype = at::result_type(self, exponent);
  if (C10_LIKELY(!is_integer(dtype))) return TensorPower::call(keys, self, exponent);
  const Below below;
  return exact_power(operand(self, exponent, dtype), operand(exponent, self, dtype));
}

Tensor power_of_number(c10::DispatchKeySet keys, const at::Scalar& self, const Tensor& exponent) {
  const ScalarType dtype = at::result_type(self, exponent);
  if (C10_LIKELY(!is_integer(dtype))) return NumberPower::call(keys, self, exponent);
  const Below below;
  const bool is_even = self.toLong() % 2 == 0;
  if (!is_even)
    return exact_power(at::full({}, self, exponent.options().dtype(dtype)), exponent.to(dtype));
  return NumberPower::call(keys, self, exponent).masked_fill(exponent >= bits_of(dtype), 0);
}

Tensor power_by_number(c10::DispatchKeySet keys, const Tensor& self, const at::Scalar& exponent) {
  const ScalarType dtype = at::result_type(self, exponent);
  if (C10_LIKELY(!is_integer(dtype))) return PowerOfNumber::call(keys, self, exponent);
  const int64_t number = exponent.toLong();
  TORCH_CHECK(number >= 0, "Integers to negative integer powers are not allowed.");
  if (C10_LIKELY(number >> bits_read(dtype) == 0)) return PowerOfNumber::call(keys, self, exponent);
  const Below below;
  int64_t bits = 1;
  while (number >> bits != 0) ++bits;
  return exact_power(self.to(dtype), at::full({}, exponent, self.options().dtype(at::kLong)), bits);
}

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, floor_divide, "floor_divide");
  remedy(xla, divide_by_mode, "div.Tensor_mode");
  TensorPower::by(xla, power);
  NumberPower::by(xla, power_of_number);
  PowerOfNumber::by(xla, power_by_number);
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_exact_integers_install)
