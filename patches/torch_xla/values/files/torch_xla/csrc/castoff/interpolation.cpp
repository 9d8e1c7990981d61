// Upsampling of images. torch_xla goes by the sizes alone, and rounds each step of bilinear
// interpolation; torch goes by the scale that it is given, and computes in float32.

#include "torch_xla/csrc/castoff/interpolation.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <vector>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using at::ScalarType;
using at::Tensor;

constexpr int64_t kFirstSpatial = 2;

// What an interpolation takes of one dimension: for each result the elements `low` and `high`,
// with the weight of the second.
struct Axis {
  Tensor low, high, weight;  // the last two undefined: the nearest element alone
};

struct Sizes {
  int64_t in, out;
  std::optional<double> scale;

  // In float, as torch computes it.
  float step() const {
    return scale.has_value() && *scale > 0 ? static_cast<float>(1.0 / *scale) : by_size();
  }
  float by_size() const { return static_cast<float>(in) / static_cast<float>(out); }
};

Tensor positions(const Sizes& s, const Tensor& like) {
  return at::arange(s.out, like.options().dtype(ScalarType::Float));
}

Tensor index_of(const Tensor& position, const Sizes& s) {
  return position.floor().clamp_max(s.in - 1).to(ScalarType::Long);
}

Axis nearest(const Sizes& s, const Tensor& like) {
  return {index_of(positions(s, like) * s.step(), s), {}, {}};
}

Axis linear(const Sizes& s, bool align_corners, const Tensor& like) {
  Tensor position;
  if (align_corners) {
    const float step = s.out > 1 ? static_cast<float>(s.in - 1) / (s.out - 1) : 0.0F;
    position = positions(s, like) * step;
  } else {
    position = ((positions(s, like) + 0.5) * s.step() - 0.5).clamp_min(0);
  }
  const Tensor low = index_of(position, s);
  return {low, (low + 1).clamp_max(s.in - 1), (position - low).clamp(0, 1)};
}

Tensor along(const Tensor& weight, int64_t dim) {
  return dim == kFirstSpatial ? weight.unsqueeze(1) : weight;
}

Tensor interpolated(Tensor x, const std::vector<Axis>& axes) {
  int64_t dim = kFirstSpatial;
  for (const Axis& axis : axes) {
    const Tensor low = at::index_select(x, dim, axis.low);
    if (axis.weight.defined()) {
      const Tensor weight = along(axis.weight, dim);
      x = low * (1 - weight) + at::index_select(x, dim, axis.high) * weight;
    } else {
      x = low;
    }
    ++dim;
  }
  return x;
}

// What each element gets of the gradients of the results that were made of it.
Tensor spread(Tensor grad, const std::vector<Axis>& axes, at::IntArrayRef input) {
  int64_t dim = kFirstSpatial;
  for (const Axis& axis : axes) {
    auto shape = grad.sizes().vec();
    shape[dim] = input[dim];
    const Tensor zeros = at::zeros(shape, grad.options());
    if (axis.weight.defined()) {
      const Tensor weight = along(axis.weight, dim);
      grad = at::index_add(at::index_add(zeros, dim, axis.low, grad * (1 - weight)), dim, axis.high,
                           grad * weight);
    } else {
      grad = at::index_add(zeros, dim, axis.low, grad);
    }
    ++dim;
  }
  return grad;
}

// The sizes of a call's dimensions, none if they are symbols. Arguments: those of the operator's
// output and input sizes, and the first of its scales.
std::vector<Sizes> sizes_of(Call& call, at::IntArrayRef input, size_t output, size_t scales) {
  std::vector<Sizes> sizes;
  if (!call[output].isIntList() || input.size() != 4) return sizes;
  const auto out = call[output].toIntVector();
  for (size_t i = 0; i < out.size(); ++i) {
    const auto scale = call[scales + i].isNone() ? std::nullopt
                                                 : std::optional(call[scales + i].toDouble());
    sizes.push_back({input[kFirstSpatial + i], out[i], scale});
  }
  return sizes;
}

bool go_by_size(const std::vector<Sizes>& sizes) {
  for (const Sizes& s : sizes) {
    if (s.step() != s.by_size()) return false;
  }
  return true;
}

ScalarType widened(ScalarType dtype) {
  return is_half(dtype) ? ScalarType::Float : dtype;
}

std::vector<Axis> nearest_axes(const std::vector<Sizes>& sizes, const Tensor& like) {
  std::vector<Axis> axes;
  for (const Sizes& s : sizes) axes.push_back(nearest(s, like));
  return axes;
}

std::vector<Axis> linear_axes(const std::vector<Sizes>& sizes, bool align, const Tensor& like) {
  std::vector<Axis> axes;
  for (const Sizes& s : sizes) axes.push_back(linear(s, align, like));
  return axes;
}

// self, output_size, scales_h, scales_w
void upsample_nearest(Call& call) {
  const auto sizes = sizes_of(call, call.tensor(0).sizes(), 1, 2);
  if (C10_LIKELY(go_by_size(sizes))) return call.proceed();
  const at::AutoDispatchBelowADInplaceOrView below;
  const Tensor& self = call.tensor(0);
  call.answer(interpolated(self, nearest_axes(sizes, self)));
}

// grad_output, output_size, input_size, scales_h, scales_w
void upsample_nearest_backward(Call& call) {
  if (!call[2].isIntList()) return call.proceed();
  const auto input = call[2].toIntVector();
  const auto sizes = sizes_of(call, input, 1, 3);
  if (C10_LIKELY(go_by_size(sizes))) return call.proceed();
  const at::AutoDispatchBelowADInplaceOrView below;
  const Tensor grad = call.tensor(0);
  const Tensor wide = grad.to(widened(grad.scalar_type()));
  call.answer(spread(wide, nearest_axes(sizes, wide), input).to(grad.scalar_type()));
}

// self, output_size, align_corners, scales_h, scales_w
void upsample_bilinear(Call& call) {
  const Tensor self = call.tensor(0);
  const ScalarType dtype = self.scalar_type();
  const bool align = call[2].toBool();
  const auto sizes = sizes_of(call, self.sizes(), 1, 3);
  const bool is_wide = dtype == ScalarType::Float || dtype == ScalarType::Double;
  const bool by_size = align || go_by_size(sizes);
  if (C10_LIKELY(by_size && is_wide)) return call.proceed();
  const at::AutoDispatchBelowADInplaceOrView below;
  const Tensor wide = is_wide ? self : self.to(ScalarType::Float);
  if (by_size) {
    call[0] = wide;
    call.proceed();
  } else {
    call.answer(interpolated(wide, linear_axes(sizes, align, wide)));
  }
  const Tensor result = call.result().toTensor();
  if (!is_wide) call.result() = (is_half(dtype) ? result : result.round()).to(dtype);
}

// grad_output, output_size, input_size, align_corners, scales_h, scales_w
void upsample_bilinear_backward(Call& call) {
  if (!call[2].isIntList()) return call.proceed();
  const auto input = call[2].toIntVector();
  const bool align = call[3].toBool();
  const auto sizes = sizes_of(call, input, 1, 4);
  if (C10_LIKELY(align || go_by_size(sizes))) return call.proceed();
  const at::AutoDispatchBelowADInplaceOrView below;
  const Tensor grad = call.tensor(0);
  const Tensor wide = grad.to(widened(grad.scalar_type()));
  call.answer(spread(wide, linear_axes(sizes, align, wide), input).to(grad.scalar_type()));
}

}  // namespace

void mend_interpolation(torch::Library& xla) {
  remedy(xla, upsample_nearest, {{"aten::upsample_nearest2d", ""}});
  remedy(xla, upsample_nearest_backward, {{"aten::upsample_nearest2d_backward", ""}});
  remedy(xla, upsample_bilinear, {{"aten::upsample_bilinear2d", ""}});
  remedy(xla, upsample_bilinear_backward, {{"aten::upsample_bilinear2d_backward", ""}});
}

}  // namespace castoff
