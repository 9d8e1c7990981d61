// Slices whose start or end is beyond the tensor. torch clamps them; torch_xla refuses a start
// before the first element, and any negative number where the dimension is empty.

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

// A position among `size` elements, counted from the end if it is negative.
int64_t clamped(int64_t position, int64_t size) {
  return std::clamp<int64_t>(position < 0 ? position + size : position, 0, size);
}

// self, …, dim, start, end, step; `dim` is the number of that argument.
template <size_t dim>
void clamp_bounds(Call& call) {
  constexpr size_t first = dim + 1, last = dim + 2;
  const bool has_start = call[first].isInt(), has_end = call[last].isInt();
  const int64_t start = has_start ? call[first].toInt() : 0;
  const int64_t end = has_end ? call[last].toInt() : std::numeric_limits<int64_t>::max();
  if (C10_LIKELY(start >= 0 && end >= 0)) return call.proceed();
  const at::Tensor& self = call.tensor(0);
  const int64_t size = self.size(at::maybe_wrap_dim(call[dim].toInt(), self.dim()));
  if (has_start) call[first] = clamped(start, size);
  if (has_end) call[last] = clamped(end, size);
  call.proceed();
}

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, clamp_bounds<1>, "slice_copy.Tensor");
  remedy(xla, clamp_bounds<2>, "slice_scatter");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_slice_bounds_install)
