// Questions about dtypes, and refusals where torch refuses. On complex numbers XLA's builder often
// ends the process, and of integers torch_xla computes in integers: the mean of squared differences
// is rounded to one, and leaky_relu multiplies by 0.

#pragma once

#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <vector>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {

inline bool is_integral(ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true);
}

inline bool is_integral(const Tensor& t) {
  return is_integral(t.scalar_type());
}

inline ScalarType default_dtype() {
  return c10::typeMetaToScalarType(c10::get_default_dtype());
}

inline void check_real(Call& call, size_t argument = 0) {
  TORCH_CHECK_NOT_IMPLEMENTED(!call.tensor(argument).is_complex(), call.op().schema().name(),
                              ": not implemented for complex numbers, as on the CPU.");
}

inline void check_no_integers(Call& call, size_t argument = 0) {
  const ScalarType dtype = call.tensor(argument).scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(!is_integral(dtype), call.op().schema().name(),
                              ": not implemented for ", dtype,
                              ", as on the CPU. Convert it to floating point first.");
}

inline void check_no_bools(Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(call.tensor(0).scalar_type() != ScalarType::Bool,
                              call.op().schema().name(),
                              ": not implemented for Bool, as on the CPU.");
}

inline void check_floats(Call& call) {
  check_real(call);
  check_no_integers(call);
}

// Refuses operands of these dtypes, of which each is named once.
[[noreturn]] inline void refuse_mixed(const Call& call, const std::vector<ScalarType>& dtypes) {
  std::vector<ScalarType> seen;
  std::string found;
  for (const ScalarType dtype : dtypes) {
    if (std::find(seen.begin(), seen.end(), dtype) != seen.end()) continue;
    seen.push_back(dtype);
    found += (found.empty() ? "" : " and ") + std::string(c10::toString(dtype));
  }
  TORCH_CHECK(false, call.op().schema().name(), ": expected operands of the same dtype, but got ",
              found, ". Convert all of them to one of these first.");
}

}  // namespace castoff
