// Refuses complex numbers where torch does. XLA's builder ends the process on many of them.

#pragma once

#include <c10/util/Exception.h>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {

inline void check_real(Call& call, size_t argument = 0) {
  TORCH_CHECK_NOT_IMPLEMENTED(!call.tensor(argument).is_complex(), call.op().schema().name(),
                              ": not implemented for complex numbers, as on the CPU.");
}

}  // namespace castoff
