// Batch normalisation on XLA: the running variance is an unbiased estimate, running statistics that
// are views are kept, and evaluation mode has a backward.

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/view_copy_ops.h>

#include <array>
#include <vector>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

namespace functionalization = at::functionalization::impl;

Tensor argument(Call& call, size_t i) {
  return call[i].isTensor() ? call.tensor(i) : Tensor();
}

Tensor mul(const Tensor& a, const Tensor& b) {
  return at::_ops::mul_Tensor::redispatch(kXla, a, b);
}

// ---- training

// input, weight, bias, running_mean, running_var, training, momentum, eps. torch_xla writes to
// running_var: (1 - momentum) old + momentum biased. The unbiased estimate is n / (n - 1) times the
// biased one, so the second term once more, over n - 1, is what is missing. The old one is not
// scaled: with a momentum of 0 it stays, to the bit.
void unbiased_running_variance(Call& call) {
  constexpr size_t kRunningVar = 4, kTraining = 5, kMomentum = 6;
  Tensor running = argument(call, kRunningVar);
  if (!call[kTraining].toBool() || !running.defined()) return call.proceed();
  const Tensor& input = call.tensor(0);
  const double n = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
  if (!(n > 1)) return call.proceed();  // which has no such estimate; also without channels
  const double momentum = call[kMomentum].toDouble();
  const Tensor old = at::_ops::clone::redispatch(kXla, running, {});  // no node of its own
  call.proceed();
  const Tensor added = at::_ops::sub_Tensor::redispatch(kXla, running, old, 1 - momentum);
  at::_ops::add__Tensor::redispatch(kXla, running, added, 1 / (n - 1));
}

// ---- running statistics that are views, or have some

// torch_xla's kernel writes to the statistics, and the operator's schema does not tell: what shares
// their memory, the tensor that they are views of among it, learns of it here.
void publish(const Tensor& statistics) {
  if (!statistics.defined() || !functionalization::isFunctionalTensor(statistics)) return;
  const auto* wrapper = functionalization::unsafeGetFunctionalWrapper(statistics);
  if (!is_bare_xla(wrapper->value())) return;
  functionalization::commit_update(statistics);
  functionalization::sync(statistics);
}

void published_statistics(Call& call) {
  constexpr size_t kMean = 3, kVariance = 4, kTraining = 5;
  if (!call[kTraining].toBool()) return call.proceed();
  const Tensor mean = argument(call, kMean), variance = argument(call, kVariance);
  call.proceed();
  publish(mean);
  publish(variance);
}

// ---- the backward of evaluation mode

// With dimensions added, so that a value per channel meets an input of this rank.
Tensor per_channel(const Tensor& t, int64_t rank) {
  std::vector<c10::SymInt> shape(rank, 1);
  shape[1] = t.sym_size(0);
  return at::_ops::view_copy::redispatch(kXla, t, shape);
}

Tensor sum_per_channel(const Tensor& t) {
  std::vector<int64_t> dims{0};
  for (int64_t i = 2; i < t.dim(); ++i) dims.push_back(i);
  return at::_ops::sum_dim_IntList::redispatch(kXla, t, at::OptionalIntArrayRef(dims),
                                               /*keepdim=*/false, std::nullopt);
}

Tensor in(ScalarType dtype, const Tensor& t) {
  return t.scalar_type() == dtype ? t : cast(t, dtype);
}

// grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps,
// output_mask. In evaluation mode the statistics are constants: what is left is linear. Computed in
// float32 at least, and rounded once.
void backward(Call& call) {
  constexpr size_t kTrain = 7, kEps = 8, kMask = 9;
  const Tensor mean = argument(call, 3), variance = argument(call, 4);
  if (call[kTrain].toBool() || !mean.defined() || !variance.defined()) return call.proceed();
  const Tensor input = call.tensor(1), weight = argument(call, 2);
  const int64_t rank = input.dim();
  const ScalarType dtype = input.scalar_type();
  const ScalarType wide = c10::promoteTypes(dtype, ScalarType::Float);
  const ScalarType parameters = weight.defined() ? weight.scalar_type() : dtype;
  const Tensor grad = in(wide, call.tensor(0));
  const Tensor invstd = at::_ops::rsqrt::redispatch(
      kXla, at::_ops::add_Scalar::redispatch(kXla, in(wide, variance), call[kEps].toDouble(), 1));
  const auto mask = call[kMask].toBoolList();
  std::array<Tensor, 3> grads;
  if (mask[0]) {
    const Tensor factor = weight.defined() ? mul(invstd, in(wide, weight)) : invstd;
    grads[0] = in(dtype, mul(grad, per_channel(factor, rank)));
  }
  if (mask[1]) {
    const Tensor centred = at::_ops::sub_Tensor::redispatch(kXla, in(wide, input),
                                                            per_channel(in(wide, mean), rank), 1);
    grads[1] = in(parameters, mul(sum_per_channel(mul(grad, centred)), invstd));
  }
  if (mask[2]) grads[2] = in(parameters, sum_per_channel(grad));
  call.answer(std::move(grads[0]), std::move(grads[1]), std::move(grads[2]));
}

// ---- registration

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, unbiased_running_variance, "_native_batch_norm_legit native_batch_norm");
  remedy(xla, backward, "native_batch_norm_backward");
  constexpr c10::DispatchKey kFunctionalize = c10::DispatchKey::Functionalize;
  torch::Library& functional = library(torch::Library::IMPL, "aten", kFunctionalize);
  remedy(functional, published_statistics, "native_batch_norm", kFunctionalize);
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_batch_norm_install)
