// Complex numbers: how complex128 gets to the CPU, and their means, spreads and norms:
// complex_numbers.cpp.

#pragma once

#include <torch/library.h>

namespace castoff {

void mend_complex_numbers(torch::Library& xla);

}  // namespace castoff
