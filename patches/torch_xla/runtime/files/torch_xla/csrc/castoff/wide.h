// Operators of bfloat16 and float16 that are computed in float32 and rounded once.

#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

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
  for (c10::IValue& argument : call) {
    if (is_half_tensor(argument)) argument = cast(argument.toTensor(), at::ScalarType::Float);
  }
}

// Rounds the results of the answered call that are float32.
inline void round(Call& call, at::ScalarType dtype) {
  for (size_t i = 0; i < call.results(); ++i) {
    c10::IValue& result = call.result(i);
    if (is_tensor(result) && result.toTensor().scalar_type() == at::ScalarType::Float) {
      result = cast(result.toTensor(), dtype);
    }
  }
}

inline bool have_dtype(Call& call, at::ScalarType dtype) {
  return std::all_of(call.begin(), call.end(), [=](const c10::IValue& argument) {
    return !is_tensor(argument) || argument.toTensor().scalar_type() == dtype;
  });
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

// The same above autograd, so that the gradients are computed so, too; of dtypes that are met.
template <bool (*is_met)(at::ScalarType)>
void compute_wide_with_gradients(Call& call) {
  const at::ScalarType dtype = call.tensor(0).scalar_type();
  if (C10_LIKELY(!is_met(dtype)) || !have_dtype(call, dtype)) return call.proceed();
  for (c10::IValue& argument : call) {
    if (is_half_tensor(argument)) argument = argument.toTensor().to(at::ScalarType::Float);
  }
  call.proceed();
  for (size_t i = 0; i < call.results(); ++i) {
    c10::IValue& result = call.result(i);
    if (is_tensor(result)) result = result.toTensor().to(dtype);
  }
}

}  // namespace castoff
