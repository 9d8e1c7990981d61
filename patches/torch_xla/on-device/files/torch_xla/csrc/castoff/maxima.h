// The part of topic on-device for maxima and minima.

#pragma once

#include <torch/library.h>

#include <functional>

#include "torch_xla/csrc/castoff/present_kernel.h"

namespace castoff {

// The kernel for XLA that an operator had before Python's functions.
using EarlierKernel = std::function<PresentKernel(const char* name, const char* overload)>;

// Puts the kernels of maxima and minima in front of Python's functions, which are in place.
void begin_maxima_at_infinity(torch::Library& xla, const EarlierKernel& earlier);

}  // namespace castoff
