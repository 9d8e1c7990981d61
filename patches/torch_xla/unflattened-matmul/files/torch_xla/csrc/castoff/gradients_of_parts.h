// The gradients of a tensor's parts, side by side in place of their sum.

#pragma once

#include <torch/library.h>

namespace castoff {

void install_gradients_of_parts(torch::Library& xla);

}  // namespace castoff
