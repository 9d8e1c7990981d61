// Quotients of integers, exactly: torch_xla divides them as float32.

#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/floor_ops.h>
#include <ATen/ops/full_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/round_ops.h>
#include <ATen/ops/sgn_ops.h>

#include "torch_xla/csrc/castoff/kernels.h"
#include "torch_xla/csrc/castoff/target.h"

namespace castoff {

inline at::Tensor number(const at::Scalar& value, const at::Device& device, at::ScalarType dtype) {
  return at::_ops::full::redispatch(kXla, {}, value, dtype, at::kStrided, device,
                                    /*pin_memory=*/false);
}

// An operand in `dtype`, on the other's device: a number of Python can be on the CPU, and so can a
// tensor, which torch_xla's kernels of these operators send.
inline at::Tensor operand(const at::Tensor& t, const at::Tensor& other, at::ScalarType dtype) {
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    return number(t.item(), other.device(), dtype);
  }
  if (t.device().is_cpu()) return t.to(other.device(), dtype);
  return t.scalar_type() == dtype ? t : t.to(dtype);
}

enum class Rounding { kTrunc, kFloor };

// Each operator is one node, of torch_xla's kernel.
namespace division {

inline Tensor add(const Tensor& t, const Tensor& other, int64_t factor = 1) {
  return at::_ops::add_Tensor::redispatch(kXla, t, other, factor);
}

inline Tensor mul(const Tensor& a, const Tensor& b) {
  return at::_ops::mul_Tensor::redispatch(kXla, a, b);
}

// t + factor * a * b
inline Tensor add_product(const Tensor& t, const Tensor& a, const Tensor& b, int64_t factor = 1) {
  return at::_ops::addcmul::redispatch(kXla, t, a, b, factor);
}

inline Tensor sign(const Tensor& t) {
  return at::_ops::sgn::redispatch(kXla, t);
}

inline Tensor as_float(const Tensor& t) {
  return cast(t, at::kFloat);
}

// XLA has a division of integers, towards 0, and torch_xla it in addcdiv alone.
inline Tensor by_integers(const Tensor& a, const Tensor& b, Rounding rounding) {
  const Tensor zero = number(0, a.device(), a.scalar_type());
  const Tensor truncated = at::_ops::addcdiv::redispatch(kXla, zero, a, b, 1);
  if (rounding == Rounding::kTrunc) return truncated;
  // One less, where the rest has not the divisor's sign.
  const Tensor rest = add_product(a, truncated, b, -1);
  const Tensor is_beyond = at::_ops::lt_Scalar::redispatch(kXla, mul(rest, sign(b)), 0);
  return add(truncated, is_beyond, -1);
}

// Each step divides what is left of a as float32 and takes the product with b off, modulo 2^64: the
// first leaves an error of 2^41, the second one of 2^18, the third none but a part of b. Of 22 bits
// one step is enough.
inline Tensor by_floats(const Tensor& a, const Tensor& b, Rounding rounding, int steps) {
  const Tensor divisor = as_float(b), negated = at::_ops::neg::redispatch(kXla, b);
  const auto divided = [&](const Tensor& rest) {
    return at::_ops::div_Tensor::redispatch(kXla, as_float(rest), divisor);
  };
  const auto floor = [](const Tensor& t) { return at::_ops::floor::redispatch(kXla, t); };
  Tensor nearest, rest = a;
  for (int step = 1; step <= steps; ++step) {
    Tensor part = divided(rest);
    if (step == steps) part = at::_ops::round::redispatch(kXla, part);
    part = cast(part, a.scalar_type());
    nearest = step == 1 ? part : add(nearest, part);
    rest = add_product(rest, part, negated);
  }
  Tensor last = divided(rest);
  if (rounding == Rounding::kFloor) {
    last = floor(last);
  } else {
    const Tensor away = sign(as_float(nearest));
    last = mul(floor(mul(last, away)), away);
  }
  return add(nearest, cast(last, a.scalar_type()));
}

}  // namespace division

// a / b of two XLA tensors of one integer dtype, rounded; of a divisor that is 0 it has no meaning.
// is_short: they have 22 bits. A TPU's compiler divides int64 bit by bit, which takes eight times
// as long as divisions of float32, and int32 towards 0 no faster than these.
inline at::Tensor quotient(const at::Tensor& a, const at::Tensor& b, Rounding rounding,
                           bool is_short = false) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const bool is_long = a.scalar_type() == at::kLong;
  if (is_for_tpu() && (is_short || is_long || rounding == Rounding::kTrunc)) {
    return division::by_floats(a, b, rounding, is_short ? 1 : is_long ? 3 : 2);
  }
  return division::by_integers(a, b, rounding);
}

}  // namespace castoff
