// The scores of attention that is written by hand, with a bias for each head.

#pragma once

#include <torch/library.h>

namespace castoff {

void install_scores_with_bias(torch::Library& xla);

}  // namespace castoff
