// Shifts, ranges and averages of integers.

#include <ATen/core/Tensor.h>
#include <ATen/ops/bitwise_left_shift_ops.h>
#include <ATen/ops/bitwise_right_shift_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/full.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/values.h"

namespace castoff {
namespace {

// self, other. torch_xla divides by a power of two, rounding towards zero, where the bits of a
// negative number move; its kernels of the other names for a shift move them.
template <class Op>
void shift(Call& call) {
  if (!call[1].isTensor()) {
    const ScalarType dtype = at::result_type(call.tensor(0), call[1].toScalar());
    TORCH_CHECK_NOT_IMPLEMENTED(is_integral(dtype), "a shift: ", "expected integers, but found ",
                                call.tensor(0).scalar_type(), " shifted by ", call[1].toScalar(),
                                ".");
    if (C10_UNLIKELY(dtype != call.tensor(0).scalar_type())) call[0] = call.tensor(0).to(dtype);
  }
  const Tensor self = call.tensor(0);
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) return call.proceed();
  const Below below;
  Tensor bits;
  if (call[1].isTensor()) {
    bits = call.tensor(1);
    if (!is_integral(bits)) return call.proceed();
  } else {
    const Scalar number = call[1].toScalar();
    // All bits leave: a count that every dtype has stands for larger ones, and for negative ones.
    const auto width = static_cast<int64_t>(8 * self.element_size());
    const int64_t count = number.toLong();
    bits = at::full({}, count < 0 || count > width ? width : count, self.options());
  }
  call.answer(Op::redispatch(kXla, self, bits));
}

// start, end, step, out: integers. A range of uint8 that passes 0 goes on at 255; torch_xla's ends
// there, but not where it passes 255.
void arange_of_integers(Call& call) {
  const int64_t start = call[0].toScalar().toLong(), end = call[1].toScalar().toLong();
  const int64_t least = std::min(start, end);
  if (C10_UNLIKELY(least < 0 && call.tensor(3).scalar_type() == ScalarType::Byte)) {
    const int64_t turns = (255 - least) / 256 * 256;
    call[0] = start + turns;
    call[1] = end + turns;
  }
  call.proceed();
}

// A step of .5 is 0 in an integer dtype: `count` times the start.
void repeat_start(Call& call, int64_t start, int64_t count) {
  call[0] = int64_t{0};
  call[1] = count;
  call[2] = int64_t{1};
  call.proceed();
  Tensor out = call.result().toTensor();
  at::_ops::fill__Scalar::redispatch(kXla, out, start);
}

// start, end, step, out. torch counts the elements in float64 and then computes in out's dtype;
// torch_xla counts in out's dtype, in which (1 - 0) / 0.1 is more than 10 and a step of 0.5 may be
// the integer 0, which ends the process.
void arange(Call& call) {
  const Scalar start = call[0].toScalar(), end = call[1].toScalar(), step = call[2].toScalar();
  const ScalarType dtype = call.tensor(3).scalar_type();
  const bool are_floats =
      start.isFloatingPoint() || end.isFloatingPoint() || step.isFloatingPoint();
  if (dtype == ScalarType::Bool) return call.proceed();
  if (C10_LIKELY(!are_floats)) return arange_of_integers(call);
  const bool of_integers = c10::isIntegralType(dtype, /*includeBool=*/false);
  const double begin = of_integers ? std::trunc(start.toDouble()) : start.toDouble();
  const double by = of_integers ? std::trunc(step.toDouble()) : step.toDouble();
  // Of int64 torch divides by the step that it has rounded to 0, which ends the process.
  const bool is_refused = step.toDouble() == 0 || (by == 0 && dtype == ScalarType::Long);
  TORCH_CHECK(!is_refused, "step must be nonzero");
  const double last = dtype == ScalarType::Long ? std::trunc(end.toDouble()) : end.toDouble();
  const double count = dtype == ScalarType::Long
                           ? std::ceil((last - begin) / by)
                           : std::ceil((last - start.toDouble()) / step.toDouble());
  if (!std::isfinite(count) || count < 1) return call.proceed();
  // An end from which every dtype counts the same.
  if (!of_integers) {
    call[1] = begin + (count - 0.5) * by;
    return call.proceed();
  }
  if (by == 0) return repeat_start(call, static_cast<int64_t>(begin), static_cast<int64_t>(count));
  call[0] = static_cast<int64_t>(begin);
  call[1] = static_cast<int64_t>(begin + count * by);
  call[2] = static_cast<int64_t>(by);
  arange_of_integers(call);
}

// self: -inf is no integer. torch_xla compares with what the dtype makes of it.
void isneginf(Call& call) {
  check_real(call);
  if (C10_LIKELY(!is_integral(call.tensor(0)))) return call.proceed();
  const Below below;
  call.answer(at::zeros(call.tensor(0).sizes(), call.tensor(0).options().dtype(at::kBool)));
}

// Averages of integers are integers, rounded towards zero.
void average_integers(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  check_real(call);
  if (C10_LIKELY(!is_integral(call.tensor(0)))) return call.proceed();
  check_no_bools(call);
  call[0] = cast(call.tensor(0), ScalarType::Double);
  call.proceed();
  call.result() = cast(call.result().toTensor(), dtype);
}

}  // namespace

void mend_integers(torch::Library& xla) {
  remedy(xla, shift<at::_ops::bitwise_left_shift_Tensor>, "__lshift__.Scalar __lshift__.Tensor");
  remedy(xla, shift<at::_ops::bitwise_right_shift_Tensor>, "__rshift__.Scalar __rshift__.Tensor");
  remedy(xla, arange, "arange.start_out");
  remedy(xla, isneginf, "isneginf");
  remedy(xla, average_integers, "avg_pool2d avg_pool3d");
}

}  // namespace castoff
