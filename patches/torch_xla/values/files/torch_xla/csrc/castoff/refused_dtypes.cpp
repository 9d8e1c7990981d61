// Calls that torch refuses for the dtypes of their tensors.
//
// torch_xla computes them in the integer dtype, where leaky_relu multiplies by 0 and a sum of
// losses has no fractions, or its graph does not compile, with all that is pending in it.

#include "torch_xla/csrc/castoff/refused_dtypes.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "torch_xla/csrc/castoff/check_real.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using at::ScalarType;

void of_floats(Call& call) {
  check_no_integers(call);
  call.proceed();
}

// Of integers, an image of bytes alone.
void of_images(Call& call) {
  if (call.tensor(0).scalar_type() != ScalarType::Byte) check_no_integers(call);
  call.proceed();
}

void of_numbers(Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(call.tensor(0).scalar_type() != ScalarType::Bool,
                              call.op().schema().name(),
                              ": not implemented for Bool, as on the CPU.");
  call.proceed();
}

// self, …, dtype: of integers where that is a floating-point one.
template <int dtype>
void norm(Call& call) {
  if (dtype < 0 || call[dtype].isNone()) check_no_integers(call);
  call.proceed();
}

[[noreturn]] void refuse(const Call& call, ScalarType found, ScalarType other) {
  TORCH_CHECK(false, call.op().schema().name(), ": expected operands of the same dtype, but got ",
              found, " and ", other, ". Convert one of them first.");
}

// Integers beside floating-point numbers; of two floating-point dtypes see mixed-operands.
template <int position>
void of_one_kind(Call& call) {
  const ScalarType self = call.tensor(0).scalar_type();
  const ScalarType other = call.tensor(position).scalar_type();
  const auto is_integral = [](ScalarType dtype) { return c10::isIntegralType(dtype, true); };
  if (C10_UNLIKELY(self != other && (is_integral(self) || is_integral(other)))) {
    refuse(call, self, other);
  }
  call.proceed();
}

// A source that loses its fractions in self.
template <int position>
void of_source(Call& call) {
  const ScalarType self = call.tensor(0).scalar_type();
  const ScalarType source = call.tensor(position).scalar_type();
  if (C10_UNLIKELY(!c10::canCast(source, self))) refuse(call, self, source);
  call.proceed();
}

}  // namespace

void refuse_dtypes(torch::Library& xla) {
  remedy(xla, of_floats,
         "_linalg_svd _log_softmax _softmax celu "
         "cholesky elu frac gelu glu hardshrink hardsigmoid hardswish leaky_relu linalg_inv_ex "
         "log_sigmoid_forward mish nll_loss_forward nll_loss2d_forward selu silu "
         "soft_margin_loss softplus softshrink upsample_trilinear3d");
  remedy(xla, of_images, "upsample_bilinear2d");
  remedy(xla, of_numbers, "abs ceil floor hardtanh round threshold trunc");
  remedy(xla, norm<-1>, "norm.Scalar norm.ScalarOpt_dim");
  remedy(xla, norm<2>, "norm.ScalarOpt_dtype");
  remedy(xla, norm<4>, "norm.ScalarOpt_dim_dtype linalg_vector_norm");
  remedy(xla, of_one_kind<1>, "_softmax_backward_data triangular_solve");
  remedy(xla, of_one_kind<2>, "masked_scatter put");
  remedy(xla, of_one_kind<3>, "scatter.reduce scatter.src scatter_add scatter_reduce.two");
  remedy(xla, of_source<3>, "index_add index_copy");
}

}  // namespace castoff
