// Linears that a batched product of matrices reads.

#pragma once

#include <torch/library.h>

namespace castoff {

void install_products_of_heads(torch::Library& xla);

}  // namespace castoff
