// Operators whose values torch_xla gets wrong, or whose arguments it refuses. Each remedy takes the
// calls of that form alone.

#include "torch_xla/csrc/castoff/values.h"

#include <c10/core/ScalarType.h>

#include "torch_xla/csrc/castoff/kernels.h"

namespace castoff {
namespace {

bool is_installed = false;

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  torch::Library& autograd = library(torch::Library::IMPL, "aten", kAutograd);
  mend_complex_numbers(xla);
  mend_indices(xla);
  mend_integers(xla);
  mend_matrices(xla, autograd);
  mend_normalization(xla, autograd);
  mend_reductions(xla);
  mend_resampling(xla);
  mend_second_gradients(autograd);
  mend_shapes(xla);
  mend_unfolding();
  mend_views(xla, autograd);
  mend_wide_steps(xla, autograd);
  refuse_dtypes(xla, autograd);
  is_installed = true;
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_values_install)

// Whether layer_norm of tensors of this dtype is computed in float32.
extern "C" __attribute__((visibility("default"))) bool castoff_values_computes_wide(
    at::ScalarType dtype) {
  return castoff::is_installed && castoff::is_computed_wide(dtype);
}
