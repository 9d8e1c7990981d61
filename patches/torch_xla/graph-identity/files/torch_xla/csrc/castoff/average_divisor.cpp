// Averages with a divisor of their own: torch_xla's node keeps it to itself. Here the divisor is a
// factor of the result, which is a node like others.

#include <ATen/core/Tensor.h>
#include <ATen/native/Pool.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <vector>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

// One number of a list that may have one for all dimensions, or be empty.
int64_t pick(const std::vector<int64_t>& list, size_t dim, int64_t otherwise) {
  return list.empty() ? otherwise : list[list.size() == 1 ? 0 : dim];
}

// self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
template <size_t dims>
void average(Call& call) {
  const auto divisor = call[6].toOptional<int64_t>();
  if (C10_LIKELY(!divisor.has_value()) || call.tensor(0).dim() < int64_t{dims}) {
    return call.proceed();
  }
  TORCH_CHECK(*divisor != 0, "divisor must be not zero");
  const auto kernels = call[1].toIntVector();
  const auto strides = call[2].toIntVector();
  const auto paddings = call[3].toIntVector();
  const bool ceil_mode = call[4].toBool();
  const auto sizes = call.tensor(0).sizes().slice(call.tensor(0).dim() - dims);
  double elements = 1;
  std::vector<int64_t> around;  // left and right, from the last dimension on
  for (size_t i = dims; i-- > 0;) {
    const int64_t kernel = pick(kernels, i, 1);
    const int64_t stride = pick(strides, i, kernel);
    const int64_t left = pick(paddings, i, 0);
    const int64_t size = sizes[i];
    const int64_t windows = at::native::pooling_output_shape<int64_t>(size, kernel, left, stride,
                                                                      /*dilation=*/1, ceil_mode);
    const int64_t needed = (windows - 1) * stride + kernel;
    around.insert(around.end(), {left, std::max<int64_t>(needed - size - left, 0)});
    elements *= static_cast<double>(kernel);
  }
  // With zeros all around, every window has as many elements, and its average times that is its
  // sum.
  call[0] = at::constant_pad_nd(call.tensor(0), around, 0);
  call[3] = std::vector<int64_t>(dims, 0);
  call[4] = false;
  call[5] = true;
  call[6] = c10::IValue();
  call.proceed();
  call.result() = at::mul(call.result().toTensor(), elements / static_cast<double>(*divisor));
}

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, average<2>, "avg_pool2d");
  remedy(xla, average<3>, "avg_pool3d");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_graph_identity_install)
