#pragma once

// One source serves every pin: a topic keeps what differs between their headers in one file of its
// own, and asks here which torch it is compiled for.

#include <torch/version.h>

#define CASTOFF_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||          \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))
