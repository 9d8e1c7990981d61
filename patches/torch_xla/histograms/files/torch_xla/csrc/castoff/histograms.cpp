// histc and bincount, which torch_xla hands to the CPU, where histc has no integers.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "torch_xla/csrc/castoff/division.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/target.h"
#include "torch_xla/csrc/castoff/wide.h"

namespace castoff {
namespace {

// How often each of `bins` occurs in `index`, in the dtype of `weight`, what an occurrence counts;
// -1 is none of them. On a TPU, where a scatter takes its elements one by one, each bin is compared
// with all elements, which are not written to memory for that.
Tensor counts(const Tensor& index, const Tensor& weight, int64_t bins) {
  constexpr int64_t kCompared = 1024;
  if (is_for_tpu() && bins <= kCompared) {
    const Tensor each = index.to(ScalarType::Int).unsqueeze(-1);
    const Tensor is_in = each == at::arange(bins, each.options());
    return at::where(is_in, weight.unsqueeze(-1), 0).sum(0, false, weight.scalar_type());
  }
  const Tensor sums = at::zeros({bins + 1}, weight.options());
  return at::scatter_add(sums, 0, at::where(index < 0, bins, index), weight).slice(0, 0, bins);
}

// ---- histc

// The bins of elements, -1 of those beyond the range. As torch's kernel for CUDA, which has
// integers.
Tensor bins_of_integers(const Tensor& x, const Tensor& least, const Tensor& most, int64_t bins,
                        bool is_short) {
  const Tensor offset = (x - least) * bins, width = most - least;
  const Tensor bin = quotient(offset, width, Rounding::kFloor, is_short).clamp_max(bins - 1);
  return at::where((x < least).logical_or(x > most), -1, bin);
}

// As torch's kernel for the CPU, which rounds each step of bfloat16 and float16; here they are
// float32.
Tensor bins_of_floats(const Tensor& x, const Tensor& least, const Tensor& most, int64_t bins) {
  const Tensor bin = ((x - least) * bins / (most - least)).clamp(0, bins - 1);
  const Tensor is_inside = (x >= least).logical_and(x <= most);
  return at::where(is_inside, bin, -1).to(ScalarType::Int);
}

// The range, or where it is empty that of the elements, or around the one that they all are.
std::pair<Tensor, Tensor> range(const Tensor& x, const at::Scalar& least, const at::Scalar& most) {
  const auto number = [&](const at::Scalar& n) { return at::full({}, n, x.options()); };
  if (least.toDouble() != most.toDouble()) return {number(least), number(most)};
  Tensor low = number(least), high = number(most);
  if (x.numel() > 0) std::tie(low, high) = std::pair(x.min(), x.max());
  const Tensor is_empty = (low == high).to(x.scalar_type());
  return {low - is_empty, high + is_empty};
}

// The product of a range's width and the number of bins, which elements of it do not exceed;
// without a range, that of all numbers of the dtype.
double largest_offset(ScalarType dtype, double least, double most, int64_t bins) {
  const bool is_wide = dtype == ScalarType::Int || dtype == ScalarType::Long;
  const double width = least != most ? most - least : is_wide ? 0x1p64 : 0x1p16;
  return width * static_cast<double>(bins);
}

// self, bins, min, max
void histc(Call& call) {
  const Tensor self = call.tensor(0);
  const int64_t bins = call[1].toInt();
  const at::Scalar least = call[2].toScalar(), most = call[3].toScalar();
  const ScalarType dtype = self.scalar_type();
  const bool are_integers = c10::isIntegralType(dtype, /*includeBool=*/false);
  if (!are_integers && !c10::isFloatingType(dtype)) return call.proceed();  // which refuses it
  TORCH_CHECK(bins > 0, "torch.histc: expected at least one bin, but got ", bins, ".");
  TORCH_CHECK(std::isfinite(least.toDouble()) && std::isfinite(most.toDouble()),
              "torch.histc: range of [", least.toDouble(), ", ", most.toDouble(),
              "] is not finite");
  TORCH_CHECK(least.toDouble() <= most.toDouble(), "torch.histc: max must be larger than min");
  const Below below;
  const double offset = largest_offset(dtype, least.toDouble(), most.toDouble(), bins);
  const ScalarType wide = !are_integers     ? (is_half(dtype) ? ScalarType::Float : dtype)
                          : offset < 0x1p31 ? ScalarType::Int
                                            : ScalarType::Long;
  const Tensor x = self.reshape({-1}).to(wide);
  const auto [low, high] = range(x, least, most);
  const Tensor index = are_integers ? bins_of_integers(x, low, high, bins, offset < 0x1p22)
                                    : bins_of_floats(x, low, high, bins);
  const Tensor one = at::ones(index.sizes(), index.options().dtype(ScalarType::Int));
  const Tensor found = counts(index.to(ScalarType::Long), one, bins).to(dtype);
  // torch refuses a range that is not finite: without the elements' values, each count is NaN.
  const bool may_be_unbounded = !are_integers && least.toDouble() == most.toDouble();
  call.answer(may_be_unbounded ? at::where(at::isfinite(high - low), found, NAN) : found);
}

// ---- bincount

// So many elements of a TPU are read as soon as their extremes, and counted sooner on the host.
// CPU-XLA's are all counted there: XLA's scatter takes longer.
constexpr int64_t kReadWhole = 4096;

// self, weights, minlength: of many elements only the number of bins is read from the device.
void bincount(Call& call) {
  const Tensor self = call.tensor(0);
  const bool are_integers = c10::isIntegralType(self.scalar_type(), /*includeBool=*/false);
  const int64_t least = call[2].toInt();
  if (!are_integers || self.dim() != 1 || self.numel() == 0 || least < 0) return call.on_the_cpu();
  const bool has_weights = is_tensor(call[1]);
  if (has_weights && call.tensor(1).sizes() != self.sizes()) return call.on_the_cpu();
  if (!is_for_tpu() || self.numel() <= kReadWhole) return call.on_the_cpu();
  const Below below;
  const Tensor index = self.to(ScalarType::Long);
  const Tensor extremes = at::stack({index.min(), index.max()}).cpu();
  TORCH_CHECK(extremes[0].item<int64_t>() >= 0,
              "bincount only supports 1-d non-negative integral inputs.");
  const int64_t bins = std::max(extremes[1].item<int64_t>() + 1, least);
  Tensor weight = at::ones(self.sizes(), index.options());
  if (has_weights) {
    const bool of_float = call.tensor(1).scalar_type() == ScalarType::Float;
    weight = call.tensor(1).to(of_float ? ScalarType::Float : ScalarType::Double);
  }
  call.answer(counts(index, weight, bins));
}

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, histc, "histc");
  remedy(xla, bincount, "bincount");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_histograms_install)
