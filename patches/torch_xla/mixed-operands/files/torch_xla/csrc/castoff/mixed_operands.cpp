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
#include <ATen/ops/_to_copy_ops.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
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

// The tensors whose dtypes take part: float ones, but no Python numbers in a tensor's clothes.
bool takes_part(const Tensor& t) {
  return t.defined() && c10::isFloatingType(t.scalar_type()) &&
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
  return at::_ops::_to_copy::call(source, dtype, std::nullopt, std::nullopt, std::nullopt,
                                  /*non_blocking=*/false, std::nullopt);
}

// The arguments of one call, in place on the stack.
class Call {
 public:
  Call(const OperatorHandle& op, Stack& stack)
      : arguments_(stack.end() - op.schema().arguments().size()), end_(stack.end()) {}

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
      if (argument->isTensor() && takes_part(argument->toTensor())) {
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
        if (const Tensor& t = argument->toTensor(); takes_part(t)) visit(t);
      } else if (argument->isTensorList()) {
        for (const Tensor& t : argument->toTensorList()) {
          if (takes_part(t)) visit(t);
        }
      }
    }
  }

  Stack::iterator arguments_, end_;
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

class Mixed : public castoff::Before {
 public:
  using Before::Before;
  virtual ~Mixed() = default;

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const Call call(op, *stack);
    if (C10_LIKELY(call.declares_one_dtype())) return previous(op, keys, stack);
    const std::vector<Tensor> held = call.held_operands();
    if (hold_one_dtype(held)) return previous(op, keys, stack);
    mixed(op, keys, stack, call, held);
  }

 protected:
  virtual void mixed(const OperatorHandle& op, DispatchKeySet keys, Stack* stack, Call call,
                     const std::vector<Tensor>& held) = 0;
};

// XLA computes in the higher of two dtypes; bfloat16 is above float16.
bool is_below(const Tensor& a, const Tensor& b) {
  const auto height = [](const Tensor& t) {
    return 2 * t.element_size() + (t.scalar_type() == ScalarType::BFloat16);
  };
  return height(a) < height(b);
}

// Computes in the dtype that torch promotes them to. Like torch's CPU kernels of these operators
// (and unlike those of mul and div, which torch_xla lowers well), it converts a 0-d operand too.
class Promote : public Mixed {
 public:
  using Mixed::Mixed;

 protected:
  void mixed(const OperatorHandle& op, DispatchKeySet keys, Stack* stack, Call call,
             const std::vector<Tensor>& held) override {
    call.cast_operands(at::native::result_type(held));
    previous(op, keys, stack);
  }
};

// The same of operators that torch_xla computes, truthfully, in the highest of the dtypes: there is
// something to do where torch's rules give another.
class PromoteUnlessHighest final : public Promote {
 public:
  using Promote::Promote;

 protected:
  void mixed(const OperatorHandle& op, DispatchKeySet keys, Stack* stack, Call call,
             const std::vector<Tensor>& held) override {
    const auto highest = std::max_element(held.begin(), held.end(), is_below);
    if (highest->scalar_type() == at::native::result_type(held)) return previous(op, keys, stack);
    Promote::mixed(op, keys, stack, call, held);
  }
};

// lerp: a 0-d weight is converted; other dtypes are refused, by the kernel that was there.
class PromoteWeight final : public Promote {
 public:
  using Promote::Promote;

 protected:
  void mixed(const OperatorHandle& op, DispatchKeySet keys, Stack* stack, Call call,
             const std::vector<Tensor>& held) override {
    const bool one_but_for_weight =
        held.size() == 3 && held[2].dim() == 0 && held[0].scalar_type() == held[1].scalar_type();
    if (!one_but_for_weight) return previous(op, keys, stack);
    call[2] = cast(held[2], held[0].scalar_type());
    previous(op, keys, stack);
  }
};

// Writes src into self: src takes self's dtype.
class TakeDtypeOfSelf final : public Mixed {
 public:
  using Mixed::Mixed;

 protected:
  void mixed(const OperatorHandle& op, DispatchKeySet keys, Stack* stack, Call call,
             const std::vector<Tensor>& held) override {
    call.cast_operands(held.front().scalar_type());
    previous(op, keys, stack);
  }
};

// Its graph would fail to compile.
class Refuse final : public Mixed {
 public:
  using Mixed::Mixed;

 protected:
  void mixed(const OperatorHandle& op, DispatchKeySet, Stack*, Call,
             const std::vector<Tensor>& held) override {
    refuse(op, held);
  }
};

// torch_xla declares the dtype of the first factor, whatever that of the product is. The addend of
// addmm has passed matmul-out-dtype's check, or the product's.
class Product final : public Mixed {
 public:
  using Mixed::Mixed;

 protected:
  void mixed(const OperatorHandle& op, DispatchKeySet keys, Stack* stack, Call,
             const std::vector<Tensor>& held) override {
    if (is_below(held[held.size() - 2], held.back())) refuse(op, held);
    previous(op, keys, stack);
  }
};

// The sum with the bias declares the higher dtype, unless the convolution is a transposed one: that
// adds its bias within the one node.
class Convolution final : public Mixed {
 public:
  using Mixed::Mixed;

 protected:
  void mixed(const OperatorHandle& op, DispatchKeySet keys, Stack* stack, Call call,
             const std::vector<Tensor>& held) override {
    constexpr size_t kTransposed = 6;
    const bool bias_declares = held.size() == 3 && !call[kTransposed].toBool();
    const bool untrue = bias_declares
                            ? is_below(held[0], held[1]) && is_below(held[2], held[1])
                            : std::any_of(held.begin() + 1, held.end(),
                                          [&](const Tensor& t) { return is_below(held[0], t); });
    if (untrue) refuse(op, held);
    previous(op, keys, stack);
  }
};

// x[mask] = number: a 0-d value takes self's dtype.
class IndexPut final : public Mixed {
 public:
  using Mixed::Mixed;

 protected:
  void mixed(const OperatorHandle& op, DispatchKeySet keys, Stack* stack, Call call,
             const std::vector<Tensor>& held) override {
    constexpr size_t kIndices = 1, kValues = 2;
    const auto indices = call[kIndices].toOptionalTensorVector();
    const bool masked = std::any_of(indices.begin(), indices.end(), [](const auto& index) {
      return index.has_value() && index->defined() && index->scalar_type() == ScalarType::Bool;
    });
    if (masked && held[1].dim() == 0) call[kValues] = cast(held[1], held[0].scalar_type());
    previous(op, keys, stack);
  }
};

// Only the weight of the elements may have a dtype of its own.
class BinaryCrossEntropy final : public Mixed {
 public:
  using Mixed::Mixed;

 protected:
  void mixed(const OperatorHandle& op, DispatchKeySet keys, Stack* stack, Call,
             const std::vector<Tensor>& held) override {
    if (held[0].scalar_type() != held[1].scalar_type()) refuse(op, {held[0], held[1]});
    previous(op, keys, stack);
  }
};

// ---- batch norm

bool is_reduced(const Tensor& t) {
  return t.scalar_type() == ScalarType::BFloat16 || t.scalar_type() == ScalarType::Half;
}

// An input in bfloat16 or float16 with parameters and statistics in float32 is computed in float32
// and returned in the input's dtype; nothing else goes together.
class BatchNorm final : public Mixed {
 public:
  using Mixed::Mixed;

 protected:
  void mixed(const OperatorHandle& op, DispatchKeySet keys, Stack* stack, Call call,
             const std::vector<Tensor>& held) override {
    const bool float_parameters = std::all_of(held.begin() + 1, held.end(), [](const Tensor& t) {
      return t.scalar_type() == ScalarType::Float;
    });
    if (!is_reduced(held.front()) || !float_parameters) refuse(op, held);
    call[0] = cast(held.front(), ScalarType::Float);
    previous(op, keys, stack);
    IValue& result = *(stack->end() - op.schema().returns().size());
    result = cast(result.toTensor(), held.front().scalar_type());
  }
};

// grad_out and input are reduced, the rest is float32: see BatchNorm.
class BatchNormBackward final : public Mixed {
 public:
  using Mixed::Mixed;

 protected:
  void mixed(const OperatorHandle& op, DispatchKeySet keys, Stack* stack, Call call,
             const std::vector<Tensor>& held) override {
    const ScalarType input = call[1].toTensor().scalar_type();
    call.cast_operands(at::native::result_type(held));
    previous(op, keys, stack);
    IValue& grad_input = *(stack->end() - op.schema().returns().size());
    if (grad_input.toTensor().defined()) grad_input = cast(grad_input.toTensor(), input);
  }
};

// ---- registration

struct Operator {
  const char* name;
  const char* overload;
};

template <class Kernel, size_t n>
void stand_before_all(torch::Library& xla, const std::array<Operator, n>& operators) {
  for (const Operator& op : operators) {
    castoff::stand_before<Kernel>(xla, DispatchKey::XLA, op.name, op.overload);
  }
}

void install() {
  const castoff::QuietOverride quiet;
  torch::Library& xla = castoff::library(torch::Library::IMPL, "aten", DispatchKey::XLA);
  stand_before_all<PromoteUnlessHighest>(xla, std::array{
                                                  Operator{"aten::add", "Tensor"},
                                                  Operator{"aten::addcdiv", ""},
                                                  Operator{"aten::addcmul", ""},
                                                  Operator{"aten::atan2", ""},
                                                  Operator{"aten::fmod", "Tensor"},
                                                  Operator{"aten::maximum", ""},
                                                  Operator{"aten::minimum", ""},
                                                  Operator{"aten::mse_loss", ""},
                                                  Operator{"aten::pow", "Tensor_Tensor"},
                                                  Operator{"aten::sub", "Tensor"},
                                              });
  stand_before_all<Promote>(xla, std::array{
                                     Operator{"aten::clamp", "Tensor"},
                                     Operator{"aten::clamp_max", "Tensor"},
                                     Operator{"aten::clamp_min", "Tensor"},
                                     Operator{"aten::mse_loss_backward", ""},
                                     Operator{"aten::remainder", "Tensor"},
                                     Operator{"aten::smooth_l1_loss", ""},
                                     Operator{"aten::where", "self"},
                                     Operator{"aten::xlogy", "Tensor"},
                                 });
  stand_before_all<PromoteWeight>(xla, std::array{Operator{"aten::lerp", "Tensor"}});
  stand_before_all<TakeDtypeOfSelf>(xla, std::array{Operator{"aten::slice_scatter", ""}});
  stand_before_all<Refuse>(xla, std::array{
                                    Operator{"aten::_cdist_forward", ""},
                                    Operator{"aten::masked_scatter", ""},
                                    Operator{"aten::nll_loss2d_forward", ""},
                                    Operator{"aten::nll_loss_forward", ""},
                                    Operator{"aten::scatter", "reduce"},
                                    Operator{"aten::scatter", "src"},
                                    Operator{"aten::scatter_add", ""},
                                    Operator{"aten::scatter_reduce", "two"},
                                });
  stand_before_all<Product>(xla, std::array{
                                     Operator{"aten::addmm", ""},
                                     Operator{"aten::bmm", ""},
                                     Operator{"aten::dot", ""},
                                     Operator{"aten::mm", ""},
                                     Operator{"aten::mv", ""},
                                 });
  torch::Library& autograd =
      castoff::library(torch::Library::IMPL, "aten", DispatchKey::AutogradXLA);
  castoff::stand_before<Product>(autograd, DispatchKey::AutogradXLA, "aten::einsum", "");
  stand_before_all<IndexPut>(xla, std::array{
                                      Operator{"aten::_index_put_impl_", ""},
                                      Operator{"aten::index_put_", ""},
                                  });
  stand_before_all<Convolution>(xla, std::array{Operator{"aten::convolution_overrideable", ""}});
  stand_before_all<BinaryCrossEntropy>(xla, std::array{Operator{"aten::binary_cross_entropy", ""}});
  stand_before_all<BatchNorm>(xla, std::array{
                                       Operator{"aten::_native_batch_norm_legit", ""},
                                       Operator{"aten::_native_batch_norm_legit", "no_stats"},
                                       Operator{"aten::native_batch_norm", ""},
                                   });
  stand_before_all<BatchNormBackward>(xla,
                                      std::array{Operator{"aten::native_batch_norm_backward", ""}});
}

}  // namespace

// Puts the kernels in place; nullptr, or what went wrong. Call it once.
extern "C" __attribute__((visibility("default"))) const char* castoff_mixed_operands_install() {
  return castoff::put_in_place(install);
}
