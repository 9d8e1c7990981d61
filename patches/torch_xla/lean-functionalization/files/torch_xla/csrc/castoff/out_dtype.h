#pragma once

#include <torch/library.h>

namespace castoff {

void refuse_results_for_out(torch::Library& functionalize);

}  // namespace castoff
