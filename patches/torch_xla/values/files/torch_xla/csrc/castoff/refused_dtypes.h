// Calls that torch refuses for the dtypes of their tensors: refused_dtypes.cpp.

#pragma once

#include <torch/library.h>

namespace castoff {

void refuse_dtypes(torch::Library& xla);

}  // namespace castoff
