// Operators on XLA whose operands have different float dtypes.
//
// torch either promotes such operands or refuses them at the call. torch_xla's lowering of the
// operators below does neither: the tensor that comes back declares a dtype that its IR does not
// have, or the whole pending graph fails to compile. Here each of them does what torch's CPU kernel
// does. What torch_xla lowers truthfully stays as it is, even where the CPU refuses it.
//
// Judged is what the operands hold, as torch_xla's FSDP leaves declared dtypes stale.

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using c10::IValue;
using Tensors = std::vector<Tensor>;

// ---- operands

// The tensors whose dtypes take part: float ones, but no wrapped Python numbers. Of some operators
// torch_xla computes in the dtype of an integer that is the first factor; there they do, too.
enum class Kinds { kFloats, kNumbers };

bool is_number(const Tensor& t) {
  return t.unsafeGetTensorImpl()->is_wrapped_number();
}

bool takes_part(const Tensor& t, Kinds kinds) {
  return t.defined() && (kinds == Kinds::kNumbers || c10::isFloatingType(t.scalar_type())) &&
         !is_number(t);
}

// einsum is met above functionalization; a fake tensor declares what it holds.
Tensor held_by(const Tensor& t) {
  namespace functional = at::functionalization::impl;
  const Tensor bare = functional::isFunctionalTensor(t) ? functional::from_functional_tensor(t) : t;
  return is_bare_xla(bare) ? held(bare) : bare;
}

Tensor converted(const Tensor& t, ScalarType dtype) {
  const Tensor source = held_by(t);
  return source.scalar_type() == dtype ? t : cast(source, dtype);
}

template <class Visit>
void each_operand(Call& call, Kinds kinds, const Visit& visit) {
  const auto visit_one = [&](const Tensor& t) {
    if (takes_part(t, kinds)) visit(t);
  };
  for (const IValue& argument : call) {
    if (argument.isTensor()) {
      visit_one(argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const Tensor& t : argument.toTensorList()) visit_one(t);
    }
  }
}

// All that most calls cost.
bool declare_one_dtype(Call& call, Kinds kinds) {
  caffe2::TypeMeta first;
  bool one = true;
  each_operand(call, kinds, [&](const Tensor& t) {
    if (first == caffe2::TypeMeta()) first = t.dtype();
    one &= first == t.dtype();
  });
  return one;
}

bool hold_one_dtype(const Tensors& held) {
  return std::all_of(held.begin(), held.end(), [&](const Tensor& t) {
    return t.scalar_type() == held.front().scalar_type();
  });
}

[[noreturn]] void refuse(const Call& call, const Tensors& held) {
  std::vector<ScalarType> dtypes;
  for (const Tensor& t : held) dtypes.push_back(t.scalar_type());
  refuse_mixed(call, dtypes);
}

// ---- what to do with operands that hold different dtypes

struct Mixed {
  Call& call;
  const Tensors& held;
  const Kinds kinds;
  std::optional<ScalarType> result = std::nullopt;  // what the first result is cast to

  void cast_operands(ScalarType dtype) const {
    for (IValue& argument : call) {
      if (argument.isTensor() && takes_part(argument.toTensor(), kinds)) {
        argument = converted(argument.toTensor(), dtype);
      }
    }
  }
};

// `prepare` makes of the call what the kernel that was there serves, or refuses it.
template <void (*prepare)(Mixed&), Kinds kinds>
C10_NOINLINE void mend_declared(Call& call) {
  Tensors held;
  each_operand(call, kinds, [&](const Tensor& t) { held.push_back(held_by(t)); });
  if (hold_one_dtype(held)) return call.proceed();
  Mixed mixed{call, held, kinds};
  prepare(mixed);
  call.proceed();
  IValue& result = call.result();
  if (mixed.result && is_tensor(result)) result = converted(result.toTensor(), *mixed.result);
}

template <void (*prepare)(Mixed&), Kinds kinds = Kinds::kFloats>
void mend(Call& call) {
  if (C10_LIKELY(declare_one_dtype(call, kinds))) return call.proceed();
  mend_declared<prepare, kinds>(call);
}

// XLA computes in the higher of two dtypes; bfloat16 is above float16, integers are below both.
bool is_below(const Tensor& a, const Tensor& b) {
  constexpr int64_t kFloat = 32;
  const auto height = [](const Tensor& t) {
    return 2 * t.element_size() + (t.scalar_type() == ScalarType::BFloat16) +
           (is_integral(t) ? 0 : kFloat);
  };
  return height(a) < height(b);
}

// Computes in the dtype that torch promotes them to. Like torch's CPU kernels of these operators
// (and unlike those of mul and div, which torch_xla lowers well), it converts a 0-d operand too.
void promote(Mixed& mixed) {
  mixed.cast_operands(at::native::result_type(mixed.held));
}

// The same of operators that torch_xla computes, truthfully, in the highest of the dtypes: there is
// something to do where torch's rules give another. Of bfloat16 and float16 together, not all of
// them know which is the higher.
void promote_unless_highest(Mixed& mixed) {
  const auto highest = std::max_element(mixed.held.begin(), mixed.held.end(), is_below);
  const bool is_clear = std::all_of(mixed.held.begin(), mixed.held.end(), [&](const Tensor& t) {
    return t.scalar_type() == highest->scalar_type() ||
           (t.is_floating_point() && t.element_size() < highest->element_size());
  });
  if (!is_clear || highest->scalar_type() != at::native::result_type(mixed.held)) promote(mixed);
}

// lerp: a 0-d weight is converted; other dtypes are refused, by the kernel that was there.
void promote_weight(Mixed& mixed) {
  const Tensors& held = mixed.held;
  const bool one_but_for_weight =
      held.size() == 3 && held[2].dim() == 0 && held[0].scalar_type() == held[1].scalar_type();
  if (one_but_for_weight) mixed.call[2] = converted(held[2], held[0].scalar_type());
}

// Writes src into self: src takes self's dtype.
void take_dtype_of_self(Mixed& mixed) {
  mixed.cast_operands(mixed.held.front().scalar_type());
}

// Its graph would fail to compile.
void refuse_all(Mixed& mixed) {
  refuse(mixed.call, mixed.held);
}

// The same of self and argument `other`, of which neither is promoted; integers, too.
template <size_t other>
void of_one_dtype(Call& call) {
  const Tensor &self = call.tensor(0), &source = call.tensor(other);
  if (C10_UNLIKELY(self.dtype() != source.dtype())) {
    const Tensors held{held_by(self), held_by(source)};
    if (!hold_one_dtype(held)) refuse(call, held);
  }
  call.proceed();
}

// torch_xla declares the dtype of the first factor, whatever that of the product is. The addend of
// addmm has passed matmul-out-dtype's check, or the product's.
void product(Mixed& mixed) {
  if (is_below(mixed.held[mixed.held.size() - 2], mixed.held.back()))
    refuse(mixed.call, mixed.held);
}

// The sum with the bias declares the higher dtype, unless the convolution is a transposed one: that
// adds its bias within the one node, and takes one in float64 beside float32, as torch does.
void convolution(Mixed& mixed) {
  constexpr size_t kTransposed = 6;
  const Tensors& held = mixed.held;
  const bool is_transposed = mixed.call[kTransposed].toBool();
  const auto is_float = [](const Tensor& t) { return t.scalar_type() == ScalarType::Float; };
  if (is_transposed && is_float(held[0]) && is_float(held[1])) {
    return mixed.cast_operands(ScalarType::Float);
  }
  if (!held[0].is_floating_point()) refuse(mixed.call, held);
  const bool bias_declares = held.size() == 3 && !is_transposed;
  const bool untrue = bias_declares
                          ? is_below(held[0], held[1]) && is_below(held[2], held[1])
                          : std::any_of(held.begin() + 1, held.end(),
                                        [&](const Tensor& t) { return is_below(held[0], t); });
  if (untrue) refuse(mixed.call, held);
}

// x[mask] = number: a 0-d value takes self's dtype.
void index_put(Mixed& mixed) {
  constexpr size_t kIndices = 1, kValues = 2;
  const Tensors& held = mixed.held;
  const auto indices = mixed.call[kIndices].toOptionalTensorVector();
  const bool masked = std::any_of(indices.begin(), indices.end(), [](const auto& index) {
    return index.has_value() && index->defined() && index->scalar_type() == ScalarType::Bool;
  });
  if (masked && held[1].dim() == 0) {
    mixed.call[kValues] = converted(held[1], held[0].scalar_type());
  }
}

// Only the weight of the elements may have a dtype of its own.
void binary_cross_entropy(Mixed& mixed) {
  const Tensors& held = mixed.held;
  if (held[0].scalar_type() != held[1].scalar_type()) refuse(mixed.call, {held[0], held[1]});
}

// An input in bfloat16 or float16 with parameters and statistics in float32 is computed in float32
// and returned in the input's dtype; nothing else goes together.
void batch_norm(Mixed& mixed) {
  const Tensors& held = mixed.held;
  const bool float_parameters = std::all_of(held.begin() + 1, held.end(), [](const Tensor& t) {
    return t.scalar_type() == ScalarType::Float;
  });
  if (!is_half(held.front().scalar_type()) || !float_parameters) refuse(mixed.call, held);
  mixed.call[0] = converted(held.front(), ScalarType::Float);
  mixed.result = held.front().scalar_type();
}

// grad_out and input are reduced, the rest is float32: see batch_norm.
void batch_norm_backward(Mixed& mixed) {
  mixed.result = mixed.call.tensor(1).scalar_type();
  mixed.cast_operands(at::native::result_type(mixed.held));
}

// ---- numbers of the CPU

bool is_of_the_cpu(const IValue& value) {
  return is_tensor(value) && value.toTensor().device().is_cpu();
}

// Sends tensors of the CPU that have no dimension to the device, and refuses others, as torch does
// beside tensors of a GPU. torch_xla's kernels of these operators refuse both, or their graph does
// not compile, or it is computed without: a bound of clamp. They take numbers of Python, but for
// xlogy's.
template <bool takes_numbers>
void send_numbers(Call& call) {
  if (C10_LIKELY(std::none_of(call.begin(), call.end(), is_of_the_cpu))) return call.proceed();
  const Tensor on_device = std::find_if(call.begin(), call.end(), [](const IValue& value) {
                             return is_tensor(value) && value.toTensor().is_xla();
                           })->toTensor();
  for (IValue& argument : call) {
    if (!is_of_the_cpu(argument)) continue;
    Tensor t = argument.toTensor();
    if (is_number(t)) {
      if (takes_numbers) continue;
      t = t.to(at::native::result_type({on_device, t}));
    }
    TORCH_CHECK(t.dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                on_device.device(), " and cpu!");
    argument = t.to(on_device.device());
  }
  call.proceed();
}

// ---- indices of two types

bool is_int32(const IValue& index) {
  return index.isTensor() && index.toTensor().scalar_type() == ScalarType::Int;
}

// self, indices. torch_xla concatenates the indices, whose types must be one for that; masks become
// indices of int64.
void indices_of_one_type(Call& call) {
  const auto& indices = call[1].toListRef();
  const auto int32 = std::count_if(indices.begin(), indices.end(), is_int32);
  if (int32 != 0 && int32 != std::count_if(indices.begin(), indices.end(), is_tensor)) {
    c10::List<std::optional<Tensor>> widened;
    for (const IValue& index : indices) {
      widened.push_back(is_int32(index) ? cast(index.toTensor(), ScalarType::Long)
                                        : index.toOptional<Tensor>());
    }
    call[1] = widened;
  }
  call.proceed();
}

// ---- registration

void install() {
  constexpr Kinds kNumbers = Kinds::kNumbers;
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, mend<promote_unless_highest>,
         "add.Tensor atan2 fmod.Tensor maximum minimum mse_loss pow.Tensor_Tensor sub.Tensor");
  remedy(xla, mend<promote_unless_highest, kNumbers>, "addcdiv addcmul");
  remedy(xla, mend<promote>,
         "clamp.Tensor clamp_max.Tensor clamp_min.Tensor mse_loss_backward remainder.Tensor "
         "where.self xlogy.Tensor");
  remedy(xla, mend<promote, kNumbers>, "smooth_l1_loss");
  remedy(xla, mend<promote_weight>, "lerp.Tensor");
  remedy(xla, send_numbers<true>,
         "atan2 clamp.Tensor clamp_max.Tensor clamp_min.Tensor lerp.Tensor where.self");
  remedy(xla, send_numbers<false>, "xlogy.Tensor");
  remedy(xla, mend<take_dtype_of_self, kNumbers>, "slice_scatter");
  remedy(xla, mend<refuse_all>, "_cdist_forward nll_loss2d_forward nll_loss_forward");
  remedy(xla, of_one_dtype<1>, "_softmax_backward_data triangular_solve");
  remedy(xla, of_one_dtype<2>, "masked_scatter put");
  remedy(xla, of_one_dtype<3>, "scatter.reduce scatter.src scatter_add scatter_reduce.two");
  remedy(xla, mend<product, kNumbers>, "addmm bmm dot mm mv");
  torch::Library& autograd = library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradXLA);
  remedy(autograd, mend<product, kNumbers>, "einsum", c10::DispatchKey::AutogradXLA);
  remedy(xla, mend<index_put>, "_index_put_impl_ index_put_");
  remedy(xla, indices_of_one_type, "index.Tensor index_put_ _index_put_impl_");
  remedy(xla, mend<convolution, kNumbers>, "convolution_overrideable");
  remedy(xla, mend<binary_cross_entropy>, "binary_cross_entropy");
  remedy(xla, mend<batch_norm>,
         "_native_batch_norm_legit _native_batch_norm_legit.no_stats native_batch_norm");
  remedy(xla, mend<batch_norm_backward>, "native_batch_norm_backward");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_mixed_operands_install)
