// Refuses dtypes where torch does. On complex numbers XLA's builder often ends the process, and of
// integers torch_xla computes in integers: the mean of squared differences is rounded to one.

#pragma once

#include <c10/util/Exception.h>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {

inline void check_real(Call& call, size_t argument = 0) {
  TORCH_CHECK_NOT_IMPLEMENTED(!call.tensor(argument).is_complex(), call.op().schema().name(),
                              ": not implemented for complex numbers, as on the CPU.");
}

inline void check_no_integers(Call& call, size_t argument = 0) {
  const at::ScalarType dtype = call.tensor(argument).scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isIntegralType(dtype, /*includeBool=*/true),
                              call.op().schema().name(), ": not implemented for ", dtype,
                              ", as on the CPU. Convert it to floating point first.");
}

}  // namespace castoff
