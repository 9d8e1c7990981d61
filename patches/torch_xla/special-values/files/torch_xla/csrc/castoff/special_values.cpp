// Infinities, NaN, zeros with a sign and the points where a function has a corner, as on the CPU.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/full.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/where.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <limits>
#include <vector>

#include "torch_xla/csrc/castoff/division.h"
#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/filled.h"
#include "torch_xla/csrc/castoff/finite.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/wide.h"

// Of a topic that is not on every pin.
#if __has_include("torch_xla/csrc/castoff/lazy_ir.h")
#include "torch_xla/csrc/castoff/lazy_ir.h"
#define CASTOFF_READS_IR 1
#endif

namespace castoff {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_floating(const Tensor& t) {
  return c10::isFloatingType(t.scalar_type());
}

// The largest finite number of a floating-point dtype.
double largest_of(ScalarType dtype) {
  if (dtype == ScalarType::Half) return std::numeric_limits<c10::Half>::max();
  if (dtype == ScalarType::BFloat16) return std::numeric_limits<c10::BFloat16>::max();
  return dtype == ScalarType::Float ? std::numeric_limits<float>::max()
                                    : std::numeric_limits<double>::max();
}

// ---- clamp: for a bound that is not there torch_xla takes the largest finite number

// self, min, max
void clamp(Call& call) {
  if (is_floating(call.tensor(0))) {
    if (call[1].isNone()) call[1] = -kInfinity;
    if (call[2].isNone()) call[2] = kInfinity;
  }
  call.proceed();
}

// self, min or max
template <bool is_min>
void clamp_at(Call& call) {
  const Tensor self = call.tensor(0);
  if (!is_floating(self)) return call.proceed();
  const Scalar bound = call[1].toScalar();
  call.answer(at::_ops::clamp::redispatch(kXla, self, is_min ? bound : Scalar(-kInfinity),
                                          is_min ? Scalar(kInfinity) : bound));
}

// self, nan, posinf, neginf: the largest number of bfloat16, which torch_xla rounds to infinity.
// torch_xla refuses replacements that the dtype does not hold, such as infinity.
void nan_to_num(Call& call) {
  const Tensor self = call.tensor(0);
  if (!is_floating(self)) return call.proceed();
  const double largest = largest_of(self.scalar_type());
  if (self.scalar_type() == ScalarType::BFloat16) {
    if (call[2].isNone()) call[2] = largest;
    if (call[3].isNone()) call[3] = -largest;
  }
  const auto number = [&](size_t i, double missing) {
    return call[i].isNone() ? missing : call[i].toDouble();
  };
  const auto is_held = [&](size_t i) { return std::abs(number(i, 0)) <= largest; };
  if (C10_LIKELY(is_held(1) && is_held(2) && is_held(3))) return call.proceed();
  const Below below;
  const Tensor finite = self.masked_fill(self.isnan(), number(1, 0))
                            .masked_fill(self == kInfinity, number(2, largest));
  call.answer(finite.masked_fill(self == -kInfinity, number(3, -largest)));
}

// self, eps: torch_xla does not clamp what is below eps.
void logit(Call& call) {
  if (call[1].isNone() || !is_floating(call.tensor(0))) return call.proceed();
  const double eps = call[1].toDouble();
  const Tensor self = call.tensor(0);
  call[0] = at::_ops::clamp::redispatch(kXla, self, Scalar(eps), Scalar(1 - eps));
  call[1] = c10::IValue();
  call.proceed();
}

// self, dim, keepdim: as torch's kernel, which takes no infinity off. torch_xla takes inf off inf.
void logsumexp(Call& call) {
  const Tensor self = call.tensor(0);
  if (!is_floating(self) || self.numel() == 0) return call.proceed();
  const std::vector<int64_t> dims = call[1].toIntVector();
  const bool keepdim = call[2].toBool();
  const Below below;
  const Tensor x = widened(self);
  const auto finite = [](const Tensor& t) { return at::where(t.abs() == kInfinity, 0.0, t); };
  const FiniteExtremes extremes;
  const Tensor rest = x.sub(finite(x.amax(dims, /*keepdim=*/true))).exp().sum(dims, keepdim).log();
  call.answer(rest.add(finite(x.amax(dims, keepdim))).to(self.scalar_type()));
}

// ---- remainders

// As torch's kernels, which add the divisor where the rest has the other sign. torch_xla multiplies
// the quotient, which is NaN for an infinite divisor.
Tensor remainder_of(const Tensor& a, const Tensor& b) {
  const Tensor rest = a.fmod(b);
  const Tensor is_below = (rest != 0).logical_and((rest < 0) != (b < 0));
  return at::where(is_below, rest + b, rest);
}

// self, other
void remainder(Call& call) {
  check_real(call);
  check_real(call, 1);
  const Tensor self = call.tensor(0), other = call.tensor(1);
  const ScalarType dtype = at::result_type(self, other);
  if (!c10::isFloatingType(dtype)) return call.proceed();
  const Below below;
  const ScalarType wide = is_half(dtype) ? ScalarType::Float : dtype;
  // Operands have the common dtype first, as in torch.
  const Tensor a = operand(self, other, dtype).to(wide), b = operand(other, self, dtype).to(wide);
  call.answer(remainder_of(a, b).to(dtype));
}

// self, a number
void remainder_by_number(Call& call) {
  check_real(call);
  const Tensor self = call.tensor(0);
  const Scalar number = call[1].toScalar();
  if (!is_floating(self) || number.isComplex()) return call.proceed();
  const Below below;
  const Tensor a = widened(self);
  call.answer(remainder_of(a, at::full({}, number, a.options())).to(self.scalar_type()));
}

// ---- activations

// self: the result, and what torch_xla's kernel of the gradient takes beside it. torch_xla's
// formula subtracts infinities.
void log_sigmoid(Call& call) {
  const Tensor self = call.tensor(0);
  check_no_integers(call);
  call.proceed();
  const Below below;
  const Tensor x = widened(self);
  call.result() = (x.clamp_max(0) - x.abs().neg().exp().log1p()).to(self.scalar_type());
}

// grad_output, self: none at -3 and 3.
void hardsigmoid_backward(Call& call) {
  const Below below;
  const Tensor grad = call.tensor(0), self = call.tensor(1);
  call.answer(filled((self.abs() < 3).logical_not(), grad / 6, 0));
}

// grad_output, self, min_val, max_val: none at the bounds, as relu6 has none at 0.
void hardtanh_backward(Call& call) {
  const Below below;
  const Tensor grad = call.tensor(0), self = call.tensor(1);
  const Tensor rest = filled(self <= call[2].toScalar(), grad, 0);
  call.answer(filled(self >= call[3].toScalar(), rest, 0));
}

// NaN is neither above a threshold nor below it: torch asks for what is below, torch_xla for what
// is above.
Tensor filled_up_to(const Scalar& threshold, const Tensor& of, const Tensor& self,
                    const Scalar& value) {
  return filled(at::_ops::le_Scalar::redispatch(kXla, self, threshold), of, value);
}

// self, threshold, value
void threshold(Call& call) {
  const Tensor self = call.tensor(0);
  check_real(call);
  check_no_bools(call);
  if (!is_floating(self)) return call.proceed();
  call.answer(filled_up_to(call[1].toScalar(), self, self, call[2].toScalar()));
}

// What a pending relu is of, which is 0 or less, or NaN, where the relu is; any other tensor
// itself. XLA reads it so in torch_xla's form of the gradient alone, `relu(x) > 0`. A TPU's
// compiler would hold the relu for the backward pass, and copy it for the layout that this wants.
Tensor before_relu(const Tensor& t) {
#ifdef CASTOFF_READS_IR
  static const lazy_ir::OpKind relu = lazy_ir::OpKind::Get("aten::relu");
  if (lazy_ir::refusal() || !lazy_ir::ready(t)) return t;
  const lazy_ir::Value value = lazy_ir::unsharded_value(t);
  if (value && value.node->op() == relu) {
    return lazy_ir::tensor_of(lazy_ir::operand(*value.node, 0), t);
  }
#endif
  return t;
}

// grad_output, self, threshold: the gradient of relu, too, where self is the result.
void threshold_backward(Call& call) {
  const Tensor grad = call.tensor(0), self = call.tensor(1);
  if (!is_floating(self) || grad.sizes() != self.sizes()) return call.proceed();
  const Scalar threshold = call[2].toScalar();
  const Tensor read = threshold.toDouble() == 0 ? before_relu(self) : self;
  call.answer(filled_up_to(threshold, grad, read, 0));
}

// self, lambd: 0 has the sign of self.
void softshrink(Call& call) {
  const Tensor self = call.tensor(0);
  check_floats(call);
  const Below below;
  const Scalar lambda = call[1].toScalar();
  const Tensor x = widened(self);
  const Tensor beyond = at::where(x > lambda, x - lambda, x + lambda);
  call.answer(at::where(x.abs() > lambda, beyond, x * 0).to(self.scalar_type()));
}

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, clamp, "clamp");
  remedy(xla, clamp_at<true>, "clamp_min");
  remedy(xla, clamp_at<false>, "clamp_max");
  remedy(xla, nan_to_num, "nan_to_num");
  remedy(xla, logit, "logit");
  remedy(xla, logsumexp, "logsumexp");
  remedy(xla, remainder, "remainder.Tensor");
  remedy(xla, remainder_by_number, "remainder.Scalar");
  remedy(xla, log_sigmoid, "log_sigmoid_forward");
  remedy(xla, hardsigmoid_backward, "hardsigmoid_backward");
  remedy(xla, hardtanh_backward, "hardtanh_backward");
  remedy(xla, threshold, "threshold");
  remedy(xla, threshold_backward, "threshold_backward");
  remedy(xla, softshrink, "softshrink");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_special_values_install)
