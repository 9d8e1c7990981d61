// Operators whose values torch_xla gets wrong, or whose arguments it refuses. Each remedy takes the
// calls of that form alone.

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_left_shift_ops.h>
#include <ATen/ops/bitwise_right_shift_ops.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/expand_copy.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan_ops.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/select_copy.h>
#include <ATen/ops/transpose_copy.h>
#include <ATen/ops/view_as_real_copy.h>
#include <ATen/ops/view_copy.h>
#include <ATen/ops/where.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/check_real.h"
#include "torch_xla/csrc/castoff/complex_numbers.h"
#include "torch_xla/csrc/castoff/division.h"
#include "torch_xla/csrc/castoff/indices.h"
#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/norm_gradient.h"
#include "torch_xla/csrc/castoff/refused_dtypes.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/resampling.h"
#include "torch_xla/csrc/castoff/target.h"
#include "torch_xla/csrc/castoff/unfolding.h"
#include "torch_xla/csrc/castoff/wide.h"

// Of topic native-mul, where it is in the build.
extern "C" [[gnu::weak]] bool castoff_native_mul_enabled();

namespace castoff {
namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using Below = at::AutoDispatchBelowADInplaceOrView;

bool is_integral(const Tensor& t) {
  return c10::isIntegralType(t.scalar_type(), /*includeBool=*/true);
}

ScalarType default_dtype() {
  return c10::typeMetaToScalarType(c10::get_default_dtype());
}

// ---- wrong values

// grad_output, alpha, scale, input_scale, is_result, self_or_result. torch_xla takes the last one
// for the result, whatever it is.
void elu_backward(Call& call) {
  if (call[4].toBool()) return call.proceed();
  const Below below;
  const double alpha = call[1].toScalar().toDouble(), scale = call[2].toScalar().toDouble();
  const double input_scale = call[3].toScalar().toDouble();
  const ScalarType dtype = call.tensor(0).scalar_type();
  const Tensor grad = widened(call.tensor(0)), self = widened(call.tensor(5));
  const Tensor negative = (self * input_scale).exp() * (alpha * scale * input_scale);
  call.answer((grad * at::where(self <= 0, negative, scale)).to(dtype));
}

// self, p, then dim, keepdim and dtype where the operator has them (-1: it has not). torch_xla
// sums powers, whatever the order is.
template <int dim, int keepdim, int dtype>
void norm(Call& call) {
  const double p = call[1].isNone() ? 2.0 : call[1].toScalar().toDouble();
  if (C10_LIKELY(!std::isinf(p))) return call.proceed();
  const Below below;
  Tensor magnitude = call.tensor(0).abs();
  if (dtype >= 0 && !call[dtype].isNone()) magnitude = magnitude.to(call[dtype].toScalarType());
  std::vector<int64_t> dims;
  if (dim >= 0 && !call[dim].isNone()) dims = call[dim].toIntVector();
  const bool keep = keepdim >= 0 && call[keepdim].toBool();
  call.answer(p > 0 ? magnitude.amax(dims, keep) : magnitude.amin(dims, keep));
}

// grad_output, self. At -3 and 3, too.
void hardswish_backward(Call& call) {
  const Below below;
  const ScalarType dtype = call.tensor(0).scalar_type();
  const Tensor grad = widened(call.tensor(0)), self = widened(call.tensor(1));
  const Tensor slope = at::where(self <= -3, 0.0, at::where(self < 3, self / 3 + 0.5, 1.0));
  call.answer((grad * slope).to(dtype));
}

// grad_output, self, buffer: the sigmoid of -self, exact where it is small.
void log_sigmoid_backward(Call& call) {
  const Below below;
  const ScalarType dtype = call.tensor(0).scalar_type();
  const Tensor grad = widened(call.tensor(0)), self = widened(call.tensor(1));
  call.answer((grad / (self.exp() + 1)).to(dtype));
}

// self, p: the order 0 counts the elements that differ.
void count_differences(Call& call) {
  if (C10_LIKELY(call[1].toDouble() != 0)) return call.proceed();
  call.on_the_cpu();
}

// tensors, dim, num_chunks. torch's own kernel writes to a view of the padded tensor, which is a
// copy below functionalization.
void chunk_cat(Call& call) {
  const Below below;
  const auto tensors = call[0].toTensorVector();
  const int64_t chunks = call[2].toInt();
  TORCH_CHECK(!tensors.empty() && chunks > 0,
              "_chunk_cat: expected tensors, and a number of chunks of at least 1, but got ",
              tensors.size(), " tensors and ", chunks, " chunks.");
  const int64_t dim = at::maybe_wrap_dim(call[1].toInt(), tensors[0].dim());
  std::vector<Tensor> chunked;
  for (const Tensor& t : tensors) {
    TORCH_CHECK(t.dim() > dim && t.scalar_type() == tensors[0].scalar_type(),
                "_chunk_cat: expected tensors of one dtype with dimension ", dim, ", but got ",
                c10::toString(t.scalar_type()), " with ", t.dim(), " dimensions.");
    const int64_t padding = (chunks - t.size(dim) % chunks) % chunks;
    std::vector<int64_t> pad(2 * (t.dim() - dim), 0);
    pad.back() = padding;
    const Tensor padded = padding > 0 ? at::constant_pad_nd(t, pad, 0) : t;
    auto shape = padded.sizes().vec();
    int64_t length = 1;
    for (int64_t i = dim; i < t.dim(); ++i) length *= shape[i];
    shape.resize(dim);
    shape.insert(shape.end(), {chunks, length / chunks});
    chunked.push_back(padded.reshape(shape));
  }
  call.answer(at::cat(chunked, dim + 1));
}

// self, other. torch_xla divides by a power of two, rounding towards zero, where the bits of a
// negative number move; its kernels of the other names for a shift move them.
template <class Op>
void shift(Call& call) {
  if (!call[1].isTensor()) {
    const ScalarType dtype = at::result_type(call.tensor(0), call[1].toScalar());
    TORCH_CHECK_NOT_IMPLEMENTED(c10::isIntegralType(dtype, /*includeBool=*/true),
                                "a shift: ", "expected integers, but found ",
                                call.tensor(0).scalar_type(), " shifted by ", call[1].toScalar(),
                                ".");
    if (C10_UNLIKELY(dtype != call.tensor(0).scalar_type())) call[0] = call.tensor(0).to(dtype);
  }
  const Tensor self = call.tensor(0);
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) return call.proceed();
  const Below below;
  Tensor bits;
  if (call[1].isTensor()) {
    bits = call.tensor(1);
    if (!is_integral(bits)) return call.proceed();
  } else {
    const Scalar number = call[1].toScalar();
    // All bits leave: a count that every dtype has stands for larger ones, and for negative ones.
    const auto width = static_cast<int64_t>(8 * self.element_size());
    const int64_t count = number.toLong();
    bits = at::full({}, count < 0 || count > width ? width : count, self.options());
  }
  call.answer(Op::redispatch(kXla, self, bits));
}

// self, other, …: as torch's kernels, which take the rest of the division off first. 3 // 0.3 is 9,
// where torch_xla's floor(3 / 0.3) is 10.
void divide_down(Call& call) {
  const Tensor self = call.tensor(0), other = call.tensor(1);
  const ScalarType dtype = at::result_type(self, other);
  if (!c10::isFloatingType(dtype)) return call.proceed();
  const Below below;
  const ScalarType wide = is_half(dtype) ? ScalarType::Float : dtype;
  const Tensor a = operand(self, other, wide), b = operand(other, self, wide);
  const Tensor rest = a.fmod(b);
  const Tensor is_below = (rest != 0).logical_and((rest < 0) != (b < 0));
  const Tensor ratio = a / b, whole = ((a - rest) / b - is_below.to(wide)).round();
  const Tensor quotient = at::where(whole == 0, ratio * 0, whole);  // with the sign of the ratio
  call.answer(at::where(b == 0, ratio, quotient).to(dtype));
}

// start, end, step, out: integers. A range of uint8 that passes 0 goes on at 255; torch_xla's ends
// there, but not where it passes 255.
void arange_of_integers(Call& call) {
  const int64_t start = call[0].toScalar().toLong(), end = call[1].toScalar().toLong();
  const int64_t least = std::min(start, end);
  if (C10_UNLIKELY(least < 0 && call.tensor(3).scalar_type() == ScalarType::Byte)) {
    const int64_t turns = (255 - least) / 256 * 256;
    call[0] = start + turns;
    call[1] = end + turns;
  }
  call.proceed();
}

// A step of .5 is 0 in an integer dtype: `count` times the start.
void repeat_start(Call& call, int64_t start, int64_t count) {
  call[0] = int64_t{0};
  call[1] = count;
  call[2] = int64_t{1};
  call.proceed();
  Tensor out = call.result().toTensor();
  at::_ops::fill__Scalar::redispatch(kXla, out, start);
}

// start, end, step, out. torch counts the elements in float64 and then computes in out's dtype;
// torch_xla counts in out's dtype, in which (1 - 0) / 0.1 is more than 10 and a step of 0.5 may be
// the integer 0, which ends the process.
void arange(Call& call) {
  const Scalar start = call[0].toScalar(), end = call[1].toScalar(), step = call[2].toScalar();
  const ScalarType dtype = call.tensor(3).scalar_type();
  const bool are_floats =
      start.isFloatingPoint() || end.isFloatingPoint() || step.isFloatingPoint();
  if (dtype == ScalarType::Bool) return call.proceed();
  if (C10_LIKELY(!are_floats)) return arange_of_integers(call);
  const bool of_integers = c10::isIntegralType(dtype, /*includeBool=*/false);
  const double begin = of_integers ? std::trunc(start.toDouble()) : start.toDouble();
  const double by = of_integers ? std::trunc(step.toDouble()) : step.toDouble();
  // Of int64 torch divides by the step that it has rounded to 0, which ends the process.
  const bool is_refused = step.toDouble() == 0 || (by == 0 && dtype == ScalarType::Long);
  TORCH_CHECK(!is_refused, "step must be nonzero");
  const double last = dtype == ScalarType::Long ? std::trunc(end.toDouble()) : end.toDouble();
  const double count = dtype == ScalarType::Long
                           ? std::ceil((last - begin) / by)
                           : std::ceil((last - start.toDouble()) / step.toDouble());
  if (!std::isfinite(count) || count < 1) return call.proceed();
  // An end from which every dtype counts the same.
  if (!of_integers) {
    call[1] = begin + (count - 0.5) * by;
    return call.proceed();
  }
  if (by == 0) return repeat_start(call, static_cast<int64_t>(begin), static_cast<int64_t>(count));
  call[0] = static_cast<int64_t>(begin);
  call[1] = static_cast<int64_t>(begin + count * by);
  call[2] = static_cast<int64_t>(by);
  arange_of_integers(call);
}

// weight, indices, offsets, scale_grad_by_freq, mode, …: torch_xla takes the largest of a bag's
// elements and 0.
void embedding_bag(Call& call) {
  constexpr int64_t kMax = 2;
  if (C10_LIKELY(call[4].toInt() != kMax)) return call.proceed();
  call.on_the_cpu();
}

// self: -inf is no integer. torch_xla compares with what the dtype makes of it.
void isneginf(Call& call) {
  check_real(call);
  if (C10_LIKELY(!is_integral(call.tensor(0)))) return call.proceed();
  const Below below;
  call.answer(at::zeros(call.tensor(0).sizes(), call.tensor(0).options().dtype(at::kBool)));
}

// self: torch_xla gives the magnitude of a complex number as a complex number.
void magnitude(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  call.proceed();
  if (C10_LIKELY(!c10::isComplexType(dtype))) return;
  const Below below;
  call.result() = at::view_as_real_copy(call.result().toTensor()).select(-1, 0);
}

Tensor viewed(const Tensor& t, at::IntArrayRef sizes) {
  return t.sizes() == sizes ? t : at::view_copy(t, sizes);
}

// self, dim, keepdim: the first NaN is the largest and the smallest element. torch_xla compares,
// and no comparison with NaN is true.
void index_of_extreme(Call& call) {
  check_real(call);
  const Tensor self = call.tensor(0);
  if (!c10::isFloatingType(self.scalar_type()) || self.numel() == 0) return call.proceed();
  const bool of_all = call[1].isNone();
  const int64_t dim = of_all ? 0 : call[1].toInt();
  const bool keep = !of_all && call[2].toBool();
  call.proceed();
  const Below below;
  Tensor is_nan = at::_ops::isnan::redispatch(kXla, self);
  if (of_all) is_nan = viewed(is_nan, {self.numel()});
  auto [has_nan, first] = at::_ops::max_dim::redispatch(kXla, is_nan, dim, keep);
  const Tensor& found = call.result().toTensor();
  if (of_all) first = viewed(first, found.sizes());
  call.result() = at::_ops::where_self::redispatch(kXla, has_nan, first, found);
}

// ---- tensors without elements

void clone_if_empty(Call& call) {
  if (C10_LIKELY(call.tensor(0).numel() > 0)) return call.proceed();
  const Below below;
  call.answer(at::clone(call.tensor(0)));
}

void on_the_cpu_if_empty(Call& call) {
  if (C10_LIKELY(call.tensor(0).numel() > 0)) return call.proceed();
  call.on_the_cpu();
}

// self, repeats: torch_xla joins the copies, of which there are none.
void repeat(Call& call) {
  const Tensor self = call.tensor(0);
  auto shape = call[1].toIntVector();
  const auto least = std::min_element(shape.begin(), shape.end());
  const auto more = static_cast<int64_t>(shape.size()) - self.dim();
  if (C10_LIKELY(least == shape.end() || *least != 0 || more < 0)) return call.proceed();
  for (int64_t i = 0; i < self.dim(); ++i) shape[more + i] *= self.size(i);
  const Below below;
  call.answer(at::empty(shape, self.options()));
}

// input, normalized_shape, weight, bias, eps. torch's formula for XLA gives results that are not
// differentiable. Above autograd.
void layer_norm_of_nothing(Call& call) {
  const Tensor input = call.tensor(0);
  if (C10_LIKELY(input.numel() > 0)) return call.proceed();
  Tensor result = input.clone();
  if (is_tensor(call[2])) result = result * call.tensor(2);
  if (is_tensor(call[3])) result = result + call.tensor(3);
  auto shape = input.sizes().vec();
  const auto normalized = static_cast<int64_t>(call[1].toIntVector().size());
  if (normalized > input.dim()) return call.proceed();  // which refuses it
  std::fill(shape.end() - normalized, shape.end(), 1);
  const Tensor statistic = at::zeros(shape, input.options());
  call.answer(result.to(input.scalar_type()), statistic, statistic.clone());
}

Tensor with_batch(const Tensor& t) {
  return t.dim() > 0 ? t : t.view({1});
}

// self, target, …: also of one row of scores and one class. torch_xla truncates targets that are
// no integers.
void nll_loss(Call& call) {
  const Tensor self = call.tensor(0);
  const ScalarType dtype = call.tensor(1).scalar_type();
  TORCH_CHECK(c10::isIntegralType(dtype, /*includeBool=*/false), call.op().schema().name(),
              ": expected classes of int64 as targets, but found ", dtype,
              ". Convert them: target.long().");
  check_real(call);
  if (self.numel() == 0) return call.on_the_cpu();
  if (C10_LIKELY(self.dim() != 1)) return call.proceed();
  const Below below;
  call[0] = self.unsqueeze(0);
  call[1] = with_batch(call.tensor(1));
  call.proceed();
  call.result() = call.result().toTensor().view(at::IntArrayRef());
}

// grad_output, self, target, …
void nll_loss_backward(Call& call) {
  const Tensor self = call.tensor(1);
  if (self.numel() == 0) return call.on_the_cpu();
  if (C10_LIKELY(self.dim() != 1)) return call.proceed();
  const Below below;
  constexpr size_t kReduction = 4;
  if (call[kReduction].toInt() == at::Reduction::None) call[0] = with_batch(call.tensor(0));
  call[1] = self.unsqueeze(0);
  call[2] = with_batch(call.tensor(2));
  call.proceed();
  call.result() = call.result().toTensor().squeeze(0);
}

// ---- matrices

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
  if (wants_factors || call.tensor(0).numel() == 0) return call.on_the_cpu();
  call.proceed();
}

// torch_xla decomposes the first of a batch's dimensions with the second, and fails where there is
// nothing to decompose.
void svd(Call& call) {
  if (C10_LIKELY(call.tensor(0).dim() == 2 && call.tensor(0).numel() > 0)) return call.proceed();
  call.on_the_cpu();
}

// The inverse, and a number for each matrix.
void inverse(Call& call) {
  const Tensor self = call.tensor(0);
  call.proceed();
  const at::IntArrayRef batch = self.sizes().slice(0, self.dim() - 2);
  if (call.result(1).toTensor().sizes() == batch) return;
  const Below below;
  call.result(1) = at::zeros(batch, self.options().dtype(ScalarType::Int));
}

// ---- refused arguments

// Two operands of different ranks, of which none is 0.
void broadcast(Call& call) {
  const Tensor self = call.tensor(0), other = call.tensor(1);
  if (C10_LIKELY(self.dim() == other.dim() || self.dim() == 0 || other.dim() == 0)) {
    return call.proceed();
  }
  const auto shape = at::infer_size(self.sizes(), other.sizes());
  const Below below;
  call[0] = self.expand(shape);
  call[1] = other.expand(shape);
  call.proceed();
}

// self, dim, index, …: a number counts as one of one element, and an index without elements may
// have any rank.
void gather(Call& call) {
  const Tensor self = call.tensor(0), index = call.tensor(2);
  if (C10_LIKELY(self.dim() == index.dim() && index.numel() > 0)) return call.proceed();
  const Below below;
  if (index.numel() == 0) return call.answer(at::empty(index.sizes(), self.options()));
  if (std::max(self.dim(), index.dim()) > 1) return call.proceed();
  call[0] = with_batch(self);
  call[2] = with_batch(index);
  call.proceed();
  call.result() = call.result().toTensor().view(index.sizes());
}

// torch_xla asks for the rank of the index's node, and a node of several outputs, such as that of
// sort, topk or max, has none: the process ends.
template <size_t position>
void index_of_one_output(Call& call) {
  const auto* data = lazy_ir::refusal() ? nullptr : lazy_ir::data_of(call.tensor(position));
  if (C10_UNLIKELY(data != nullptr && data->ir_value && data->ir_value.node->num_outputs() > 1)) {
    const Below below;
    call[position] = at::view_copy(call.tensor(position), call.tensor(position).sizes());
  }
  call.proceed();
}

// As torch's check of a scatter, of sizes of one rank. torch_xla cuts what is too large off, or
// fails when it compiles.
void check_index(at::IntArrayRef self, int64_t dim, at::IntArrayRef index, at::IntArrayRef src) {
  dim = c10::maybe_wrap_dim(dim, static_cast<int64_t>(self.size()));
  for (size_t i = 0; i < self.size(); ++i) {
    TORCH_CHECK((static_cast<int64_t>(i) == dim || index[i] <= self[i]) && index[i] <= src[i],
                "Expected index ", index, " to be no larger than self ", self,
                " apart from dimension ", dim, ", and no larger than src ", src, ".");
  }
}

// A number counts as one of one element, and an index without elements writes nothing.
void scatter_of_numbers(Call& call, const Tensor self, const Tensor index) {
  const bool of_tensor = call[3].isTensor();
  const Below below;
  if (index.numel() == 0) return call.answer(at::clone(self));
  if (std::max({self.dim(), index.dim(), of_tensor ? call.tensor(3).dim() : 0}) > 1)
    return call.proceed();
  call[0] = with_batch(self);
  call[2] = with_batch(index);
  if (of_tensor) call[3] = with_batch(call.tensor(3));
  call.proceed();
  call.result() = call.result().toTensor().view(self.sizes());
}

// self, dim, index, a tensor or a number, …
void scatter(Call& call) {
  const Tensor &self = call.tensor(0), &index = call.tensor(2);
  const at::IntArrayRef sizes = self.sizes(), of_index = index.sizes();
  const bool of_tensor = call[3].isTensor();
  const at::IntArrayRef of_src = of_tensor ? call.tensor(3).sizes() : of_index;
  const bool is_of_one_rank = sizes.size() == of_index.size() && sizes.size() == of_src.size();
  if (C10_UNLIKELY(!is_of_one_rank || index.numel() == 0)) {
    return scatter_of_numbers(call, self, index);
  }
  check_index(sizes, call[1].toInt(), of_index, of_src);
  call.proceed();
}

// self, dim: torch_xla leaves the last element of an odd number out.
void glu(Call& call) {
  const Tensor self = call.tensor(0);
  const int64_t dim = call[1].toInt();
  check_real(call);
  TORCH_CHECK(self.dim() == 0 || self.size(dim) % 2 == 0,
              "glu: expected an even size to halve, but found ", self.sizes(), " and dimension ",
              dim, ".");
  call.proceed();
}

// self, mask, source: torch_xla takes no mask of more dimensions than self, none of 0, and no
// source of more elements.
void masked_scatter(Call& call) {
  const Tensor self = call.tensor(0), mask = call.tensor(1);
  const Below below;
  if (C10_UNLIKELY(mask.sizes() != self.sizes())) {
    const auto shape = at::infer_size(self.sizes(), mask.sizes());
    call[0] = self.expand(shape);
    call[1] = mask.expand(shape);
  }
  const int64_t places = call.tensor(0).numel();
  if (C10_UNLIKELY(call.tensor(2).numel() > places)) {
    call[2] = call.tensor(2).reshape(-1).slice(0, 0, places);
  }
  if (C10_LIKELY(self.dim() > 0 || mask.dim() > 0)) return call.proceed();
  call[0] = with_batch(self);
  call[1] = with_batch(mask);
  call.proceed();
  call.result() = call.result().toTensor().view(at::IntArrayRef());
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

// What as_strided asks for: arguments size, stride and storage_offset, from argument `first` on.
struct Strided {
  Strided(Call& call, size_t first)
      : sizes(call[first].toIntVector()),
        strides(call[first + 1].toIntVector()),
        offset(call[first + 2].isNone() ? 0 : call[first + 2].toInt()) {
    is_empty = sizes.size() != strides.size();  // which the kernel refuses
    for (const int64_t size : sizes) is_empty = is_empty || size <= 0;
  }

  // XLA repeats the last element in the place of what is beyond it, or refuses when the graph runs.
  void check_bounds(const Tensor& self) const {
    int64_t last = offset;
    for (size_t i = 0; i < sizes.size() && !is_empty; ++i) last += (sizes[i] - 1) * strides[i];
    TORCH_CHECK(is_empty || last < self.numel(), "as_strided: sizes ", at::IntArrayRef(sizes),
                ", strides ", at::IntArrayRef(strides), " and storage offset ", offset,
                " need an element ", last, ", out of bounds for a tensor of ", self.numel(),
                " elements. On XLA the elements of a view are those of the view alone.");
  }

  // Whether the elements follow each other: those of a contiguous tensor, its dimensions permuted.
  bool is_dense() const {
    std::vector<std::pair<int64_t, int64_t>> dims;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] != 1) dims.emplace_back(strides[i], sizes[i]);
    }
    std::sort(dims.begin(), dims.end());
    int64_t expected = 1;
    for (const auto& [stride, size] : dims) {
      if (stride != expected) return false;
      expected *= size;
    }
    return true;
  }

  // The positions of the elements among those of the tensor, in one dimension.
  Tensor positions(const at::TensorOptions& options) const {
    Tensor all = at::full({}, offset, options);
    for (size_t i = 0; i < sizes.size(); ++i) {
      all = all.unsqueeze(-1).add(at::arange(sizes[i], options).mul(strides[i]));
    }
    return all.view({-1});
  }

  std::vector<int64_t> sizes, strides;
  int64_t offset;
  bool is_empty;
};

// self, size, stride, storage_offset
void as_strided(Call& call) {
  Strided(call, 1).check_bounds(call.tensor(0));
  call.proceed();
}

// self, src, size, stride, storage_offset: by which a write to as_strided reaches the tensor. Of
// elements that do not follow each other torch_xla writes some to other places.
void as_strided_scatter(Call& call) {
  const Tensor self = call.tensor(0);
  const Strided asked(call, 2);
  asked.check_bounds(self);
  if (call.tensor(1).scalar_type() != self.scalar_type()) {
    call[1] = cast(call.tensor(1), self.scalar_type());
  }
  const Tensor src = call.tensor(1);
  if (asked.is_empty || asked.is_dense() || src.sizes() != asked.sizes) return call.proceed();
  const Below below;
  const Tensor index = asked.positions(self.options().dtype(at::kLong));
  call.answer(self.view({-1}).scatter(0, index, src.view({-1})).view(self.sizes()));
}

// self, [src,] offset, dim1, dim2: dimensions 0 and 1, which are the default, torch_xla takes for
// the last two, whatever the rank. A diagonal is also that of the dimensions in the other order.
template <size_t offset>
void diagonal(Call& call) {
  const int64_t rank = call.tensor(0).dim();
  const int64_t first = c10::maybe_wrap_dim(call[offset + 1].toInt(), rank);
  const int64_t second = c10::maybe_wrap_dim(call[offset + 2].toInt(), rank);
  if (C10_UNLIKELY(first == 0 && second == 1 && rank > 2)) {
    call[offset] = -call[offset].toInt();
    std::swap(call[offset + 1], call[offset + 2]);
  }
  call.proceed();
}

// A write to a diagonal. Of one without elements torch_xla fails when the graph runs.
void diagonal_scatter(Call& call) {
  const Tensor self = call.tensor(0);
  const int64_t offset = call[2].toInt();
  if (C10_UNLIKELY(offset <= -self.size(call[3].toInt()) || offset >= self.size(call[4].toInt()))) {
    return call.answer(self.clone());
  }
  diagonal<2>(call);
}

// self, src: torch copies self's elements before it finds that src has none.
void copy_of_nothing(Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(!call.tensor(0).is_xla() || !call.tensor(1).is_meta(),
                              "Cannot copy out of meta tensor; no data!");
  call.proceed();
}

void of_integers(Call& call) {
  if (C10_UNLIKELY(is_integral(call.tensor(0)))) {
    call[0] = cast(call.tensor(0), default_dtype());
  }
  call.proceed();
}

// Of complex numbers XLA's builder ends the process.
void of_reals(Call& call) {
  check_real(call);
  call.proceed();
}

// Two tensors of bool, of which XLA has no such function.
void of_bools(Call& call) {
  for (size_t i : {0, 1}) {
    if (C10_LIKELY(call.tensor(i).scalar_type() != ScalarType::Bool)) return call.proceed();
  }
  for (size_t i : {0, 1}) call[i] = cast(call.tensor(i), default_dtype());
  call.proceed();
}

// Sections, or the indices to split at, in a tensor: read here, as on the CPU.
void read_sections(Call& call) {
  call[1] = call.tensor(1).cpu();
  call.proceed();
}

// self: torch's formula, 1 + erf(x), has no digits left where x is far below 0. Above autograd.
void normal_distribution(Call& call) {
  const Tensor self = call.tensor(0);
  const ScalarType dtype = is_integral(self) ? default_dtype() : self.scalar_type();
  const Tensor x = self.to(is_half(dtype) ? ScalarType::Float : dtype);
  call.answer(((x * -M_SQRT1_2).erfc() * 0.5).to(dtype));
}

// ---- what XLA does not have

[[noreturn]] void sparse_tensor(Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, call.op().schema().name(), ": expected an operator of dense tensors, as XLA has no ",
      "sparse ones. Convert on the CPU, x.cpu().to_sparse(), or ask for a dense gradient.");
}

[[noreturn]] void half_complex(Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, call.op().schema().name(), ": expected complex64 or complex128, as XLA has no ",
      "complex numbers of float16. Use x.cfloat(), or torch.complex of float32 tensors.");
}

// self: torch_xla declares a result with a layout of one dimension too few, which ends the process
// where an operator permutes it. Expanded to the sizes that it has, it gets a new one.
void parts_of_complex(Call& call) {
  call.proceed();
  const Tensor parts = call.result().toTensor();
  call.result() = at::expand_copy(parts, parts.sizes());
}

void complex_of_parts(Call& call) {
  if (C10_UNLIKELY(call.tensor(0).scalar_type() == ScalarType::Half)) half_complex(call);
  call.proceed();
}

// ---- results of another dtype

// Averages of integers are integers, rounded towards zero.
void average_integers(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  check_real(call);
  if (C10_LIKELY(!is_integral(call.tensor(0)))) return call.proceed();
  TORCH_CHECK_NOT_IMPLEMENTED(dtype != ScalarType::Bool, call.op().schema().name(),
                              ": not implemented for torch.bool, as on the CPU.");
  call[0] = cast(call.tensor(0), ScalarType::Double);
  call.proceed();
  call.result() = cast(call.result().toTensor(), dtype);
}

// ---- what torch computes in float32 and rounds once

// Argument `mode`: without one, it is the division that XLA has.
template <size_t mode>
void divide(Call& call) {
  if (C10_LIKELY(call[mode].isNone())) return call.proceed();
  if (call[mode].toStringRef() == "floor") return divide_down(call);
  compute_wide(call);
}

// self, end, weight: of integers torch_xla rounds the weight to one.
void lerp(Call& call) {
  check_no_integers(call);
  compute_wide(call);
}

// Operators of float16 alone: in bfloat16 they are as models use them, and right.
void compute_float16_wide(Call& call) {
  if (C10_LIKELY(call.tensor(0).scalar_type() != ScalarType::Half)) return call.proceed();
  compute_wide(call);
}

// Whether an operator that models of bfloat16 are made of is computed in float32: for who
// multiplies in bfloat16 (topic native-mul) it stays in bfloat16, too.
bool is_computed_wide(ScalarType dtype) {
  if (C10_LIKELY(dtype != ScalarType::BFloat16)) return dtype == ScalarType::Half;
  return castoff_native_mul_enabled == nullptr || !castoff_native_mul_enabled();
}

void compute_wide_unless_native(Call& call) {
  if (C10_LIKELY(!is_computed_wide(call.tensor(0).scalar_type()))) return call.proceed();
  compute_wide(call);
}

// self, approximate. Far below 0 the error of XLA's erf, times self, is not 0. On a TPU, where the
// comparison costs a tenth of a layer's cycles, that stays: it is 1e-7 of self.
void gelu(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  check_real(call);
  if (dtype != ScalarType::Float && !is_computed_wide(dtype)) return call.proceed();
  if (call[1].toStringRef() != "none" || is_for_tpu()) return compute_wide(call);
  const Tensor wide = widened(call.tensor(0));
  call[0] = wide;
  call.proceed();
  const Tensor is_near = at::_ops::ge_Scalar::redispatch(kXla, wide, -5.5);
  const Tensor zero = at::_ops::mul_Scalar::redispatch(kXla, wide, 0.0);  // or NaN
  const Tensor found =
      at::_ops::where_self::redispatch(kXla, is_near, call.result().toTensor(), zero);
  call.result() = dtype == ScalarType::Float ? found : cast(found, dtype);
}

// self, dim, half_to_float
void log_softmax(Call& call) {
  check_real(call);
  if (call[2].toBool()) return call.proceed();
  compute_wide_unless_native(call);
}

// grad_output, output, dim, input_dtype
void log_softmax_backward(Call& call) {
  if (C10_LIKELY(!is_computed_wide(call[3].toScalarType()))) return call.proceed();
  call[3] = ScalarType::Float;
  compute_wide(call);
}

// Cumulative sums of bfloat16 on a TPU, in float32 and with fewer cycles than in bfloat16: within
// blocks as products with a triangle of ones, which its matrix unit sums, and then over the blocks.
// Times 0 an infinity or a NaN would reach the elements before it. They are counted apart, an
// infinity as 1, a negative one as 128 and a NaN as both, which bfloat16 has.
Tensor cumsum_by_products(const Tensor& self, int64_t dim) {
  constexpr int64_t kBlock = 64;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int64_t size = self.size(dim), padding = (kBlock - size % kBlock) % kBlock;
  const Tensor rows = dim == self.dim() - 1 ? self : at::transpose_copy(self, dim, -1);
  const Tensor padded = padding == 0 ? rows : at::constant_pad_nd(rows, {0, padding}, 0);
  std::vector<int64_t> shape = padded.sizes().vec();
  shape.back() /= kBlock;
  shape.push_back(kBlock);
  const Tensor blocks = padded.view(shape), is_finite = at::isfinite(blocks);
  const Tensor triangle = widened(at::ones({kBlock, kBlock}, self.options()).triu());
  const Tensor others = at::where(blocks == kInfinity, 1.0, at::where(blocks < 0, 128.0, 129.0));
  const Tensor marks = cast(at::where(is_finite, 0.0, others), self.scalar_type());
  const Tensor counts = at::matmul(widened(marks), triangle);
  const Tensor negative = (counts / 128).floor(), positive = counts - negative * 128;
  const Tensor sums = at::matmul(widened(at::where(is_finite, blocks, 0.0)), triangle) +
                      at::where(positive > 0, kInfinity, 0.0) +
                      at::where(negative > 0, -kInfinity, 0.0);
  const Tensor ends = at::select_copy(sums, -1, kBlock - 1).cumsum(-1);
  shape.back() = 1;
  const Tensor before = at::constant_pad_nd(ends.slice(-1, 0, -1), {1, 0}, 0).view(shape);
  Tensor result = (sums + before).view(padded.sizes());
  if (padding > 0) result = result.slice(-1, 0, size);
  result = cast(result, self.scalar_type());
  return dim == self.dim() - 1 ? result : at::transpose_copy(result, dim, -1);
}

// self, dim, dtype
void cumsum(Call& call) {
  const ScalarType from = call.tensor(0).scalar_type();
  const ScalarType to = call[2].isNone() ? from : call[2].toScalarType();
  if (call.tensor(0).numel() == 0) return call.on_the_cpu();
  if (C10_LIKELY(!is_half(to))) return call.proceed();
  const Tensor self = from == to ? call.tensor(0) : cast(call.tensor(0), to);
  const int64_t dim = at::maybe_wrap_dim(call[1].toInt(), self.dim());
  if (is_for_tpu() && to == ScalarType::BFloat16 && self.dim() > 0 && self.size(dim) > 64) {
    const Below below;
    return call.answer(cumsum_by_products(self, dim));
  }
  call[0] = cast(self, ScalarType::Float);
  call[2] = c10::IValue();
  call.proceed();
  round(call, to);
}

// input, weight, bias, running_mean, running_var, …: the statistics are written to.
void batch_norm(Call& call) {
  constexpr size_t kStatistics[] = {3, 4};
  const bool is_met = call.tensor(0).scalar_type() == ScalarType::Half;
  if (C10_LIKELY(!is_met) || !have_dtype(call, ScalarType::Half)) return call.proceed();
  std::vector<std::pair<Tensor, Tensor>> written;
  for (size_t i : kStatistics) {
    if (is_half_tensor(call[i])) written.emplace_back(call.tensor(i), widened(call.tensor(i)));
  }
  size_t next = 0;
  for (size_t i : kStatistics) {
    if (is_half_tensor(call[i])) call[i] = written[next++].second;
  }
  widen(call);
  call.proceed();
  round(call, ScalarType::Half);
  const Below below;
  for (auto& [statistic, wide] : written) statistic.copy_(wide);
}

// Above autograd, so that the gradients are computed so, too.
template <bool (*is_met)(ScalarType)>
void compute_wide_with_gradients(Call& call) {
  const ScalarType dtype = call.tensor(0).scalar_type();
  if (C10_LIKELY(!is_met(dtype)) || !have_dtype(call, dtype)) return call.proceed();
  for (size_t i = 0; i < call.size(); ++i) {
    if (is_half_tensor(call[i])) call[i] = call.tensor(i).to(ScalarType::Float);
  }
  call.proceed();
  for (size_t i = 0; i < call.results(); ++i) {
    if (call.result(i).isTensor() && call.result(i).toTensor().defined()) {
      call.result(i) = call.result(i).toTensor().to(dtype);
    }
  }
}

// input, normalized_shape, …: on a TPU tokens in rows that fill no tiles, as the 28 x 28 of a Swin,
// are one dimension, since each row would be padded. Not what was permuted, as ConvNeXt's, which
// has the layout of a convolution.
void layer_norm(Call& call) {
  const Tensor input = call.tensor(0);
  const bool is_padded = is_for_tpu() && is_half(input.scalar_type()) && input.dim() > 3 &&
                         input.numel() > 0 && call[1].toIntVector().size() == 1 &&
                         input.size(-2) % kTileRows != 0 && input.is_contiguous();
  if (C10_LIKELY(!is_padded)) return compute_wide_with_gradients<is_computed_wide>(call);
  call[0] = input.flatten(1, -2);
  compute_wide_with_gradients<is_computed_wide>(call);
  for (size_t i = 0; i < call.results(); ++i) {
    const Tensor result = call.result(i).toTensor();
    call.result(i) = result.unflatten(1, input.sizes().slice(1, input.dim() - 2));
  }
}

// ---- registration

bool is_installed = false;

void mend_values(torch::Library& xla) {
  remedy(xla, elu_backward, "elu_backward");
  remedy(xla, hardswish_backward, "hardswish_backward");
  remedy(xla, log_sigmoid_backward, "log_sigmoid_backward");
  remedy(xla, norm<-1, -1, -1>, "norm.Scalar");
  remedy(xla, norm<-1, -1, 2>, "norm.ScalarOpt_dtype");
  remedy(xla, norm<2, 3, -1>, "norm.ScalarOpt_dim");
  remedy(xla, norm<2, 3, 4>, "norm.ScalarOpt_dim_dtype linalg_vector_norm");
  remedy(xla, chunk_cat, "_chunk_cat");
  remedy(xla, isneginf, "isneginf");
  remedy(xla, magnitude, "abs");
  remedy(xla, average_integers, "avg_pool2d avg_pool3d");
  remedy(xla, shift<at::_ops::bitwise_left_shift_Tensor>, "__lshift__.Scalar __lshift__.Tensor");
  remedy(xla, shift<at::_ops::bitwise_right_shift_Tensor>, "__rshift__.Scalar __rshift__.Tensor");
  remedy(xla, divide_down, "floor_divide");
  remedy(xla, arange, "arange.start_out");
  remedy(xla, embedding_bag, "_embedding_bag_forward_only");
  remedy(xla, index_of_extreme, "argmax argmin");
}

void mend_refusals(torch::Library& xla, torch::Library& autograd) {
  remedy(xla, clone_if_empty, "roll");
  remedy(xla, on_the_cpu_if_empty, "cumprod");
  remedy(xla, repeat, "repeat");
  remedy(xla, index_of_one_output<1>, "embedding embedding_dense_backward");
  remedy(xla, index_of_one_output<2>,
         "index_add index_copy index_fill_.int_Scalar index_fill_.int_Tensor index_select");
  remedy(xla, nll_loss, "nll_loss_forward nll_loss2d_forward");
  remedy(xla, nll_loss_backward, "nll_loss_backward nll_loss2d_backward");
  remedy(xla, count_differences, "_pdist_forward");
  remedy(xla, slogdet, "_linalg_slogdet");
  remedy(autograd, slogdet_with_gradients, "_linalg_slogdet", c10::DispatchKey::AutogradXLA);
  remedy(xla, svd, "_linalg_svd");
  remedy(xla, inverse, "linalg_inv_ex");
  remedy(xla, broadcast, "clamp_max.Tensor clamp_min.Tensor");
  remedy(xla, gather, "gather");
  remedy(xla, scatter,
         "scatter.reduce scatter.src scatter.value scatter.value_reduce scatter_add "
         "scatter_reduce.two");
  remedy(xla, glu, "glu");
  remedy(xla, of_reals, "fmod.Scalar fmod.Tensor hardsigmoid hardswish max_unpool2d max_unpool3d");
  remedy(xla, masked_scatter, "masked_scatter");
  remedy(xla, distances, "_cdist_forward");
  remedy(xla, of_bools, "atan2");
  remedy(xla, as_strided, "as_strided as_strided_copy");
  remedy(xla, as_strided_scatter, "as_strided_scatter");
  remedy(xla, diagonal_scatter, "diagonal_scatter");
  remedy(xla, diagonal<1>, "diagonal_copy");
  remedy(xla, of_integers, "erfc erfinv native_dropout_backward");
  remedy(xla, sparse_tensor,
         "_to_sparse _to_sparse.sparse_dim _to_sparse_bsc _to_sparse_bsr _to_sparse_csc "
         "_to_sparse_csr");
  remedy(xla, parts_of_complex, "view_as_real_copy");
  remedy(xla, complex_of_parts, "complex view_as_complex_copy");
  remedy(autograd, half_complex, "chalf", c10::DispatchKey::AutogradXLA);
  remedy(autograd, sparse_tensor, "embedding_sparse_backward", c10::DispatchKey::AutogradXLA);
  remedy(autograd, layer_norm_of_nothing, "native_layer_norm", c10::DispatchKey::AutogradXLA);
  remedy(autograd, normal_distribution, "special_ndtr", c10::DispatchKey::AutogradXLA);
  remedy(autograd, read_sections, "tensor_split.tensor_indices_or_sections",
         c10::DispatchKey::AutogradXLA);
}

void mend_steps(torch::Library& xla, torch::Library& autograd) {
  remedy(xla, lerp, "lerp.Scalar lerp.Tensor");
  remedy(xla, compute_wide, "softplus softplus_backward");
  remedy(xla, divide<2>, "div.Tensor_mode");
  remedy(xla, compute_float16_wide,
         "addcdiv addcmul convolution_backward_overrideable convolution_overrideable "
         "sigmoid_backward");
  remedy(xla, gelu, "gelu");
  remedy(xla, compute_wide_unless_native, "gelu_backward");
  remedy(xla, cumsum, "cumsum");
  remedy(xla, log_softmax, "_log_softmax");
  remedy(xla, log_softmax_backward, "_log_softmax_backward_data");
  remedy(xla, batch_norm, "_native_batch_norm_legit native_batch_norm");
  remedy(autograd, compute_wide_with_gradients<is_half>, "cosine_similarity",
         c10::DispatchKey::AutogradXLA);
  remedy(autograd, layer_norm, "native_layer_norm", c10::DispatchKey::AutogradXLA);
  remedy(autograd, compute_wide_with_gradients<is_computed_wide>, "native_group_norm",
         c10::DispatchKey::AutogradXLA);
}

void install() {
  const QuietOverride quiet;
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  torch::Library& autograd = library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradXLA);
  mend_values(xla);
  mend_refusals(xla, autograd);
  mend_steps(xla, autograd);
  remedy(library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta), copy_of_nothing, "copy",
         c10::DispatchKey::Meta);
  mend_resampling(xla);
  mend_complex_numbers(xla);
  mend_unfolding();
  mend_norm_gradient(xla);
  mend_indices(xla);
  refuse_dtypes(xla);
  is_installed = true;
}

}  // namespace
}  // namespace castoff

// Puts the kernels in place; nullptr, or what went wrong. Call it once.
extern "C" __attribute__((visibility("default"))) const char* castoff_values_install() {
  return castoff::put_in_place(castoff::install);
}

// Whether layer_norm of tensors of this dtype is computed in float32.
extern "C" __attribute__((visibility("default"))) bool castoff_values_computes_wide(
    at::ScalarType dtype) {
  return castoff::is_installed && castoff::is_computed_wide(dtype);
}
