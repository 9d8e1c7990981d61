// Calls that torch refuses for the dtypes of their tensors, and what XLA does not have.
//
// torch_xla computes them in the integer dtype, where leaky_relu multiplies by 0 and a sum of
// losses has no fractions, or its graph does not compile, with all that is pending in it.

#include <ATen/core/Tensor.h>

#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/values.h"

namespace castoff {
namespace {

void of_floats(Call& call) {
  check_no_integers(call);
  call.proceed();
}

void of_numbers(Call& call) {
  check_no_bools(call);
  call.proceed();
}

void of_reals(Call& call) {
  check_real(call);
  call.proceed();
}

void of_real_floats(Call& call) {
  check_floats(call);
  call.proceed();
}

[[noreturn]] void sparse_tensor(Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, call.op().schema().name(), ": expected an operator of dense tensors, as XLA has no ",
      "sparse ones. Convert on the CPU, x.cpu().to_sparse(), or ask for a dense gradient.");
}

[[noreturn]] void half_complex(Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, call.op().schema().name(), ": expected complex64 or complex128, as XLA has no ",
      "complex numbers of float16. Use x.cfloat(), or torch.complex of float32 tensors.");
}

void complex_of_parts(Call& call) {
  if (C10_UNLIKELY(call.tensor(0).scalar_type() == ScalarType::Half)) half_complex(call);
  call.proceed();
}

}  // namespace

void refuse_dtypes(torch::Library& xla, torch::Library& autograd) {
  remedy(xla, of_floats,
         "celu cholesky elu frac hardshrink leaky_relu mish selu silu soft_margin_loss "
         "upsample_trilinear3d");
  remedy(xla, of_real_floats, "hardsigmoid hardswish");
  remedy(xla, of_reals, "fmod.Scalar fmod.Tensor max_unpool2d max_unpool3d");
  remedy(xla, of_numbers, "ceil floor hardtanh round trunc");
  remedy(xla, sparse_tensor,
         "_to_sparse _to_sparse.sparse_dim _to_sparse_bsc _to_sparse_bsr _to_sparse_csc "
         "_to_sparse_csr");
  remedy(autograd, sparse_tensor, "embedding_sparse_backward", kAutograd);
  remedy(xla, complex_of_parts, "complex view_as_complex_copy");
  remedy(autograd, half_complex, "chalf", kAutograd);
}

}  // namespace castoff
