// Results that are elements of an image at computed positions, or between two of them.
//
// torch_xla's interpolation goes by the sizes alone and rounds each of its steps; torch goes by the
// scale that it is given, and computes in float32. Padding by the element at the edge refuses
// negative numbers.

#include "torch_xla/csrc/castoff/values.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/wide.h"

namespace castoff {
namespace {

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

  // Of the nearest element: one of as many, or of twice as many, is found without the scale.
  float nearest_step() const { return out == in || out == 2 * in ? by_size() : step(); }
};

Tensor positions(const Sizes& s, const Tensor& like) {
  return at::arange(s.out, like.options().dtype(ScalarType::Float));
}

Tensor index_of(const Tensor& position, const Sizes& s) {
  return position.floor().clamp_max(s.in - 1).to(ScalarType::Long);
}

Axis nearest(const Sizes& s, const Tensor& like) {
  return {index_of(positions(s, like) * s.nearest_step(), s), {}, {}};
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

// A weight for each element of one dimension, of which `after` follow.
Tensor along(const Tensor& weight, int64_t after) {
  std::vector<int64_t> shape(1 + after, 1);
  shape[0] = weight.numel();
  return weight.view(shape);
}

// The axes are those of the last dimensions. Bytes are rounded after each of them, as torch does.
Tensor resampled(Tensor x, const std::vector<Axis>& axes, bool round = false) {
  for (size_t after = 0; after < axes.size(); ++after) {
    const Axis& axis = axes[axes.size() - 1 - after];
    const int64_t dim = x.dim() - 1 - static_cast<int64_t>(after);
    const Tensor low = at::index_select(x, dim, axis.low);
    if (!axis.weight.defined()) {
      x = low;
      continue;
    }
    const Tensor weight = along(axis.weight, static_cast<int64_t>(after));
    x = low * (1 - weight) + at::index_select(x, dim, axis.high) * weight;
    if (round) x = (x + 0.5).floor();
  }
  return x;
}

// What each element gets of the gradients of the results that were made of it.
Tensor spread(const Tensor& gradient, const std::vector<Axis>& axes, at::IntArrayRef input) {
  const ScalarType dtype = gradient.scalar_type();
  Tensor grad = widened(gradient);
  for (size_t after = 0; after < axes.size(); ++after) {
    const Axis& axis = axes[axes.size() - 1 - after];
    const int64_t dim = grad.dim() - 1 - static_cast<int64_t>(after);
    auto shape = grad.sizes().vec();
    shape[dim] = input[dim];
    const Tensor zeros = at::zeros(shape, grad.options());
    if (!axis.weight.defined()) {
      grad = at::index_add(zeros, dim, axis.low, grad);
      continue;
    }
    const Tensor weight = along(axis.weight, static_cast<int64_t>(after));
    grad = at::index_add(at::index_add(zeros, dim, axis.low, grad * (1 - weight)), dim, axis.high,
                         grad * weight);
  }
  return grad.to(dtype);
}

// ---- interpolation

// The sizes of a call's dimensions, none if they are symbols. Arguments: those of the operator's
// output and input sizes, and the first of its scales.
std::vector<Sizes> sizes_of(Call& call, at::IntArrayRef input, size_t output, size_t scales) {
  constexpr size_t kFirstSpatial = 2;
  std::vector<Sizes> sizes;
  if (!call[output].isIntList() || input.size() != 4) return sizes;
  const auto out = call[output].toIntVector();
  for (size_t i = 0; i < out.size(); ++i) {
    const auto scale =
        call[scales + i].isNone() ? std::nullopt : std::optional(call[scales + i].toDouble());
    sizes.push_back({input[kFirstSpatial + i], out[i], scale});
  }
  return sizes;
}

// The sizes by which torch_xla finds the nearest element.
bool go_by_size(const std::vector<Sizes>& sizes) {
  for (const Sizes& s : sizes) {
    if (s.nearest_step() != s.by_size()) return false;
  }
  return true;
}

// The sizes by which torch_xla's bilinear interpolation is right: multiples.
bool are_multiples(const std::vector<Sizes>& sizes) {
  for (const Sizes& s : sizes) {
    if (s.step() != s.by_size() || s.out % s.in != 0) return false;
  }
  return true;
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
  const Tensor self = call.tensor(0);
  const auto sizes = sizes_of(call, self.sizes(), 1, 2);
  if (C10_LIKELY(go_by_size(sizes))) return call.proceed();
  const Below below;
  call.answer(resampled(self, nearest_axes(sizes, self)));
}

// grad_output, output_size, input_size, scales_h, scales_w
void upsample_nearest_backward(Call& call) {
  if (!call[2].isIntList()) return call.proceed();
  const Tensor grad = call.tensor(0);
  const auto input = call[2].toIntVector();
  const auto sizes = sizes_of(call, input, 1, 3);
  if (C10_LIKELY(go_by_size(sizes))) return call.proceed();
  const Below below;
  call.answer(spread(grad, nearest_axes(sizes, grad), input));
}

// self, output_size, align_corners, scales_h, scales_w
void upsample_bilinear(Call& call) {
  const Tensor self = call.tensor(0);
  const ScalarType dtype = self.scalar_type();
  const bool align = call[2].toBool();
  const auto sizes = sizes_of(call, self.sizes(), 1, 3);
  const bool are_bytes = dtype == ScalarType::Byte;
  if (!are_bytes) check_no_integers(call);
  if (C10_LIKELY((align || are_multiples(sizes)) && !are_bytes)) return compute_wide(call);
  const Below below;
  const Tensor wide = are_bytes ? self.to(ScalarType::Float) : widened(self);
  call.answer(resampled(wide, linear_axes(sizes, align, wide), are_bytes).to(dtype));
}

// grad_output, output_size, input_size, align_corners, scales_h, scales_w
void upsample_bilinear_backward(Call& call) {
  if (!call[2].isIntList()) return call.proceed();
  const Tensor grad = call.tensor(0);
  const auto input = call[2].toIntVector();
  const bool align = call[3].toBool();
  const auto sizes = sizes_of(call, input, 1, 4);
  if (C10_LIKELY(align || are_multiples(sizes))) return call.proceed();
  const Below below;
  call.answer(spread(grad, linear_axes(sizes, align, grad), input));
}

// ---- padding by the element at the edge

bool has_negative(const c10::IValue& padding) {
  if (!padding.isIntList()) return false;
  const auto numbers = padding.toIntVector();
  return std::any_of(numbers.begin(), numbers.end(), [](int64_t number) { return number < 0; });
}

// `padding` begins with the last dimension: what goes before it, and what after.
std::vector<Axis> padded_axes(const Tensor& self, const std::vector<int64_t>& padding) {
  std::vector<Axis> axes;
  for (size_t i = padding.size(); i > 0; i -= 2) {
    const int64_t before = padding[i - 2], after = padding[i - 1];
    const int64_t size = self.size(self.dim() - static_cast<int64_t>(i) / 2);
    TORCH_CHECK(size > 0 && size + before + after > 0,
                "replication_pad: expected elements, and some of them left, but got a dimension of "
                "size ",
                size, " and the padding ", before, ", ", after, ".");
    const Tensor position = at::arange(-before, size + after, self.options().dtype(at::kLong));
    axes.push_back({position.clamp(0, size - 1), {}, {}});
  }
  return axes;
}

// self, padding
void replication_pad(Call& call) {
  if (C10_LIKELY(!has_negative(call[1]))) return call.proceed();
  const Below below;
  const Tensor self = call.tensor(0);
  call.answer(resampled(self, padded_axes(self, call[1].toIntVector())));
}

// grad_output, self, padding
void replication_pad_backward(Call& call) {
  if (C10_LIKELY(!has_negative(call[2]))) return call.proceed();
  const Below below;
  const Tensor grad = call.tensor(0), self = call.tensor(1);
  call.answer(spread(grad, padded_axes(self, call[2].toIntVector()), self.sizes()));
}

}  // namespace

void mend_resampling(torch::Library& xla) {
  remedy(xla, upsample_nearest, "upsample_nearest2d");
  remedy(xla, upsample_nearest_backward, "upsample_nearest2d_backward");
  remedy(xla, upsample_bilinear, "upsample_bilinear2d");
  remedy(xla, upsample_bilinear_backward, "upsample_bilinear2d_backward");
  remedy(xla, replication_pad, "replication_pad1d replication_pad2d replication_pad3d");
  remedy(xla, replication_pad_backward,
         "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward");
}

}  // namespace castoff
