// Divisions of integers that torch_xla makes in float32, which has no more than 24 of their bits.

#include <ATen/core/Tensor.h>
#include <ATen/ops/result_type.h>

#include <optional>

#include "torch_xla/csrc/castoff/division.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using at::ScalarType;
using at::Tensor;

// Integers that float32 does not have; of the others its quotients round to the right ones.
bool is_wide_integer(ScalarType dtype) {
  return dtype == ScalarType::Int || dtype == ScalarType::Long;
}

// self, other
void divide(Call& call, Rounding rounding) {
  const Tensor self = call.tensor(0), other = call.tensor(1);
  const ScalarType dtype = at::result_type(self, other);
  if (C10_LIKELY(!is_wide_integer(dtype))) return call.proceed();
  const at::AutoDispatchBelowADInplaceOrView below;
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

// self, exponent
void power(Call& call) {
  if (C10_UNLIKELY(c10::isIntegralType(call.tensor(0).scalar_type(), /*includeBool=*/true))) {
    const at::Scalar exponent = call[1].toScalar();
    TORCH_CHECK(!exponent.isIntegral(/*includeBool=*/true) || exponent.toLong() >= 0,
                "Integers to negative integer powers are not allowed.");
  }
  call.proceed();
}

void install() {
  const QuietOverride quiet;
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, floor_divide, {{"aten::floor_divide", ""}});
  remedy(xla, divide_by_mode, {{"aten::div", "Tensor_mode"}});
  remedy(xla, power, {{"aten::pow", "Tensor_Scalar"}});
}

}  // namespace
}  // namespace castoff

// Puts the kernels in place; nullptr, or what went wrong. Call it once.
extern "C" __attribute__((visibility("default"))) const char* castoff_exact_integers_install() {
  return castoff::put_in_place(castoff::install);
}
