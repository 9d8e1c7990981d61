// Indices that count from the end, and indices beyond what they index: indices.cpp.

#pragma once

#include <torch/library.h>

namespace castoff {

void mend_indices(torch::Library& xla);

}  // namespace castoff
