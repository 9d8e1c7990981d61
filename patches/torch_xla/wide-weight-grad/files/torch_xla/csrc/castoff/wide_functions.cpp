// Functions of weights alone: w.float(), w[idx], stack(weights), w * mask, abs(w). Their gradient
// is wanted in float32, as that of the weight is, so that whatever takes them makes it so, through
// any depth.
//
// An operator that moves elements, or whose formula takes a gradient of any dtype, keeps the node
// that torch makes; the node's output declares what it takes. Casts, index, division, weight_norm,
// prelu, tanh, sigmoid, silu, softplus and softmax, whose formulas are bound to a dtype or round on
// the way, get nodes of their own.
// Values of the forward pass stay as they are. Operators that are not here make the gradient in the
// weight's dtype, and are reported.
//
// The kernels are put in place when a tensor of the process is first given a grad_dtype.
#include <torch_xla/csrc/castoff/kernels.h>
#include <torch_xla/csrc/castoff/wide_weight_grad.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/List.h>
#include <ATen/ops/_prelu_kernel_backward_ops.h>
#include <ATen/ops/_prelu_kernel_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/_weight_norm_interface_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/index_put_ops.h>
#include <ATen/ops/index_select_backward_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/softplus_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <torch/csrc/autograd/variable.h>

#include <string_view>
#include <tuple>
#include <vector>

namespace torch_xla::wide_weight_grad {
namespace {

using c10::IValue;
using torch::jit::Stack;

// ---- operators that keep torch's node

Weights weights_among(at::ArrayRef<IValue> arguments) {
  Weights weights;
  for (const IValue& argument : arguments) {
    if (argument.isTensor()) {
      weights.add(argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const Tensor& t : argument.toTensorVector()) weights.add(t);
    }
  }
  return weights;
}

class HandsOn final : public ::castoff::OverrideKernel {
 public:
  using OverrideKernel::OverrideKernel;

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) const {
    if (!in_use()) return call_overridden(op, keys, stack);
    const Weights weights = weights_among(torch::jit::last(*stack, op.schema().arguments().size()));
    call_overridden(op, keys, stack);
    if (weights.any()) hand_on(stack->back().toTensor(), weights);
  }
};

// Of copies that are larger than what they are made of.
class Repeats final : public ::castoff::OverrideKernel {
 public:
  using OverrideKernel::OverrideKernel;

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) const {
    if (!in_use()) return call_overridden(op, keys, stack);
    const Weights weights = weights_among(torch::jit::last(*stack, op.schema().arguments().size()));
    call_overridden(op, keys, stack);
    if (weights.any() && weights.alone) declare_wide(stack->back().toTensor());
  }
};

// ---- casts

// Between floating point dtypes. What arrives is handed on as it is.
class WideCast final : public Formula {
 public:
  std::string name() const override { return "WideToCopyBackward0"; }
  void differentiate(const Tensor& grad, const variable_list& /*saved*/, const Wants& wants,
                     variable_list& results) const override {
    if (wants.any[0]) results[0] = grad;
  }
  std::vector<IValue> constants() const override { return {}; }
};

bool takes_rows(const std::string& node) {
  return node.find("Index") != std::string::npos || node.find("Gather") != std::string::npos ||
         node.find("Embedding") != std::string::npos;
}

// Whether a float32 tensor is computed from one weight that was cast, as far as a short walk tells.
bool is_of_cast_weight(const Tensor& t) {
  constexpr int kMostNodes = 16;
  const Node* node = t.grad_fn().get();
  for (int i = 0; node != nullptr && i < kMostNodes; ++i) {
    const Edge* only = nullptr;
    for (const Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      if (only != nullptr) return false;
      only = &edge;
    }
    if (only == nullptr) return false;
    const auto name = node->name();
    if (name == "WideToCopyBackward0") {
      const auto& recorded = only->function->input_metadata(only->input_nr);
      const auto sizes = recorded.shape_as_dim_vector();
      c10::SymInt size = 1;
      for (const auto& dim : sizes) size *= dim;
      return is_wide(*only, c10::typeMetaToScalarType(recorded.dtype())) && t.sym_numel() <= size;
    }
    if (takes_rows(name)) return false;
    node = only->function.get();
  }
  return false;
}

bool widens(const Tensor& self, std::optional<ScalarType> dtype) {
  return dtype && (*dtype == ScalarType::Float || *dtype == ScalarType::Double) && is_wide(self);
}

bool narrows(const Tensor& self, std::optional<ScalarType> dtype) {
  return dtype && at::isReducedFloatingType(*dtype) && self.scalar_type() == ScalarType::Float &&
         self.requires_grad() && !self.is_leaf();
}

Tensor to_copy(DispatchKeySet keys, const Tensor& self, std::optional<ScalarType> dtype,
               std::optional<at::Layout> layout, std::optional<at::Device> device,
               std::optional<bool> pin_memory, bool non_blocking,
               std::optional<at::MemoryFormat> memory_format) {
  using Op = at::_ops::_to_copy;
  const auto stock = [&] {
    return Overridden<Op>::call(keys, self, dtype, layout, device, pin_memory, non_blocking,
                                memory_format);
  };
  const bool stays = !device || device->type() == self.device().type();
  if (!in_use() || !stays || has_forward_gradient(self)) return stock();
  if (narrows(self, dtype)) {
    const bool of_weight = is_of_cast_weight(self);
    const Tensor result = stock();
    if (of_weight) declare_wide(result);
    return result;
  }
  if (!widens(self, dtype)) return stock();
  return record(make_node(std::make_shared<const WideCast>(), self), [&] {
    return Op::redispatch(keys & c10::after_autograd_keyset, self, dtype, layout, device,
                          pin_memory, non_blocking, memory_format);
  });
}

// ---- index

// Rows that are vectors are taken for activations, as those of an embedding, whose gradients are
// bfloat16 and are added up in float32. Those of more dimensions are weights: of experts.
bool are_weights(const Tensor& self, int64_t indexed) {
  return self.dim() - indexed >= 2;
}

using Sizes = std::vector<c10::SymInt>;

std::vector<IValue> constants_of(const Sizes& sizes) {
  std::vector<int64_t> ints;
  for (const auto& size : sizes) ints.push_back(size.guard_int(__FILE__, __LINE__));
  return {IValue(std::move(ints))};
}

// Saves the indices, undefined ones in their places.
class WideIndex final : public Formula {
 public:
  std::string name() const override { return "WideIndexBackward0"; }

  Sizes sizes;

  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    if (!wants.any[0]) return;
    c10::List<std::optional<Tensor>> indices;
    for (const Tensor& index : saved) {
      indices.push_back(index.defined() ? std::optional<Tensor>(index) : std::nullopt);
    }
    const Tensor wide = to_float(grad);
    results[0] =
        at::_ops::index_put::call(wide.new_zeros_symint(sizes), indices, wide, /*accumulate=*/true);
  }
  std::vector<IValue> constants() const override { return constants_of(sizes); }
};

Tensor index(DispatchKeySet keys, const Tensor& self,
             const c10::List<std::optional<Tensor>>& indices) {
  using Op = at::_ops::index_Tensor;
  if (!in_use() || !is_wide(self) || has_forward_gradient(self)) {
    return Overridden<Op>::call(keys, self, indices);
  }
  auto formula = std::make_shared<WideIndex>();
  formula->sizes = self.sym_sizes().vec();
  const auto node = make_node(std::move(formula), self);
  int64_t indexed = 0;
  for (const std::optional<Tensor> index : indices) {
    const bool is_there = index && index->defined();
    const bool is_mask = is_there && !at::isIntegralType(index->scalar_type(), false);
    indexed += is_there ? (is_mask ? index->dim() : 1) : 0;
    node->save(index, is_there);
  }
  const Tensor result = record(
      node, [&] { return Op::redispatch(keys & c10::after_autograd_keyset, self, indices); });
  if (are_weights(self, indexed)) declare_wide(result);
  return result;
}

// Saves the index.
class WideIndexSelect final : public Formula {
 public:
  std::string name() const override { return "WideIndexSelectBackward0"; }

  Sizes sizes;
  int64_t dim = 0;

  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    if (!wants.any[0]) return;
    results[0] = at::_ops::index_select_backward::call(to_float(grad), sizes, dim, saved[0]);
  }
  std::vector<IValue> constants() const override {
    auto values = constants_of(sizes);
    values.emplace_back(dim);
    return values;
  }
};

Tensor index_select(DispatchKeySet keys, const Tensor& self, int64_t dim, const Tensor& index) {
  using Op = at::_ops::index_select;
  if (!in_use() || !is_wide(self) || has_forward_gradient(self)) {
    return Overridden<Op>::call(keys, self, dim, index);
  }
  auto formula = std::make_shared<WideIndexSelect>();
  formula->sizes = self.sym_sizes().vec();
  formula->dim = dim;
  const auto node = make_node(std::move(formula), self);
  node->save(index);
  const Tensor result = record(
      node, [&] { return Op::redispatch(keys & c10::after_autograd_keyset, self, dim, index); });
  if (are_weights(self, 1)) declare_wide(result);
  return result;
}

// ---- division

// Saves dividend and divisor.
class WideDiv final : public Formula {
 public:
  std::string name() const override { return "WideDivBackward0"; }

  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    const Tensor &dividend = saved[0], &divisor = saved[1];
    if (wants.any[0]) results[0] = (wants.wide[0] ? to_float(grad) : grad).div(divisor);
    if (wants.any[1]) {
      const auto of = [&](const Tensor& t) { return wants.wide[1] ? to_float(t) : t; };
      results[1] = of(grad).neg().mul(of(dividend).div(of(divisor)).div(of(divisor)));
    }
  }
  std::vector<IValue> constants() const override { return {}; }
};

Tensor div(DispatchKeySet keys, const Tensor& self, const Tensor& other) {
  using Op = at::_ops::div_Tensor;
  if (!in_use()) return Overridden<Op>::call(keys, self, other);
  const Weights weights(self, other);
  if (!weights.any() || self.is_complex() || other.is_complex() ||
      has_forward_gradient(self, other)) {
    return Overridden<Op>::call(keys, self, other);
  }
  const auto node = make_node(std::make_shared<const WideDiv>(), self, other);
  node->save(self, node->should_compute_output(1));
  node->save(other);
  const Tensor result =
      record(node, [&] { return Op::redispatch(keys & c10::after_autograd_keyset, self, other); });
  hand_on(result, weights);
  return result;
}

// ---- gates and re-parametrisations: functions of one tensor

// Each has the operator, the node's name, whether the derivative is taken at the result, and the
// product of it and a float32 gradient.

struct Tanh {
  using Op = at::_ops::tanh;
  static constexpr auto kName = "WideTanhBackward0";
  static constexpr bool kAtResult = true;
  static Tensor gradient(const Tensor& grad, const Tensor& y) { return grad.mul(1 - y * y); }
};

struct Sigmoid {
  using Op = at::_ops::sigmoid;
  static constexpr auto kName = "WideSigmoidBackward0";
  static constexpr bool kAtResult = true;
  static Tensor gradient(const Tensor& grad, const Tensor& y) { return grad.mul(y * (1 - y)); }
};

struct Silu {
  using Op = at::_ops::silu;
  static constexpr auto kName = "WideSiluBackward0";
  static constexpr bool kAtResult = false;
  static Tensor gradient(const Tensor& grad, const Tensor& x) {
    const Tensor sigmoid = x.sigmoid();
    return grad.mul(sigmoid * (1 + x * (1 - sigmoid)));
  }
};

struct Softplus {
  using Op = at::_ops::softplus;
  static constexpr auto kName = "WideSoftplusBackward0";
  static constexpr bool kAtResult = false;
  static Tensor gradient(const Tensor& grad, const Tensor& x, const at::Scalar& beta,
                         const at::Scalar& threshold) {
    const Tensor scaled = x * beta;
    return grad.where(scaled > threshold, grad * scaled.sigmoid());
  }
};

struct Softmax {
  using Op = at::_ops::_softmax;
  static constexpr auto kName = "WideSoftmaxBackward0";
  static constexpr bool kAtResult = true;
  static Tensor gradient(const Tensor& grad, const Tensor& y, int64_t dim, bool /*to_float*/) {
    const Tensor weighted = grad * y;
    return weighted - y * weighted.sum(dim, /*keepdim=*/true);
  }
};

// Saves the tensor at which the derivative is taken.
template <class Function, class... Arguments>
class WideFunction final : public Formula {
 public:
  explicit WideFunction(const Arguments&... arguments) : arguments_(arguments...) {}

  std::string name() const override { return Function::kName; }
  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    if (!wants.any[0]) return;
    results[0] = std::apply(
        [&](const auto&... arguments) {
          return Function::gradient(to_float(grad), to_float(saved[0]), arguments...);
        },
        arguments_);
  }
  std::vector<IValue> constants() const override {
    return std::apply(
        [](const auto&... arguments) { return std::vector<IValue>{IValue(arguments)...}; },
        arguments_);
  }

 private:
  const std::tuple<Arguments...> arguments_;
};

template <class Function, class... Arguments>
Tensor function(DispatchKeySet keys, const Tensor& self, Arguments... arguments) {
  using Op = typename Function::Op;
  if (!in_use() || !is_wide(self) || has_forward_gradient(self)) {
    return Overridden<Op>::call(keys, self, arguments...);
  }
  using Wide = WideFunction<Function, std::decay_t<Arguments>...>;
  const auto node = make_node(std::make_shared<const Wide>(arguments...), self);
  if (!Function::kAtResult) node->save(self);
  const Tensor result = record(
      node, [&] { return Op::redispatch(keys & c10::after_autograd_keyset, self, arguments...); });
  if (Function::kAtResult) node->save(result, /*is_needed=*/true, /*is_output=*/true);
  declare_wide(result);
  return result;
}

// ---- weight_norm, prelu

// v * g / |v|, the norm over all dimensions but one. Saves v and g.
class WideWeightNorm final : public Formula {
 public:
  std::string name() const override { return "WideWeightNormInterfaceBackward0"; }

  int64_t dim = 0;

  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    const Tensor v = to_float(saved[0]), g = to_float(saved[1]), wide = to_float(grad);
    std::vector<int64_t> others;
    for (int64_t i = 0; i < v.dim(); ++i) {
      if (i != dim) others.push_back(i);
    }
    const Tensor norm = v.mul(v).sum(others, /*keepdim=*/true).sqrt();
    const Tensor of_g = wide.mul(v).sum(others, /*keepdim=*/true).div(norm);
    if (wants.any[0]) results[0] = wide.sub(v.mul(of_g.div(norm))).mul(g.div(norm));
    if (wants.any[1]) results[1] = of_g;
  }
  std::vector<IValue> constants() const override { return {dim}; }
};

std::tuple<Tensor, Tensor> weight_norm(DispatchKeySet keys, const Tensor& v, const Tensor& g,
                                       int64_t dim) {
  using Op = at::_ops::_weight_norm_interface;
  if (!in_use()) return Overridden<Op>::call(keys, v, g, dim);
  const Weights weights(v, g);
  if (!weights.any() || has_forward_gradient(v, g)) return Overridden<Op>::call(keys, v, g, dim);
  auto formula = std::make_shared<WideWeightNorm>();
  formula->dim = dim < 0 ? dim + v.dim() : dim;
  const auto node = make_node(std::move(formula), v, g);
  node->save(v);
  node->save(g);
  auto results = [&] {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return Op::redispatch(keys & c10::after_autograd_keyset, v, g, dim);
  }();
  torch::autograd::set_history(std::get<0>(results), node);  // the norms have no gradient
  node->remember_dtype();
  hand_on(std::get<0>(results), weights);
  return results;
}

// Saves input and weight.
class WidePrelu final : public Formula {
 public:
  std::string name() const override { return "WidePreluKernelBackward0"; }

  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    const Tensor &input = saved[0], &weight = saved[1];
    if (wants.any[0] || !wants.wide[1]) {
      std::tie(results[0], results[1]) =
          at::_ops::_prelu_kernel_backward::call(grad, input, weight);
    }
    if (wants.wide[1]) results[1] = to_float(grad).mul(input).masked_fill(input.gt(0), 0);
  }
  std::vector<IValue> constants() const override { return {}; }
};

Tensor prelu(DispatchKeySet keys, const Tensor& self, const Tensor& weight) {
  using Op = at::_ops::_prelu_kernel;
  if (!in_use() || !is_wide(weight) || has_forward_gradient(self, weight)) {
    return Overridden<Op>::call(keys, self, weight);
  }
  const auto node = make_node(std::make_shared<const WidePrelu>(), self, weight);
  node->save(self);
  node->save(weight);
  return record(node,
                [&] { return Op::redispatch(keys & c10::after_autograd_keyset, self, weight); });
}

// "name" or "name.overload"
template <class Kernel>
void put(torch::Library& library, std::initializer_list<const char*> operators) {
  for (const std::string_view full : operators) {
    const auto dot = full.find('.');
    const std::string name = "aten::" + std::string(full.substr(0, dot));
    const std::string overload(dot == full.npos ? "" : full.substr(dot + 1));
    ::castoff::override_kernel<Kernel>(library, DispatchKey::AutogradXLA, name.c_str(),
                                       overload.c_str());
  }
}

}  // namespace

void register_functions(torch::Library& library) {
  override_kernel<at::_ops::_to_copy>(library, TORCH_FN(to_copy));
  override_kernel<at::_ops::index_Tensor>(library, TORCH_FN(index));
  override_kernel<at::_ops::index_select>(library, TORCH_FN(index_select));
  override_kernel<at::_ops::div_Tensor>(library, TORCH_FN(div));
  override_kernel<at::_ops::_weight_norm_interface>(library, TORCH_FN(weight_norm));
  override_kernel<at::_ops::_prelu_kernel>(library, TORCH_FN(prelu));
  override_kernel<Tanh::Op>(library, TORCH_FN(function<Tanh>));
  override_kernel<Sigmoid::Op>(library, TORCH_FN(function<Sigmoid>));
  override_kernel<Silu::Op>(library, TORCH_FN(function<Silu>));
  override_kernel<Softplus::Op>(
      library, TORCH_FN((function<Softplus, const at::Scalar&, const at::Scalar&>)));
  override_kernel<Softmax::Op>(library, TORCH_FN((function<Softmax, int64_t, bool>)));
  put<HandsOn>(library, {"abs",
                         "add.Tensor",
                         "cat",
                         "clamp",
                         "clamp_min",
                         "clone",
                         "exp",
                         "flip",
                         "gather",
                         "linalg_vector_norm",
                         "log",
                         "masked_fill.Scalar",
                         "mean",
                         "mean.dim",
                         "neg",
                         "norm.Scalar",
                         "norm.ScalarOpt_dim",
                         "pow.Tensor_Scalar",
                         "relu",
                         "roll",
                         "rsqrt",
                         "rsub.Scalar",
                         "sqrt",
                         "stack",
                         "sub.Tensor",
                         "sum",
                         "sum.dim_IntList",
                         "tril",
                         "triu",
                         "where.self"});
  put<Repeats>(library, {"constant_pad_nd", "repeat"});
}

}  // namespace torch_xla::wide_weight_grad
