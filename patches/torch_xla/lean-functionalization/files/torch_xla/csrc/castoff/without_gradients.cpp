// linear, matmul and layer_norm of a forward pass without gradients. torch composes them of
// views and other operators, and functionalization wraps each intermediate result. Here the same
// nodes are made of what the wrappers hold, and only the result is wrapped.

#include "torch_xla/csrc/castoff/without_gradients.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/expand_copy_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/t_copy_ops.h>
#include <ATen/ops/view_copy_ops.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <tuple>
#include <vector>

#include "torch_xla/csrc/castoff/in_place.h"
#include "torch_xla/csrc/castoff/kernels.h"
#include "torch_xla/csrc/castoff/target.h"

// Whether topic values computes what models are made of in float32 (values.cpp).
extern "C" [[gnu::weak]] bool castoff_values_computes_wide(at::ScalarType dtype);

namespace castoff {
namespace {

namespace ops = at::_ops;

using Shape = std::vector<c10::SymInt>;

constexpr auto kAutograd = c10::DispatchKey::AutogradXLA;

struct WithoutGradients;
using Linear = Overridden<WithoutGradients, ops::linear, kAutograd>;
using Matmul = Overridden<WithoutGradients, ops::matmul, kAutograd>;
using LayerNorm = Overridden<WithoutGradients, ops::layer_norm, kAutograd>;

// Below autograd and functionalization, as functionalization's kernels call operators.
struct Below {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::AutoDispatchSkipFunctionalize no_wrappers;
};

bool has_no_gradient(const Tensor& t) {
  return !(c10::GradMode::is_enabled() && t.requires_grad()) && !t._fw_grad(/*level=*/0).defined();
}

// A tensor of torch_xla's of these operators' dtype, with elements, that nothing is differentiated
// by. To be asked before sizes are: torch.compile has tensors of symbolic ones.
bool is_plain(const Tensor& t, at::ScalarType dtype) {
  return t.scalar_type() == dtype && xla_wrapper(t) != nullptr && t.numel() > 0 &&
         has_no_gradient(t);
}

// As torch_xla declares its tensors; of others a product may be one of batches.
bool has_dense_strides(const Tensor& t) {
  int64_t expected = 1;
  for (int64_t i = t.dim() - 1; i >= 0; --i) {
    if (t.size(i) != 1 && t.stride(i) != expected) return false;
    expected *= t.size(i);
  }
  return true;
}

Tensor wrapped(const Tensor& t) {
  return functionalization::to_functional_tensor(t);
}

Tensor flattened(const Tensor& t, int64_t columns) {
  return ops::view_copy::call(t, Shape{t.numel() / columns, columns});
}

Tensor with_last(const Tensor& t, c10::IntArrayRef sizes, int64_t last) {
  Shape shape(sizes.begin(), sizes.end());
  shape.back() = last;
  return ops::_unsafe_view::call(t, shape);
}

// ---- linear

// Whether the composed operator is of these nodes: others, and all that it refuses, are its own.
bool is_linear(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  const at::ScalarType dtype = input.scalar_type();
  return is_plain(input, dtype) && is_plain(weight, dtype) && input.dim() >= 2 &&
         weight.dim() == 2 && input.size(-1) == weight.size(1) && has_dense_strides(input) &&
         (!bias.defined() ||
          (is_plain(bias, dtype) && bias.dim() == 1 && bias.size(0) == weight.size(0)));
}

Tensor linear(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
              const std::optional<Tensor>& given_bias) {
  const Tensor bias = given_bias.value_or(Tensor());
  if (!is_linear(input, weight, bias)) return Linear::call(keys, input, weight, given_bias);
  const Tensor x = unwrapped(input), w = unwrapped(weight);
  const Tensor b = bias.defined() ? unwrapped(bias) : bias;
  Tensor result;
  {
    const Below below;
    const Tensor transposed = ops::t_copy::call(w);
    if (x.dim() == 2) {
      result =
          b.defined() ? ops::addmm::call(b, x, transposed, 1, 1) : ops::mm::call(x, transposed);
    } else {
      result = ops::mm::call(flattened(x, x.size(-1)), transposed);
      result = with_last(result, x.sizes(), w.size(0));
      if (b.defined()) result = ops::add_Tensor::call(result, b, 1);
    }
  }
  return wrapped(result);
}

// ---- matmul of batches of matrices, or of one by a matrix

Tensor as_batch(const Tensor& t, Shape batch, int64_t count) {
  batch.insert(batch.end(), {t.size(-2), t.size(-1)});
  return ops::view_copy::call(ops::expand_copy::call(t, batch, /*implicit=*/false),
                              Shape{count, t.size(-2), t.size(-1)});
}

Tensor product_of_batches(const Tensor& a, const Tensor& b) {
  const auto dims =
      at::infer_size(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  const Shape batch(dims.begin(), dims.end());
  const int64_t count = c10::multiply_integers(dims);
  const Tensor result = ops::bmm::call(as_batch(a, batch, count), as_batch(b, batch, count));
  Shape shape = batch;
  shape.insert(shape.end(), {a.size(-2), b.size(-1)});
  return ops::_unsafe_view::call(result, shape);
}

Tensor matmul(c10::DispatchKeySet keys, const Tensor& self, const Tensor& other) {
  const at::ScalarType dtype = self.scalar_type();
  const bool is_met = self.dim() >= 3 && other.dim() >= 2 && is_plain(self, dtype) &&
                      is_plain(other, dtype) && self.size(-1) == other.size(-2) &&
                      (other.dim() > 2 || has_dense_strides(self));
  if (!is_met) return Matmul::call(keys, self, other);
  const Tensor a = unwrapped(self), b = unwrapped(other);
  Tensor result;
  {
    const Below below;
    result = b.dim() > 2
                 ? product_of_batches(a, b)
                 : with_last(ops::mm::call(flattened(a, a.size(-1)), b), a.sizes(), b.size(-1));
  }
  return wrapped(result);
}

// ---- layer_norm

// Which dtype it is computed in. nullopt: left to the composed operator, which topic values asks to
// go another way.
std::optional<at::ScalarType> computed_in(const Tensor& input) {
  const at::ScalarType dtype = input.scalar_type();
  if (dtype == at::ScalarType::Float) return dtype;
  if (!is_half(dtype) || (is_for_tpu() && input.dim() > 3)) return std::nullopt;
  const bool is_wide =
      castoff_values_computes_wide != nullptr && castoff_values_computes_wide(dtype);
  return is_wide ? at::ScalarType::Float : dtype;
}

Tensor in_dtype(at::ScalarType dtype, const Tensor& t) {
  return t.scalar_type() == dtype ? t : cast(t, dtype);
}

// Of rows, which are the channels of a batch normalisation.
Tensor layer_norm(c10::DispatchKeySet keys, const Tensor& input, c10::SymIntArrayRef normalized,
                  const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                  double eps, bool cudnn_enable) {
  const at::ScalarType dtype = input.scalar_type();
  const auto shape = c10::asIntArrayRefSlowOpt(normalized);
  const auto computed = computed_in(input);
  const auto is_parameter = [&](const std::optional<Tensor>& t) {
    return t.has_value() && t->defined() && is_plain(*t, dtype) && t->sizes() == *shape;
  };
  // Autocast knows native_layer_norm, of which the composed operator is made.
  const bool is_met = shape.has_value() && computed.has_value() && !shape->empty() &&
                      !autocast_enabled() && is_plain(input, dtype) &&
                      shape->size() <= static_cast<size_t>(input.dim()) &&
                      input.sizes().slice(input.dim() - shape->size()) == *shape &&
                      is_parameter(weight) && is_parameter(bias);
  if (!is_met) {
    return LayerNorm::call(keys, input, normalized, weight, bias, eps, cudnn_enable);
  }
  Tensor x = unwrapped(input), w = unwrapped(*weight), b = unwrapped(*bias);
  const Shape sizes(x.sizes().begin(), x.sizes().end());
  const int64_t columns = c10::multiply_integers(*shape);
  Tensor result;
  {
    const Below below;
    for (Tensor* t : {&x, &w, &b}) *t = in_dtype(*computed, *t);
    const Tensor rows = ops::view_copy::call(x, Shape{1, x.numel() / columns, columns});
    result = std::get<0>(ops::native_batch_norm::call(rows, {}, {}, {}, {}, /*training=*/true,
                                                      /*momentum=*/0, eps));
    result = in_dtype(dtype, ops::addcmul::call(b, ops::view_copy::call(result, sizes), w, 1));
  }
  return wrapped(result);
}

}  // namespace

void install_kernels_without_gradients() {
  torch::Library& lib = library(torch::Library::IMPL, "aten", kAutograd);
  Linear::by(lib, linear);
  Matmul::by(lib, matmul);
  LayerNorm::by(lib, layer_norm);
}

}  // namespace castoff
