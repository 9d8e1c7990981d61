// Norms, and the positions of extremes.

#include <ATen/core/Tensor.h>
#include <ATen/ops/isnan_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/view_copy.h>
#include <ATen/ops/where_ops.h>

#include <cmath>
#include <vector>

#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/values.h"

namespace castoff {
namespace {

// self, p, then dim, keepdim and dtype where the operator has them (-1: it has not): of complex
// numbers the norm of their magnitudes, of integers with a dtype alone. torch_xla sums powers,
// whatever the order is.
template <int dim, int keepdim, int dtype>
void norm(Call& call) {
  const bool has_dtype = dtype >= 0 && !call[dtype].isNone();
  const double p = call[1].isNone() ? 2.0 : call[1].toScalar().toDouble();
  const bool is_complex = call.tensor(0).is_complex();
  if (!has_dtype) check_no_integers(call);
  if (C10_LIKELY(!is_complex && !std::isinf(p))) return call.proceed();
  const Below below;
  const Tensor magnitude = call.tensor(0).abs();
  if (is_complex) {
    call[0] = magnitude;
    if (has_dtype) call[dtype] = c10::toRealValueType(call[dtype].toScalarType());
    if (!std::isinf(p)) return call.proceed();
  }
  std::vector<int64_t> dims;
  if (dim >= 0 && !call[dim].isNone()) dims = call[dim].toIntVector();
  const bool keep = keepdim >= 0 && call[keepdim].toBool();
  const Tensor of = has_dtype ? magnitude.to(call[dtype].toScalarType()) : magnitude;
  call.answer(p > 0 ? of.amax(dims, keep) : of.amin(dims, keep));
}

Tensor viewed(const Tensor& t, at::IntArrayRef sizes) {
  return t.sizes() == sizes ? t : at::view_copy(t, sizes);
}

// self, dim, keepdim: the first NaN is the largest and the smallest element. torch_xla compares,
// and no comparison with NaN is true.
void index_of_extreme(Call& call) {
  check_real(call);
  const Tensor self = call.tensor(0);
  if (!c10::isFloatingType(self.scalar_type()) || self.numel() == 0) return call.proceed();
  const bool of_all = call[1].isNone();
  const int64_t dim = of_all ? 0 : call[1].toInt();
  const bool keep = !of_all && call[2].toBool();
  call.proceed();
  const Below below;
  Tensor is_nan = at::_ops::isnan::redispatch(kXla, self);
  if (of_all) is_nan = viewed(is_nan, {self.numel()});
  auto [has_nan, first] = at::_ops::max_dim::redispatch(kXla, is_nan, dim, keep);
  const Tensor& found = call.result().toTensor();
  if (of_all) first = viewed(first, found.sizes());
  call.result() = at::_ops::where_self::redispatch(kXla, has_nan, first, found);
}

}  // namespace

void mend_reductions(torch::Library& xla) {
  remedy(xla, norm<-1, -1, -1>, "norm.Scalar");
  remedy(xla, norm<-1, -1, 2>, "norm.ScalarOpt_dtype");
  remedy(xla, norm<2, 3, -1>, "norm.ScalarOpt_dim");
  remedy(xla, norm<2, 3, 4>, "norm.ScalarOpt_dim_dtype linalg_vector_norm");
  remedy(xla, index_of_extreme, "argmax argmin");
}

}  // namespace castoff
