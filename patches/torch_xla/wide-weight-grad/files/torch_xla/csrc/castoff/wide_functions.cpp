// Every other operator with a wide operand: its gradient is that of the same operator on float32
// copies of the operands, with torch's own formula and its own nodes. What it returns is what it
// returned before; only the edge that its gradient takes leads to the nodes of that second call.
//
// A function of weights alone (abs(w), w * mask, B @ A, w[idx], stack(weights)) has a gradient that
// is wanted in float32, so it is wide itself, and so on, through any depth. Any other operator that
// takes a wide operand hands the gradient, as wide as it comes, to stock's nodes for its other
// operands and to those of the second call for the wide ones.
//
// The second call's values are read by nobody but the formulas that save them; what they do not
// save is never computed, for a lazy tensor that dies is not part of a graph.
//
// The kernels are put in place when a tensor of the process is first given a grad_dtype.
#include <torch_xla/csrc/castoff/kernels.h>
#include <torch_xla/csrc/castoff/wide_weight_grad.h>

#include <ATen/core/List.h>
#include <ATen/core/enum_tag.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace torch_xla::wide_weight_grad {

namespace generated = torch::autograd::generated;
namespace impl = torch::autograd::impl;
using c10::IValue;
using torch::jit::Stack;

namespace {

// Why castoff_grad_dtype_declare could not, or nullptr.
const char* (*declare_grad_dtype)(c10::TensorImpl*, int) = nullptr;

// Above this the walk below gives up: functions of weights alone are short.
constexpr size_t kMostNodes = 128;

bool takes_rows(const Node& node) {
  return typeid(node) == typeid(generated::IndexBackward0) ||
         typeid(node) == typeid(generated::IndexSelectBackward0) ||
         typeid(node) == typeid(generated::GatherBackward0) ||
         typeid(node) == typeid(generated::TakeBackward0);
}

// Where the gradient of a tensor goes.
struct Origin {
  explicit Origin(const Tensor& t) {
    std::unordered_set<Node*> seen;
    std::vector<Node*> left{impl::gradient_edge(t).function.get()};
    while (!left.empty() && is_of_weights) {
      Node* node = left.back();
      left.pop_back();
      if (node == nullptr || !seen.insert(node).second) continue;
      const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
      if (leaf != nullptr) leaves.push_back(&leaf->variable);
      // A user's Function may have declared what it wants; it is no function of torch's.
      is_of_weights = seen.size() <= kMostNodes && (leaf != nullptr || node->is_traceable());
      has_rows = has_rows || takes_rows(*node);
      for (const Edge& next : node->next_edges()) left.push_back(next.function.get());
    }
  }

  std::vector<const Tensor*> leaves;
  bool is_of_weights = true;  // through functions of torch's, and not many
  bool has_rows = false;      // w[idx] may be a function of the data as much as of the weight
};

// A float32 tensor that is computed from weights alone, as far as its size and its graph tell.
bool is_wide_function(const Tensor& t) {
  if (!t.defined() || !t.requires_grad() || t.is_leaf() || t.scalar_type() != ScalarType::Float) {
    return false;
  }
  const Origin origin(t);
  if (!origin.is_of_weights || origin.has_rows || origin.leaves.empty()) return false;
  c10::SymInt size = 0;
  for (const Tensor* leaf : origin.leaves) {
    if (leaf->scalar_type() != ScalarType::Float && !is_wide(*leaf)) return false;
    size += leaf->sym_numel();
  }
  return t.sym_numel() <= size;
}

// Calls `visit` with every tensor among `values`, and puts what it gives in its place.
template <class Visit>
void replace_tensors(at::ArrayRef<IValue> values, Stack& into, const Visit& visit) {
  for (const IValue& value : values) {
    if (value.isTensor()) {
      into.emplace_back(visit(value.toTensor()));
    } else if (value.isTensorList()) {
      std::vector<Tensor> tensors;
      for (const Tensor& t : value.toTensorVector()) tensors.push_back(visit(t));
      into.emplace_back(std::move(tensors));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> tensors;
      for (const std::optional<Tensor>& t : value.toOptionalTensorVector()) {
        tensors.push_back(t ? std::optional<Tensor>(visit(*t)) : std::nullopt);
      }
      into.emplace_back(std::move(tensors));
    } else {
      into.push_back(value);
    }
  }
}

template <class Visit>
void for_each_tensor(at::ArrayRef<IValue> values, const Visit& visit) {
  for (const IValue& value : values) {
    if (value.isTensor()) {
      visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const Tensor& t : value.toTensorVector()) visit(t);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<Tensor>& t : value.toOptionalTensorVector()) {
        if (t) visit(*t);
      }
    }
  }
}

// What the operands of a call are.
struct Operands {
  explicit Operands(at::ArrayRef<IValue> arguments) {
    for_each_tensor(arguments, [this](const Tensor& t) {
      if (!t.defined()) return;
      unusual |= t.is_nested() || t.is_sparse() || torch::autograd::isFwGradDefined(t);
      if (is_wide(t)) {
        const Origin origin(t);
        if (origin.is_of_weights) {
          wide.push_back(t);
          rows |= origin.has_rows;
          return;
        }
      }
      if (t.requires_grad()) {
        narrow_gradient = true;
      } else if (t.is_floating_point() && t.dim() > 0) {
        data = true;
      } else if (at::isIntegralType(t.scalar_type(), /*includeBool=*/false)) {
        index = true;
      }
    });
  }

  // Nothing here but weights, functions of weights alone and numbers.
  bool are_weights_alone() const { return !narrow_gradient && !data && !index && !rows; }
  bool have_shape_of(const Tensor& output) const {
    return std::any_of(wide.begin(), wide.end(),
                       [&](auto& t) { return t.sym_sizes().equals(output.sym_sizes()); });
  }

  std::vector<Tensor> wide;
  bool narrow_gradient = false;  // another one has a gradient too
  bool data = false;             // floating point, without a gradient: an input, or a mask
  bool index = false;
  bool rows = false;  // of a wide one, taken by an index
  bool unusual = false;
};

Tensor widened(const Tensor& t) {
  if (!t.defined() || !at::isReducedFloatingType(t.scalar_type())) {
    return t.defined() && t.requires_grad() ? t.detach() : t;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return to_float(t);
}

// `t` in float32, whose gradient goes where that of `t` goes.
Tensor stand_in(const Tensor& t) {
  if (t.scalar_type() == ScalarType::Float) return t;
  Tensor wide = widened(t);
  impl::set_gradient_edge(wide, impl::gradient_edge(t));
  return wide;
}

// A node that hands a gradient on to both.
Edge to_both(const Tensor& output, Edge narrow, Edge wide) {
  auto node = std::shared_ptr<generated::AddBackward0>(new generated::AddBackward0(),
                                                       torch::autograd::deleteNode);
  node->alpha = 1;
  node->self_scalar_type = node->other_scalar_type = output.scalar_type();
  node->set_next_edges({std::move(narrow), std::move(wide)});
  const auto number = node->add_input_metadata(output);
  return {std::move(node), number};
}

enum class Kind {
  kPlain,
  kContraction,  // a product: of data and weight there is a kernel of its own, as of no weights
  kHasKernel,    // likewise of whatever is not of weights alone
  kExact,        // stock hands on the gradient as it comes
};

class WideFunction final : public ::castoff::OverrideKernel {
 public:
  WideFunction(const c10::OperatorHandle& op, DispatchKey key, Kind kind, bool casts)
      : OverrideKernel(op, key), kind_(kind), casts_(casts) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) const {
    if (!in_use()) return call_overridden(op, keys, stack);
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    Operands operands(arguments);
    if (casts_ && narrows(op, arguments) && is_wide_function(arguments[0].toTensor())) {
      operands.wide = {arguments[0].toTensor()};
      operands.narrow_gradient = false;
    }
    if (operands.wide.empty() || operands.unusual || leaves_to_stock(op, operands, arguments)) {
      return call_overridden(op, keys, stack);
    }
    differentiate_twice(op, keys, stack, operands);
  }

 private:
  bool leaves_to_stock(const c10::OperatorHandle& op, const Operands& operands,
                       at::ArrayRef<IValue> arguments) const {
    if (casts_ && moves(op, arguments)) return true;
    switch (kind_) {
      case Kind::kContraction:
        return !operands.are_weights_alone();
      case Kind::kHasKernel:
        return operands.narrow_gradient;
      case Kind::kExact:
        return operands.narrow_gradient && !multiplies(op, arguments);
      default:
        return false;
    }
  }

  // Of add and sub: `alpha=2`, by which the gradient is multiplied.
  static bool multiplies(const c10::OperatorHandle& op, at::ArrayRef<IValue> arguments) {
    const auto at = op.schema().argumentIndexWithName("alpha");
    return at && !arguments[*at].toScalar().equal(1);
  }

  // Of _to_copy: to another device; from float32 to bfloat16 or float16.
  static bool moves(const c10::OperatorHandle& op, at::ArrayRef<IValue> arguments) {
    const IValue& device = arguments[*op.schema().argumentIndexWithName("device")];
    return device.isDevice() && device.toDevice().type() != arguments[0].toTensor().device().type();
  }
  static bool narrows(const c10::OperatorHandle& op, at::ArrayRef<IValue> arguments) {
    const IValue& dtype = arguments[*op.schema().argumentIndexWithName("dtype")];
    return dtype.isInt() && at::isReducedFloatingType(dtype.toScalarType());
  }

  // The call, as before, with nodes for operands that are not wide; the call in float32, with nodes
  // for those that are; and the edges of the one's outputs led to the other's.
  void differentiate_twice(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack,
                           const Operands& operands) const {
    const Stack arguments = torch::jit::pop(*stack, op.schema().arguments().size());
    const auto is_one_of_wide = [&](const Tensor& t) {
      return std::any_of(operands.wide.begin(), operands.wide.end(),
                         [&](auto& w) { return w.is_same(t); });
    };
    Stack outputs = arguments;
    if (operands.narrow_gradient) {
      call_overridden(op, keys, &outputs);
      if (!cut(operands, outputs)) return push(*stack, outputs);
    } else {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      op.redispatchBoxed(keys & c10::after_autograd_keyset, &outputs);
    }
    Stack wide_outputs;
    replace_tensors(arguments, wide_outputs,
                    [&](auto& t) { return is_one_of_wide(t) ? stand_in(t) : widened(t); });
    widen_dtypes(op, wide_outputs);
    if (has_floating_point(outputs)) {
      call_overridden(op, keys, &wide_outputs);
      lead_edges(operands, outputs, wide_outputs);
    }
    push(*stack, outputs);
  }

  static void push(Stack& stack, const Stack& outputs) {
    stack.insert(stack.end(), outputs.begin(), outputs.end());
  }

  // Takes the edges to wide operands from the node that stock has made. Whether it had any: stock
  // could have taken the operator apart.
  static bool cut(const Operands& operands, const Stack& outputs) {
    std::shared_ptr<Node> node;
    for_each_tensor(outputs, [&](auto& t) {
      if (t.defined() && !node) node = t.grad_fn();
    });
    bool had_any = false;
    for (size_t i = 0; node && i < node->num_outputs(); ++i) {
      const bool is_to_wide = std::any_of(operands.wide.begin(), operands.wide.end(), [&](auto& t) {
        return impl::gradient_edge(t) == node->next_edge(i);
      });
      if (is_to_wide) node->set_next_edge(i, Edge());
      had_any |= is_to_wide;
    }
    return had_any;
  }

  static bool has_floating_point(const Stack& outputs) {
    bool has = false;
    for_each_tensor(outputs, [&](auto& t) { has |= t.defined() && t.is_floating_point(); });
    return has;
  }

  // `dtype=torch.bfloat16` among the arguments becomes float32.
  static void widen_dtypes(const c10::OperatorHandle& op, Stack& arguments) {
    const auto at = op.schema().argumentIndexWithName("dtype");
    if (at && arguments[*at].isInt() && at::isReducedFloatingType(arguments[*at].toScalarType())) {
      arguments[*at] = IValue(ScalarType::Float);
    }
  }

  void lead_edges(const Operands& operands, const Stack& outputs, const Stack& wide_outputs) const {
    std::vector<Tensor> wide;
    for_each_tensor(wide_outputs, [&](auto& t) { wide.push_back(t); });
    size_t next = 0;
    for_each_tensor(outputs, [&](const Tensor& output) {
      const Tensor& of_wide = wide[next++];
      if (!output.defined() || !of_wide.defined() || !of_wide.requires_grad()) return;
      const bool weights =
          !operands.narrow_gradient && (!operands.data || operands.have_shape_of(output)) &&
          declare_grad_dtype(of_wide.unsafeGetTensorImpl(), static_cast<int>(ScalarType::Float)) ==
              nullptr;
      Edge edge = impl::gradient_edge(of_wide);
      if (!weights) {
        Edge narrow = output.requires_grad() ? impl::gradient_edge(output) : Edge();
        edge = to_both(output, std::move(narrow), std::move(edge));
      }
      impl::set_gradient_edge(output, std::move(edge));
    });
  }

  const Kind kind_;
  const bool casts_;
};

// ---- which operators

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool starts_with(std::string_view name, std::string_view with) {
  return name.substr(0, with.size()) == with;
}

bool is_of_tensors(const c10::Argument& argument) {
  const auto& type = *argument.type();
  return type.isSubtypeOf(*c10::TensorType::get()) || type.isSubtypeOf(*c10::ListType::ofTensors());
}

// Operators that torch differentiates, that give new tensors, and the same ones each time.
bool can_be_called_twice(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto has_alias = [](const c10::Argument& a) { return a.alias_info() != nullptr; };
  const auto &arguments = schema.arguments(), &returns = schema.returns();
  // On XLA a composite operator is taken apart, unless there is a kernel for it.
  const bool is_composite = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
                            !op.hasKernelForDispatchKey(DispatchKey::XLA);
  return op.hasKernelForDispatchKey(DispatchKey::Autograd) && !is_composite &&
         !op.hasTag(at::Tag::nondeterministic_seeded) && !returns.empty() &&
         std::all_of(returns.begin(), returns.end(), is_of_tensors) &&
         std::none_of(arguments.begin(), arguments.end(), has_alias) &&
         std::none_of(returns.begin(), returns.end(), has_alias);
}

bool is_left_out(std::string_view name) {
  const bool makes =
      starts_with(name, "new_") || (name.size() > 5 && name.substr(name.size() - 5) == "_like");
  return makes || starts_with(name, "_foreach_") || starts_with(name, "_fused_") ||
         // with kernels of their own
         is_one_of(name, {"convolution", "convolution_overrideable", "einsum", "embedding",
                          "native_batch_norm"});
}

Kind kind_of(std::string_view name, std::string_view overload) {
  if (overload.empty() && is_one_of(name, {"mm", "bmm", "mv", "addmm", "baddbmm", "dot", "vdot"})) {
    return Kind::kContraction;
  }
  if (is_one_of(name, {"mul", "addcmul"})) return Kind::kHasKernel;
  if (is_one_of(name, {"add", "sub", "cat", "stack", "where", "slice_scatter", "select_scatter"})) {
    return Kind::kExact;
  }
  return Kind::kPlain;
}

void install_functions() {
  const ::castoff::QuietOverride quiet;
  torch::Library& library =
      ::castoff::library(torch::Library::IMPL, "aten", DispatchKey::AutogradXLA);
  constexpr std::string_view aten = "aten::";
  for (const auto& full : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!starts_with(full.name, aten)) continue;
    const auto name = std::string_view(full.name).substr(aten.size());
    const auto op = c10::Dispatcher::singleton().findSchema(full);
    if (!op || is_left_out(name) || !can_be_called_twice(*op)) continue;
    const Kind kind = kind_of(name, full.overload_name);
    const bool is_ours = kind == Kind::kContraction || kind == Kind::kHasKernel;
    // What torch_xla differentiates itself, native_layer_norm and others, it takes apart; products
    // with out_dtype= are those of the topic matmul-out-dtype.
    if (!is_ours && op->hasKernelForDispatchKey(DispatchKey::AutogradXLA)) continue;
    ::castoff::override_kernel<WideFunction>(library, DispatchKey::AutogradXLA, full.name.c_str(),
                                             full.overload_name.c_str(), kind, name == "_to_copy");
  }
}

}  // namespace

bool are_weights_alone(at::TensorList tensors) {
  return Operands(IValue(tensors)).are_weights_alone();
}

}  // namespace torch_xla::wide_weight_grad

// Puts the kernels in place; nullptr, or what went wrong. Call it once, after
// castoff_wide_weight_grad_install, with what torch's topic grad-dtype exports.
extern "C" __attribute__((visibility("default"))) const char*
castoff_wide_weight_grad_install_functions(const char* (*declare)(c10::TensorImpl*, int)) {
  return castoff::put_in_place([&] {
    torch_xla::wide_weight_grad::declare_grad_dtype = declare;
    torch_xla::wide_weight_grad::install_functions();
  });
}
