// Operators of which torch_xla lowers most calls and hands the others to the CPU. These are
// answered on the device; the most go to torch_xla's kernel at no cost.

#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/conj_physical_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/view_copy_ops.h>
#include <ATen/ops/where_ops.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/target.h"
#include "torch_xla/csrc/castoff/wide.h"

namespace castoff {
namespace {

// ---- x[mask] = values, where the values are the same at each place that the mask chooses: a
// choice of elements. torch_xla looks for the places first, whose number it must know: the graph is
// cut.

// The only index, which is a mask, and the dimension that it begins at.
struct Mask {
  Tensor mask;
  int64_t dim = 0;
};

// An undefined mask for indices of any other form.
Mask mask_of(const Tensor& self, const c10::IValue& indices) {
  Mask found;
  int64_t dim = 0;
  for (const c10::IValue& index : indices.toListRef()) {
    if (is_tensor(index)) {
      const Tensor& mask = index.toTensor();
      if (found.mask.defined() || mask.scalar_type() != at::ScalarType::Bool) return {};
      found = {mask, dim};
    }
    ++dim;
  }
  if (!found.mask.defined() || found.mask.dim() == 0) return {};
  const int64_t end = found.dim + found.mask.dim();
  const bool fits = end <= self.dim() &&
                    found.mask.sizes() == self.sizes().slice(found.dim, found.mask.dim()) &&
                    found.mask.device() == self.device();
  return fits ? found : Mask{};
}

Tensor viewed(const Tensor& x, const std::vector<int64_t>& sizes) {
  return x.sizes() == at::IntArrayRef(sizes)
             ? x
             : at::_ops::view_copy::call(x, c10::fromIntArrayRefSlow(sizes));
}

// `values` with as many dimensions for the places as the mask has, all of size 1; undefined if the
// values differ from place to place. `after` is the number of self's dimensions after the mask's.
Tensor at_each_place(const Tensor& values, const Mask& mask, int64_t after) {
  const int64_t places = values.dim() - 1 - after;
  if (places < 0) return values;
  if (values.size(places) != 1 || places > mask.dim) return {};
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes.insert(sizes.begin() + places, mask.mask.dim() - 1, 1);
  return viewed(values, sizes);
}

bool broadcasts(const Tensor& values, at::IntArrayRef sizes) {
  const auto rank = static_cast<int64_t>(sizes.size());
  if (values.dim() > rank) return false;
  const auto to = sizes.slice(rank - values.dim());
  return std::equal(to.begin(), to.end(), values.sizes().begin(),
                    [](int64_t size, int64_t own) { return own == size || own == 1; });
}

// What x[mask] = value writes: on the CPU, whose kernel is masked_fill's, a single value may be of
// any dtype.
Tensor written_value(const Tensor& value, const Tensor& self, bool accumulate) {
  const bool is_taken =
      !accumulate && value.numel() == 1 && (self.is_complex() || !value.is_complex());
  return is_taken ? value.to(self.device(), self.scalar_type()) : value;
}

// self, indices, values, accumulate, …
void write_masked(Call& call) {
  const Tensor self = call.tensor(0);
  const Mask mask = mask_of(self, call[1]);
  if (C10_LIKELY(!mask.mask.defined())) return call.proceed();
  const bool accumulate = call[3].toBool();
  const Tensor given = written_value(call.tensor(2), self, accumulate);
  if (given.scalar_type() != self.scalar_type() || given.device() != self.device()) {
    return call.proceed();
  }
  const int64_t after = self.dim() - mask.dim - mask.mask.dim();
  const Tensor values = at_each_place(given, mask, after);
  if (!values.defined() || !broadcasts(values, self.sizes())) return call.proceed();
  std::vector<int64_t> sizes = mask.mask.sizes().vec();
  sizes.insert(sizes.end(), after, 1);
  const Tensor written = accumulate ? at::_ops::add_Tensor::call(self, values, 1) : values;
  const Tensor result = at::_ops::where_self::call(viewed(mask.mask, sizes), written, self);
  at::_ops::copy_::call(const_cast<Tensor&>(self), result, /*non_blocking=*/false);
  call.answer(self);
}

// ---- others

bool is_one(const c10::Scalar& number) {
  return number.equal(1);
}

// self, mat1, mat2, beta, alpha; torch_xla has it for factors of 1. What is narrow is computed in
// float32 and rounded once. TPUs have no products of integers.
void scaled_addmm(Call& call) {
  const c10::Scalar beta = call[3].toScalar(), alpha = call[4].toScalar();
  if (C10_LIKELY(is_one(beta) && is_one(alpha))) return call.proceed();
  const Tensor self = call.tensor(0), first = call.tensor(1), second = call.tensor(2);
  const at::ScalarType dtype = self.scalar_type();
  const bool one_dtype = first.scalar_type() == dtype && second.scalar_type() == dtype;
  const bool matrices = first.dim() == 2 && second.dim() == 2 && first.size(1) == second.size(0);
  const bool integers = c10::isIntegralType(dtype, /*includeBool=*/true);
  const bool whole = beta.isIntegral(false) && alpha.isIntegral(false);
  const bool of_reals = !c10::isComplexType(dtype);
  if (!one_dtype || !matrices || (of_reals && (beta.isComplex() || alpha.isComplex())) ||
      (integers && (!whole || is_for_tpu())) || dtype == at::ScalarType::Bool ||
      !broadcasts(self, {first.size(0), second.size(1)})) {
    return call.proceed();
  }
  Tensor result = at::_ops::mm::call(widened(first), widened(second));
  result = at::_ops::mul_Scalar::call(result, alpha);
  if (!beta.equal(0)) {
    result = at::_ops::add_Tensor::call(result, at::_ops::mul_Scalar::call(widened(self), beta), 1);
  }
  call.answer(result);
  if (is_half(dtype)) round(call, dtype);
}

// self, p, dim, keepdim: of order 0 it counts.
void counting_norm(Call& call) {
  const bool counts = call[1].isScalar() && call[1].toScalar().equal(0);
  const Tensor& self = call.tensor(0);
  if (C10_LIKELY(!counts || !self.is_floating_point())) return call.proceed();
  const at::ScalarType dtype = self.scalar_type();
  const at::ScalarType wide = is_half(dtype) ? at::ScalarType::Float : dtype;
  const Tensor found = at::_ops::sum_dim_IntList::call(
      at::_ops::ne_Scalar::call(self, 0), call[2].toIntVector(), call[3].toBool(), wide);
  call.answer(wide == dtype ? found : cast(found, dtype));
}

// self, out. What calls it is a kernel of torch.
void conjugate_into(Call& call) {
  const Tensor self = call.tensor(0);
  Tensor out = call.tensor(1);
  if (out.sizes() != self.sizes() || out.scalar_type() != self.scalar_type()) return call.proceed();
  at::_ops::copy_::call(out, at::_ops::conj_physical::call(self), /*non_blocking=*/false);
  call.answer(out);
}

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, write_masked, "index_put_ _index_put_impl_");
  remedy(xla, scaled_addmm, "addmm");
  remedy(xla, counting_norm, "norm.ScalarOpt_dim");
  remedy(xla, conjugate_into, "conj_physical.out");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_on_device_install)
