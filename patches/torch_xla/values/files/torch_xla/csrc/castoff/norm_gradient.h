// The gradient of a layer_norm or group_norm: norm_gradient.cpp.

#pragma once

#include <torch/library.h>

namespace castoff {

void mend_norm_gradient(torch::Library& xla);

}  // namespace castoff
