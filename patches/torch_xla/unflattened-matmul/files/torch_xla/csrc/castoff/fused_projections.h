// Projections that one product computes, taken apart by its columns.

#pragma once

#include <torch/library.h>

#include <cstdint>

namespace castoff {

// The rows of a tile, in which a TPU keeps the last two dimensions of an array.
inline constexpr int64_t kTileRows = 8;

void install_fused_projections(torch::Library& xla);

}  // namespace castoff
