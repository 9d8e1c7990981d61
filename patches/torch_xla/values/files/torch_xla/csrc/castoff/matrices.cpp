// Decompositions of matrices, and distances between their rows.

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/values.h"

namespace castoff {
namespace {

// The determinant's factors, without which it has no gradient: torch_xla has none of them.
thread_local bool wants_factors = false;

// Above autograd.
void slogdet_with_gradients(Call& call) {
  const bool outer = wants_factors;
  const auto leave = c10::make_scope_exit([outer] { wants_factors = outer; });
  wants_factors = c10::GradMode::is_enabled() && call.tensor(0).requires_grad();
  call.proceed();
}

void slogdet(Call& call) {
  if (wants_factors || call.tensor(0).numel() == 0 || call.tensor(0).is_complex()) {
    return call.on_the_cpu();
  }
  call.proceed();
}

// torch_xla decomposes the first of a batch's dimensions with the second, and fails where there is
// nothing to decompose. Of complex numbers its results are wrong.
void svd(Call& call) {
  const Tensor& self = call.tensor(0);
  check_no_integers(call);
  if (self.dim() == 2 && self.numel() > 0 && !self.is_complex()) return call.proceed();
  call.on_the_cpu();
}

// The inverse, and a number for each matrix.
void inverse(Call& call) {
  const Tensor self = call.tensor(0);
  check_no_integers(call);
  if (self.is_complex()) return call.on_the_cpu();
  call.proceed();
  const at::IntArrayRef batch = self.sizes().slice(0, self.dim() - 2);
  if (call.result(1).toTensor().sizes() == batch) return;
  const Below below;
  call.result(1) = at::zeros(batch, self.options().dtype(ScalarType::Int));
}

// self, p: the order 0 counts the elements that differ.
void count_differences(Call& call) {
  if (C10_LIKELY(call[1].toDouble() != 0)) return call.proceed();
  call.on_the_cpu();
}

// x1, x2, p, compute_mode: batches of other sizes.
void distances(Call& call) {
  const Tensor lhs = call.tensor(0), rhs = call.tensor(1);
  check_real(call);
  if (lhs.dim() < 2 || rhs.dim() < 2) return call.proceed();  // which refuses it
  const auto matrix = [](const Tensor& t) { return t.sizes().slice(t.dim() - 2); };
  const auto batch_of = [](const Tensor& t) { return t.sizes().slice(0, t.dim() - 2); };
  if (C10_LIKELY(batch_of(lhs) == batch_of(rhs))) return call.proceed();
  auto shape = at::infer_size(batch_of(lhs), batch_of(rhs));
  const size_t batch = shape.size();
  const Below below;
  shape.insert(shape.end(), {lhs.size(-2), rhs.size(-2)});
  if (lhs.numel() == 0 || rhs.numel() == 0) return call.answer(at::zeros(shape, lhs.options()));
  for (size_t i : {0, 1}) {
    const Tensor t = call.tensor(i);
    std::copy(matrix(t).begin(), matrix(t).end(), shape.begin() + static_cast<int64_t>(batch));
    call[i] = t.expand(shape);
  }
  call.proceed();
}

}  // namespace

void mend_matrices(torch::Library& xla, torch::Library& autograd) {
  remedy(xla, slogdet, "_linalg_slogdet");
  remedy(autograd, slogdet_with_gradients, "_linalg_slogdet", kAutograd);
  remedy(xla, svd, "_linalg_svd");
  remedy(xla, inverse, "linalg_inv_ex");
  remedy(xla, count_differences, "_pdist_forward");
  remedy(xla, distances, "_cdist_forward");
}

}  // namespace castoff
