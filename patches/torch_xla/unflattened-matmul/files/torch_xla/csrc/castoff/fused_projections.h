// Projections that one product computes, taken apart by its columns.

#pragma once

#include <torch/library.h>

namespace castoff {

void install_fused_projections(torch::Library& xla);

}  // namespace castoff
