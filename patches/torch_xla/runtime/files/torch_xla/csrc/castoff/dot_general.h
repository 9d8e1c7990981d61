// The product that matmul-out-dtype defines, for its own kernels and those of other topics.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace castoff {

// castoff::dot_general: as jax.lax.dot_general, with `dtype` for its preferred_element_type.
inline at::Tensor dot_general(const at::Tensor& lhs, const at::Tensor& rhs,
                              at::IntArrayRef lhs_contracting, at::IntArrayRef rhs_contracting,
                              at::IntArrayRef batch, at::ScalarType dtype) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, at::IntArrayRef,
                               at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, at::ScalarType);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("castoff::dot_general", "").typed<Signature>();
  return op.call(lhs, rhs, lhs_contracting, rhs_contracting, batch, batch, dtype);
}

}  // namespace castoff
