// Operators of bfloat16 and float16 that are computed in float32 and rounded once.

#pragma once

#include <ATen/core/Tensor.h>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {

inline bool is_half_tensor(const c10::IValue& value) {
  return is_tensor(value) && is_half(value.toTensor().scalar_type());
}

inline at::Tensor widened(const at::Tensor& t) {
  return is_half(t.scalar_type()) ? cast(t, at::ScalarType::Float) : t;
}

// The arguments that are tensors of a half dtype, in float32.
inline void widen(Call& call) {
  for (size_t i = 0; i < call.size(); ++i) {
    if (is_half_tensor(call[i])) call[i] = cast(call.tensor(i), at::ScalarType::Float);
  }
}

// Rounds the results of the answered call that are float32.
inline void round(Call& call, at::ScalarType dtype) {
  for (size_t i = 0; i < call.results(); ++i) {
    if (!call.result(i).isTensor()) continue;
    const at::Tensor& result = call.result(i).toTensor();
    if (result.defined() && result.scalar_type() == at::ScalarType::Float) {
      call.result(i) = cast(result, dtype);
    }
  }
}

inline bool have_dtype(Call& call, at::ScalarType dtype) {
  for (size_t i = 0; i < call.size(); ++i) {
    if (is_tensor(call[i]) && call.tensor(i).scalar_type() != dtype) return false;
  }
  return true;
}

// Operands of one half dtype in float32, and the results in that dtype.
inline void compute_wide(Call& call) {
  if (C10_LIKELY(!is_half_tensor(call[0]))) return call.proceed();
  const at::ScalarType dtype = call.tensor(0).scalar_type();
  if (!have_dtype(call, dtype)) return call.proceed();
  widen(call);
  call.proceed();
  round(call, dtype);
}

}  // namespace castoff
