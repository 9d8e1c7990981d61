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
#include <torch/library.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "torch_xla/csrc/castoff/kernels.h"

namespace {

using at::ScalarType;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

// ---- operands

// The tensors whose dtypes take part: float ones, but no wrapped Python numbers. Of some operators
// torch_xla computes in the dtype of an integer that is the first factor; there they do, too.
enum class Kinds { kFloats, kNumbers };

bool takes_part(const Tensor& t, Kinds kinds) {
  return t.defined() && (kinds == Kinds::kNumbers || c10::isFloatingType(t.scalar_type())) &&
         !t.unsafeGetTensorImpl()->is_wrapped_number();
}

// einsum is met above functionalization; a fake tensor declares what it holds.
Tensor held(const Tensor& t) {
  namespace functional = at::functionalization::impl;
  const Tensor bare = functional::isFunctionalTensor(t) ? functional::from_functional_tensor(t) : t;
  return castoff::is_bare_xla(bare) ? castoff::held(bare) : bare;
}

Tensor cast(const Tensor& t, ScalarType dtype) {
  const Tensor source = held(t);
  if (source.scalar_type() == dtype) return t;
  return castoff::cast(source, dtype);
}

// The arguments of one call, in place on the stack.
class Call {
 public:
  Call(const OperatorHandle& op, Stack& stack, Kinds kinds)
      : arguments_(stack.end() - op.schema().arguments().size()),
        end_(stack.end()),
        kinds_(kinds) {}

  // All that most calls cost.
  bool declares_one_dtype() const {
    caffe2::TypeMeta first;
    bool one = true;
    each_operand([&](const Tensor& t) {
      if (first == caffe2::TypeMeta()) first = t.dtype();
      one &= first == t.dtype();
    });
    return one;
  }

  std::vector<Tensor> held_operands() const {
    std::vector<Tensor> operands;
    each_operand([&](const Tensor& t) { operands.push_back(held(t)); });
    return operands;
  }

  void cast_operands(ScalarType dtype) {
    for (auto argument = arguments_; argument != end_; ++argument) {
      if (argument->isTensor() && takes_part(argument->toTensor(), kinds_)) {
        *argument = cast(argument->toTensor(), dtype);
      }
    }
  }

  IValue& operator[](size_t index) const { return arguments_[index]; }

 private:
  template <class Visit>
  void each_operand(Visit&& visit) const {
    for (auto argument = arguments_; argument != end_; ++argument) {
      if (argument->isTensor()) {
        if (const Tensor& t = argument->toTensor(); takes_part(t, kinds_)) visit(t);
      } else if (argument->isTensorList()) {
        for (const Tensor& t : argument->toTensorList()) {
          if (takes_part(t, kinds_)) visit(t);
        }
      }
    }
  }

  Stack::iterator arguments_, end_;
  Kinds kinds_;
};

bool hold_one_dtype(const std::vector<Tensor>& held) {
  return std::all_of(held.begin(), held.end(), [&](const Tensor& t) {
    return t.scalar_type() == held.front().scalar_type();
  });
}

[[noreturn]] void refuse(const OperatorHandle& op, const std::vector<Tensor>& held) {
  std::vector<std::string> dtypes;
  for (const Tensor& t : held) {
    std::string dtype = c10::toString(t.scalar_type());
    if (std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) {
      dtypes.push_back(std::move(dtype));
    }
  }
  std::string found = dtypes.front();
  for (size_t i = 1; i < dtypes.size(); ++i) found += " and " + dtypes[i];
  TORCH_CHECK(false, op.schema().name(), ": expected operands of the same dtype, but got ", found,
              ". Convert all of them to one of these first.");
}

// ---- what to do with operands that hold different dtypes

struct MixedCall {
  const OperatorHandle& op;
  Call arguments;
  const std::vector<Tensor>& held;
  std::optional<ScalarType> result;  // what the first result is cast to
};

// Makes of the call what the kernel that was there serves, or refuses it.
using Remedy = void (*)(MixedCall&);

class Mixed final : public castoff::OverrideKernel {
 public:
  Mixed(const OperatorHandle& op, DispatchKey key, Remedy remedy, Kinds kinds)
      : OverrideKernel(op, key), remedy_(remedy), kinds_(kinds) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const Call arguments(op, *stack, kinds_);
    if (C10_LIKELY(arguments.declares_one_dtype())) return call_overridden(op, keys, stack);
    const std::vector<Tensor> held = arguments.held_operands();
    if (hold_one_dtype(held)) return call_overridden(op, keys, stack);
    MixedCall call{op, arguments, held, std::nullopt};
    remedy_(call);
    call_overridden(op, keys, stack);
    if (!call.result) return;
    IValue& result = *(stack->end() - op.schema().returns().size());
    if (result.toTensor().defined()) result = cast(result.toTensor(), *call.result);
  }

 private:
  const Remedy remedy_;
  const Kinds kinds_;
};

// XLA computes in the higher of two dtypes; bfloat16 is above float16, integers are below both.
bool is_below(const Tensor& a, const Tensor& b) {
  constexpr int64_t kFloat = 32;
  const auto height = [](const Tensor& t) {
    return 2 * t.element_size() + (t.scalar_type() == ScalarType::BFloat16) +
           (c10::isIntegralType(t.scalar_type(), /*includeBool=*/true) ? 0 : kFloat);
  };
  return height(a) < height(b);
}

// Computes in the dtype that torch promotes them to. Like torch's CPU kernels of these operators
// (and unlike those of mul and div, which torch_xla lowers well), it converts a 0-d operand too.
void promote(MixedCall& call) {
  call.arguments.cast_operands(at::native::result_type(call.held));
}

// The same of operators that torch_xla computes, truthfully, in the highest of the dtypes: there is
// something to do where torch's rules give another. Of bfloat16 and float16 together, not all of
// them know which is the higher.
void promote_unless_highest(MixedCall& call) {
  const auto highest = std::max_element(call.held.begin(), call.held.end(), is_below);
  const bool is_clear = std::all_of(call.held.begin(), call.held.end(), [&](const Tensor& t) {
    return t.scalar_type() == highest->scalar_type() ||
           (t.is_floating_point() && t.element_size() < highest->element_size());
  });
  if (!is_clear || highest->scalar_type() != at::native::result_type(call.held)) promote(call);
}

// lerp: a 0-d weight is converted; other dtypes are refused, by the kernel that was there.
void promote_weight(MixedCall& call) {
  const auto& held = call.held;
  const bool one_but_for_weight =
      held.size() == 3 && held[2].dim() == 0 && held[0].scalar_type() == held[1].scalar_type();
  if (one_but_for_weight) call.arguments[2] = cast(held[2], held[0].scalar_type());
}

// Writes src into self: src takes self's dtype.
void take_dtype_of_self(MixedCall& call) {
  call.arguments.cast_operands(call.held.front().scalar_type());
}

// Its graph would fail to compile.
void refuse_mixed(MixedCall& call) {
  refuse(call.op, call.held);
}

// torch_xla declares the dtype of the first factor, whatever that of the product is. The addend of
// addmm has passed matmul-out-dtype's check, or the product's.
void product(MixedCall& call) {
  if (is_below(call.held[call.held.size() - 2], call.held.back())) refuse(call.op, call.held);
}

// The sum with the bias declares the higher dtype, unless the convolution is a transposed one: that
// adds its bias within the one node, and takes one in float64 beside float32, as torch does.
void convolution(MixedCall& call) {
  constexpr size_t kTransposed = 6;
  const auto& held = call.held;
  const bool is_transposed = call.arguments[kTransposed].toBool();
  const auto is_float = [](const Tensor& t) { return t.scalar_type() == ScalarType::Float; };
  if (is_transposed && is_float(held[0]) && is_float(held[1])) {
    return call.arguments.cast_operands(ScalarType::Float);
  }
  if (!held[0].is_floating_point()) refuse(call.op, held);
  const bool bias_declares = held.size() == 3 && !is_transposed;
  const bool untrue = bias_declares
                          ? is_below(held[0], held[1]) && is_below(held[2], held[1])
                          : std::any_of(held.begin() + 1, held.end(),
                                        [&](const Tensor& t) { return is_below(held[0], t); });
  if (untrue) refuse(call.op, held);
}

// x[mask] = number: a 0-d value takes self's dtype.
void index_put(MixedCall& call) {
  constexpr size_t kIndices = 1, kValues = 2;
  const auto& held = call.held;
  const auto indices = call.arguments[kIndices].toOptionalTensorVector();
  const bool masked = std::any_of(indices.begin(), indices.end(), [](const auto& index) {
    return index.has_value() && index->defined() && index->scalar_type() == ScalarType::Bool;
  });
  if (masked && held[1].dim() == 0) {
    call.arguments[kValues] = cast(held[1], held[0].scalar_type());
  }
}

// Only the weight of the elements may have a dtype of its own.
void binary_cross_entropy(MixedCall& call) {
  const auto& held = call.held;
  if (held[0].scalar_type() != held[1].scalar_type()) refuse(call.op, {held[0], held[1]});
}

// An input in bfloat16 or float16 with parameters and statistics in float32 is computed in float32
// and returned in the input's dtype; nothing else goes together.
void batch_norm(MixedCall& call) {
  const auto& held = call.held;
  const bool float_parameters = std::all_of(held.begin() + 1, held.end(), [](const Tensor& t) {
    return t.scalar_type() == ScalarType::Float;
  });
  if (!castoff::is_half(held.front().scalar_type()) || !float_parameters) refuse(call.op, held);
  call.arguments[0] = cast(held.front(), ScalarType::Float);
  call.result = held.front().scalar_type();
}

// grad_out and input are reduced, the rest is float32: see batch_norm.
void batch_norm_backward(MixedCall& call) {
  call.result = call.arguments[1].toTensor().scalar_type();
  call.arguments.cast_operands(at::native::result_type(call.held));
}

// ---- numbers of the CPU

bool is_of_the_cpu(const IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().device().is_cpu();
}

bool is_number(const IValue& value) {
  return value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

// Sends tensors of the CPU that have no dimension to the device, and refuses others, as torch does
// beside tensors of a GPU. torch_xla's kernels of these operators refuse both, or their graph does
// not compile, or it is computed without: a bound of clamp. They take numbers of Python, but for
// xlogy's.
class SendNumbers final : public castoff::OverrideKernel {
 public:
  SendNumbers(const OperatorHandle& op, DispatchKey key, bool takes_numbers)
      : OverrideKernel(op, key), takes_numbers_(takes_numbers) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const auto first = stack->end() - op.schema().arguments().size();
    if (C10_UNLIKELY(std::any_of(first, stack->end(), is_of_the_cpu))) {
      const auto on_device = std::find_if(first, stack->end(), [](const IValue& value) {
        return value.isTensor() && value.toTensor().defined() && value.toTensor().is_xla();
      });
      const at::Device device = on_device->toTensor().device();
      for (auto argument = first; argument != stack->end(); ++argument) {
        if (!is_of_the_cpu(*argument)) continue;
        if (is_number(*argument)) {
          if (takes_numbers_) continue;
          const auto dtype = at::native::result_type({on_device->toTensor(), argument->toTensor()});
          *argument = argument->toTensor().to(dtype);
        }
        TORCH_CHECK(argument->toTensor().dim() == 0,
                    "Expected all tensors to be on the same device, but found at least two "
                    "devices, ",
                    device, " and cpu!");
        *argument = argument->toTensor().to(device);
      }
    }
    call_overridden(op, keys, stack);
  }

 private:
  const bool takes_numbers_;
};

// ---- indices of two types

bool is_int32(const IValue& index) {
  return index.isTensor() && index.toTensor().scalar_type() == ScalarType::Int;
}

// Indices and masks, which become indices of int64.
bool is_index(const IValue& index) {
  return index.isTensor() && index.toTensor().defined();
}

// self, indices. torch_xla concatenates the indices, whose types must be one for that.
class IndicesOfOneType final : public castoff::OverrideKernel {
 public:
  using OverrideKernel::OverrideKernel;

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    constexpr size_t kIndices = 1;
    IValue& argument = torch::jit::peek(*stack, kIndices, op.schema().arguments().size());
    const auto& indices = argument.toListRef();
    const auto int32 = std::count_if(indices.begin(), indices.end(), is_int32);
    if (int32 != 0 && int32 != std::count_if(indices.begin(), indices.end(), is_index)) {
      c10::List<std::optional<Tensor>> widened;
      for (const IValue& index : indices) {
        widened.push_back(is_int32(index) ? castoff::cast(index.toTensor(), ScalarType::Long)
                                          : index.toOptional<Tensor>());
      }
      argument = widened;
    }
    call_overridden(op, keys, stack);
  }
};

// ---- registration

void override_kernels(torch::Library& xla, Remedy remedy, const char* operators,
                      Kinds kinds = Kinds::kFloats) {
  castoff::each_operator(operators, [&](const char* name, const char* overload) {
    castoff::override_kernel<Mixed>(xla, DispatchKey::XLA, name, overload, remedy, kinds);
  });
}

void install() {
  const castoff::QuietOverride quiet;
  torch::Library& xla = castoff::library(torch::Library::IMPL, "aten", DispatchKey::XLA);
  override_kernels(xla, promote_unless_highest,
                   "add.Tensor atan2 fmod.Tensor maximum minimum mse_loss pow.Tensor_Tensor "
                   "sub.Tensor");
  override_kernels(xla, promote_unless_highest, "addcdiv addcmul", Kinds::kNumbers);
  override_kernels(xla, promote,
                   "clamp.Tensor clamp_max.Tensor clamp_min.Tensor mse_loss_backward "
                   "remainder.Tensor where.self xlogy.Tensor");
  override_kernels(xla, promote, "smooth_l1_loss", Kinds::kNumbers);
  override_kernels(xla, promote_weight, "lerp.Tensor");
  castoff::each_operator(
      "atan2 clamp.Tensor clamp_max.Tensor clamp_min.Tensor lerp.Tensor where.self",
      [&](const char* name, const char* overload) {
        castoff::override_kernel<SendNumbers>(xla, DispatchKey::XLA, name, overload, true);
      });
  castoff::override_kernel<SendNumbers>(xla, DispatchKey::XLA, "aten::xlogy", "Tensor", false);
  override_kernels(xla, take_dtype_of_self, "slice_scatter", Kinds::kNumbers);
  override_kernels(xla, refuse_mixed,
                   "_cdist_forward _softmax_backward_data masked_scatter nll_loss2d_forward "
                   "nll_loss_forward put scatter.reduce scatter.src scatter_add "
                   "scatter_reduce.two triangular_solve");
  override_kernels(xla, product, "addmm bmm dot mm mv", Kinds::kNumbers);
  torch::Library& autograd =
      castoff::library(torch::Library::IMPL, "aten", DispatchKey::AutogradXLA);
  castoff::override_kernel<Mixed>(autograd, DispatchKey::AutogradXLA, "aten::einsum", "", product,
                                  Kinds::kNumbers);
  override_kernels(xla, index_put, "_index_put_impl_ index_put_");
  castoff::each_operator(
      "index.Tensor index_put_ _index_put_impl_", [&](const char* name, const char* overload) {
        castoff::override_kernel<IndicesOfOneType>(xla, DispatchKey::XLA, name, overload);
      });
  override_kernels(xla, convolution, "convolution_overrideable", Kinds::kNumbers);
  override_kernels(xla, binary_cross_entropy, "binary_cross_entropy");
  override_kernels(xla, batch_norm,
                   "_native_batch_norm_legit _native_batch_norm_legit.no_stats native_batch_norm");
  override_kernels(xla, batch_norm_backward, "native_batch_norm_backward");
}

}  // namespace

// Puts the kernels in place; nullptr, or what went wrong. Call it once.
extern "C" __attribute__((visibility("default"))) const char* castoff_mixed_operands_install() {
  return castoff::put_in_place(install);
}
