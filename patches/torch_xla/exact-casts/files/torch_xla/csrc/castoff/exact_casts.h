// What exact-casts knows about a tensor's widenings, for the topics that stand on it.

#pragma once

#include <ATen/core/Tensor.h>

#include "torch_xla/csrc/castoff/lazy_ir.h"

namespace castoff {

// The type that a tensor was exactly widened from, views since then aside; kUnknown if its IR does
// not say so.
lazy_ir::ElementType widened_from(const at::Tensor& tensor);

// A tensor that was widened from `narrow`, as it was before, with the views since then; an
// undefined one if there is more on its IR than casts and views.
at::Tensor before_widening(const at::Tensor& tensor, at::ScalarType narrow);

}  // namespace castoff
