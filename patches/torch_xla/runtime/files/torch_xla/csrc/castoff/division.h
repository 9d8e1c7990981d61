// Quotients of integers, exactly: torch_xla divides them as float32.

#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>

#include "torch_xla/csrc/castoff/kernels.h"

namespace castoff {

// An operand in `dtype`, on the other's device: a number of Python can be on the CPU, and so can a
// tensor, which torch_xla's kernels of these operators send.
inline at::Tensor operand(const at::Tensor& t, const at::Tensor& other, at::ScalarType dtype) {
  if (!t.unsafeGetTensorImpl()->is_wrapped_number()) {
    return t.device().is_cpu() ? t.to(other.device(), dtype) : t.to(dtype);
  }
  return at::full({}, t.item(), other.options().dtype(dtype));
}

enum class Rounding { kTrunc, kFloor };

// a / b of two tensors of one integer dtype, rounded; of a divisor that is 0 it has no meaning.
//
// Each step divides what is left of a as float32 and takes the product with b off, modulo 2^64: the
// first leaves an error of 2^41, the second one of 2^18, the third none. Of int32 two are enough,
// of 22 bits (`is_short`) one. XLA's own division of integers has no operator in torch_xla.
inline at::Tensor quotient(const at::Tensor& a, const at::Tensor& b, Rounding rounding,
                           bool is_short = false) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::ScalarType dtype = a.scalar_type();
  const at::Tensor divisor = b.to(at::ScalarType::Float);
  at::Tensor result, rest = a;
  const int steps = is_short ? 1 : dtype == at::ScalarType::Long ? 3 : 2;
  for (int i = 0; i < steps; ++i) {
    const at::Tensor part = (rest.to(at::ScalarType::Float) / divisor).round().to(dtype);
    result = i == 0 ? part : result + part;
    rest = rest - part * b;
  }
  // The nearest integer; one less, or one nearer to 0, where the rest has the other sign.
  const at::Tensor is_beyond =
      (rest != 0).logical_and((rest < 0) != (rounding == Rounding::kFloor ? b < 0 : a < 0));
  if (rounding == Rounding::kFloor) return result - is_beyond.to(dtype);
  const at::Tensor towards_zero = at::where((a < 0) != (b < 0), 1, -1).to(dtype);
  return at::where(is_beyond, result + towards_zero, result);
}

}  // namespace castoff
