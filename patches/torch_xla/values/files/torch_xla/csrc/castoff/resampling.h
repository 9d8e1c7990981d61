// Interpolation, and padding by the element at the edge: resampling.cpp.

#pragma once

#include <torch/library.h>

namespace castoff {

void mend_resampling(torch::Library& xla);

}  // namespace castoff
