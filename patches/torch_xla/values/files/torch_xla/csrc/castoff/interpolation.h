// Upsampling by a scale that is not that of the sizes: interpolation.cpp.

#pragma once

#include <torch/library.h>

namespace castoff {

void mend_interpolation(torch::Library& xla);

}  // namespace castoff
