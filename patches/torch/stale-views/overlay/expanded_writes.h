#pragma once

#include <ATen/core/Tensor.h>

namespace torch::castoff {

// The value of `base` after `written`, the value of a view of it by expand(), was written. Where
// several elements of the view are one of the base, that is the first which the write changed.
at::Tensor expanded_base(const at::Tensor& base, const at::Tensor& written);

}  // namespace torch::castoff
