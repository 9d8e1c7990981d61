// A number where a mask is, by one node: `at::where` makes tensors of numbers first.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/masked_fill_ops.h>

#include "torch_xla/csrc/castoff/kernels.h"

namespace castoff {

inline at::Tensor filled(const at::Tensor& mask, const at::Tensor& rest, const at::Scalar& number) {
  return at::_ops::masked_fill_Scalar::redispatch(kXla, rest, mask, number);
}

}  // namespace castoff
