// Complex numbers.
//
// torch_xla brings complex128 to the CPU without its imaginary parts. Every way there is one of
// five operators, which have them brought as float64 here. Of means and variances it raises.

#include "torch_xla/csrc/castoff/values.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/kaiser_window.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/var.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real_copy.h>
#include <c10/core/ScalarType.h>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- the way to the CPU

bool is_sent_halved(const Tensor& t) {
  return t.defined() && t.scalar_type() == ScalarType::ComplexDouble && t.is_xla();
}

// A copy on the CPU, by way of the parts.
Tensor fetched(const Tensor& t) {
  const Below below;
  const Tensor parts = at::_ops::_to_copy::redispatch(kXla, at::view_as_real_copy(t), {}, {},
                                                      at::Device(at::kCPU), {}, false, {});
  return at::view_as_complex(parts);
}

// self, dtype, layout, device, …: what is false of a complex number is 0, not its real part alone.
void to_copy(Call& call) {
  const Tensor self = call.tensor(0);
  if (C10_LIKELY(!self.is_complex())) return call.proceed();
  const ScalarType dtype = call[1].isNone() ? self.scalar_type() : call[1].toScalarType();
  if (dtype == ScalarType::Bool) {
    const Below below;
    call[0] = self.ne(0);
    return call.proceed();
  }
  const bool leaves = !call[3].isNone() && call[3].toDevice().is_cpu();
  if (!leaves || !is_sent_halved(self)) return call.proceed();
  call.answer(fetched(self).to(dtype));
}

// self, destination, …
void copy_from(Call& call) {
  const Tensor self = call.tensor(0), destination = call.tensor(1);
  if (C10_LIKELY(!is_sent_halved(self) || !destination.is_cpu())) return call.proceed();
  call.answer(destination.copy_(fetched(self)));
}

// self, source, …
void copy(Call& call) {
  const Tensor self = call.tensor(0), source = call.tensor(1);
  if (C10_LIKELY(!is_sent_halved(source) || !self.is_cpu())) return call.proceed();
  call.answer(self.copy_(fetched(source)));
}

void copy_from_and_resize(Call& call) {
  const Tensor self = call.tensor(0), destination = call.tensor(1);
  if (C10_LIKELY(!is_sent_halved(self) || !destination.is_cpu())) return call.proceed();
  call.answer(destination.resize_(self.sizes()).copy_(fetched(self)));
}

// A list, of which the others go as ever.
void to_cpu(Call& call) {
  const std::vector<Tensor> tensors = call[0].toTensorVector();
  call.proceed();
  auto copies = call.result().toTensorVector();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (C10_UNLIKELY(is_sent_halved(tensors[i]))) copies[i] = fetched(tensors[i]);
  }
  call.result() = std::move(copies);
}

void number(Call& call) {
  const Tensor self = call.tensor(0);
  if (C10_LIKELY(!is_sent_halved(self))) return call.proceed();
  call.answer(fetched(self).item());
}

// ---- reductions

std::vector<int64_t> dims_of(const c10::IValue& dims) {
  return dims.isNone() ? std::vector<int64_t>() : dims.toIntVector();
}

// self, [dim, keepdim,] dtype
template <int dtype>
void mean(Call& call) {
  const Tensor self = call.tensor(0);
  const ScalarType result = call[dtype].isNone() ? self.scalar_type() : call[dtype].toScalarType();
  if (C10_LIKELY(!c10::isComplexType(result))) return call.proceed();
  const auto dims = dtype == 1 ? std::vector<int64_t>() : dims_of(call[1]);
  const bool keep = dtype != 1 && call[2].toBool();
  const Below below;
  const Tensor total = self.to(result).sum(dims, keep);
  const int64_t count = total.numel() == 0 ? 1 : self.numel() / total.numel();
  call.answer(total.div(count));
}

// The variance of complex numbers is that of their real parts and that of their imaginary ones.
Tensor variance(const Tensor& self, const std::vector<int64_t>& dims,
                const std::optional<at::Scalar>& correction, bool keep) {
  const Tensor parts = at::view_as_real_copy(self);
  at::OptionalIntArrayRef along;
  if (!dims.empty()) along = dims;
  return at::var(parts.select(-1, 0), along, correction, keep) +
         at::var(parts.select(-1, 1), along, correction, keep);
}

// self, dim, correction, keepdim
template <bool root>
Tensor spread_of(Call& call) {
  std::optional<at::Scalar> correction;
  if (!call[2].isNone()) correction = call[2].toScalar();
  const Tensor found = variance(call.tensor(0), dims_of(call[1]), correction, call[3].toBool());
  return root ? found.sqrt() : found;
}

template <bool root>
void spread(Call& call) {
  if (C10_LIKELY(!call.tensor(0).is_complex())) return call.proceed();
  const Below below;
  call.answer(spread_of<root>(call));
}

template <bool root>
void spread_and_mean(Call& call) {
  if (C10_LIKELY(!call.tensor(0).is_complex())) return call.proceed();
  const Below below;
  call.answer(spread_of<root>(call), call.tensor(0).mean(dims_of(call[1]), call[3].toBool()));
}

// self, unbiased
void std_of_all(Call& call) {
  const Tensor self = call.tensor(0);
  if (C10_LIKELY(!self.is_complex())) return call.proceed();
  const Below below;
  call.answer(variance(self, {}, at::Scalar(call[1].toBool() ? 1 : 0), false).sqrt());
}

// self, dim, unbiased, keepdim
void std_of_dims(Call& call) {
  const Tensor self = call.tensor(0);
  if (C10_LIKELY(!self.is_complex())) return call.proceed();
  const at::Scalar correction(call[2].toBool() ? 1 : 0);
  const Below below;
  call.answer(variance(self, dims_of(call[1]), correction, call[3].toBool()).sqrt());
}

void is_nan(Call& call) {
  const Tensor self = call.tensor(0);
  if (C10_LIKELY(!self.is_complex())) return call.proceed();
  const Below below;
  call.answer(at::view_as_real_copy(self).isnan().any(-1));
}

void is_infinite(Call& call) {
  const Tensor self = call.tensor(0);
  if (C10_LIKELY(!self.is_complex())) return call.proceed();
  const Below below;
  call.answer(at::view_as_real_copy(self).isinf().any(-1));
}

// self, dim, keepdim: the largest real part is taken off, as by torch.
void logsumexp(Call& call) {
  const Tensor self = call.tensor(0);
  if (C10_LIKELY(!self.is_complex() || self.numel() == 0)) return call.proceed();
  const std::vector<int64_t> dims = call[1].toIntVector();
  const bool keepdim = call[2].toBool();
  const Below below;
  const Tensor real = at::view_as_real_copy(self).select(-1, 0);
  const auto largest = [&](bool keep) {
    const Tensor found = real.amax(dims, keep);
    return found.masked_fill(found.abs() == kInfinity, 0);
  };
  const Tensor total = self.sub(largest(true)).exp().sum(dims, keepdim);
  // XLA takes log(exp(x)) for x, whose imaginary part may be beyond pi.
  const bool is_single = total.numel() == self.numel();
  const Tensor log = is_single ? total.mul(0.5).log().add(std::log(2.0)) : total.log();
  call.answer(log.add(largest(keepdim)));
}

// ---- others

// self: torch_xla gives the magnitude of a complex number as a complex number.
void magnitude(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  check_no_bools(call);
  call.proceed();
  if (C10_LIKELY(!c10::isComplexType(dtype))) return;
  const Below below;
  call.result() = at::view_as_real_copy(call.result().toTensor()).select(-1, 0);
}

// size, number, dtype, …: torch_xla takes complex128 for the dtype of a number of Python's.
void full(Call& call) {
  if (C10_UNLIKELY(call[1].toScalar().isComplex() && call[2].isNone())) {
    const ScalarType real = default_dtype();
    call[2] = c10::toComplexType(real);
  }
  call.proceed();
}

// grad_output, output: torch_xla multiplies by a derivative that is not conjugated.
void conjugated(Call& call) {
  if (C10_UNLIKELY(call.tensor(1).is_complex())) {
    const Below below;
    call[1] = at::conj_physical(call.tensor(1));
  }
  call.proceed();
}

// window_length, [periodic, [beta,]] dtype, layout, device, …: torch has it for the CPU and CUDA.
template <int given>
void kaiser_window(Call& call) {
  const Below below;
  const bool periodic = given < 2 || call[1].toBool();
  const double beta = given < 3 ? 12.0 : call[2].toDouble();
  at::TensorOptions options(at::kCPU);
  if (!call[given].isNone()) options = options.dtype(call[given].toScalarType());
  const Tensor window = at::kaiser_window(call[0].toInt(), periodic, beta, options);
  call.answer(window.to(call[given + 2].toDevice()));
}

}  // namespace

void mend_complex_numbers(torch::Library& xla) {
  remedy(xla, to_copy, "_to_copy");
  remedy(xla, copy, "copy_");
  remedy(xla, copy_from, "_copy_from");
  remedy(xla, copy_from_and_resize, "_copy_from_and_resize");
  remedy(xla, to_cpu, "_to_cpu");
  remedy(xla, number, "_local_scalar_dense");
  remedy(xla, mean<1>, "mean");
  remedy(xla, mean<3>, "mean.dim");
  remedy(xla, std_of_all, "std");
  remedy(xla, std_of_dims, "std.dim");
  remedy(xla, spread<true>, "std.correction");
  remedy(xla, spread<false>, "var.correction");
  remedy(xla, spread_and_mean<false>, "var_mean.correction");
  remedy(xla, spread_and_mean<true>, "std_mean.correction");
  remedy(xla, is_nan, "isnan");
  remedy(xla, is_infinite, "isinf");
  remedy(xla, logsumexp, "logsumexp");
  remedy(xla, magnitude, "abs");
  remedy(xla, full, "full");
  remedy(xla, conjugated, "sigmoid_backward tanh_backward");
  remedy(xla, kaiser_window<1>, "kaiser_window");
  remedy(xla, kaiser_window<2>, "kaiser_window.periodic");
  remedy(xla, kaiser_window<3>, "kaiser_window.beta");
}

}  // namespace castoff
