// Included ahead of every source of an overlay, and compiled only once where many sources are
// compiled. So it has no #pragma once, of which the compiler warns in a file that is compiled
// itself.
#include "compat.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>
