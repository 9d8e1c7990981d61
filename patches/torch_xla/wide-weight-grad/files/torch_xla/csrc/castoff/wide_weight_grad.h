#pragma once

// Gradients of weights that are wider than the weight, straight from operators that accumulate in
// float32: what the kernels of this topic share.
//
// An operand is wide if its gradient goes, through views only, to a leaf whose grad_dtype is wider
// than the operand. The engine (torch's topic grad-dtype) then takes that gradient as it comes. So
// the kernels here, above those of torch and torch_xla on AutogradXLA, give an operator that has a
// wide operand a node of their own; every other call goes to the kernel that they override.
//
// A node asks again when its gradient arrives, as the engine does: whoever hooks into a view after
// the forward pass, or changes the grad_dtype, gets the gradient that stock would give.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/castoff/torch_version.h>
#include <torch/library.h>
#include <torch_xla/csrc/castoff/kernels.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch_xla::wide_weight_grad {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::ScalarType;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// ---- who wants a wide gradient

// What torch's topic grad-dtype answers with. Set once, before the first kernel is registered.
struct GradDtypes {
  const std::atomic<int64_t>* tensors_in_use;
  int (*over_edge)(const Edge*);
  const char* (*declare)(c10::TensorImpl*, int);
};
extern GradDtypes grad_dtypes;

// All that a call costs while no tensor has a grad_dtype.
inline bool in_use() {
  return C10_UNLIKELY(grad_dtypes.tensors_in_use->load(std::memory_order_relaxed) != 0) &&
         at::GradMode::is_enabled();
}

// Whether the gradient over `edge`, of a tensor of dtype `narrow`, is wanted in float32 or wider.
bool is_wide(const Edge& edge, ScalarType narrow);
bool is_wide(const Tensor& operand);
inline bool is_wide(const std::optional<Tensor>& operand) {
  return operand && is_wide(*operand);
}

// The nodes here have no forward mode.
template <class... Operands>
bool has_forward_gradient(const Operands&... operands) {
  return (torch::autograd::isFwGradDefined(operands) || ...);
}

// What the kernels of functions of weights know about the operands of a call.
struct Weights {
  template <class... Operands>
  explicit Weights(const Operands&... operands) {
    (add(operands), ...);
  }
  void add(const Tensor& operand) {
    if (is_wide(operand)) {
      wide.push_back(operand);
    } else {
      alone &= !operand.defined() || !operand.requires_grad();
    }
  }
  bool any() const { return !wide.empty(); }

  c10::SmallVector<Tensor, 2> wide;
  bool alone = true;  // no other operand has a gradient
};

// Lets the gradient of `output`, fresh from its operator, be float32 too if it is a function of
// weights alone (abs(w), w * mask, B @ A): no other operand has a gradient, and it is no larger
// than the weights are, as what is made of an input would be.
void hand_on(const Tensor& output, const Weights& weights);
// The same where that is known.
void declare_wide(const Tensor& output);

// ---- nodes

// Which of its gradients a node has to make, and which of these in float32.
struct Wants {
  std::vector<bool> any;
  std::vector<bool> wide;
};

// How an operator is differentiated: its arguments that are no tensors. Never changed once a node
// has it, so a graph that compiled autograd has made of the node may keep it.
class Formula {
 public:
  Formula() = default;
  Formula(const Formula&) = delete;
  Formula& operator=(const Formula&) = delete;
  virtual ~Formula() = default;

  virtual std::string name() const = 0;
  // Puts the gradients that are wanted into `results`. `saved` is what WideNode::save was given,
  // in that order.
  virtual void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                             variable_list& results) const = 0;
  // The members, for the key of compiled autograd's cache.
  virtual std::vector<c10::IValue> constants() const = 0;
};

#if CASTOFF_TORCH_AT_LEAST(2, 7)
#define CASTOFF_COMPILED_ARGS_CONST const
#else
#define CASTOFF_COMPILED_ARGS_CONST
#endif

// Locks and frees what it saved as the nodes that torch generates do.
class WideNode final : public Node {
 public:
  WideNode(std::shared_ptr<const Formula> formula, torch::autograd::edge_list&& edges)
      : Node(std::move(edges)), formula_(std::move(formula)) {}

  std::string name() const override { return formula_->name(); }
  variable_list apply(variable_list&& grads) override;
  void release_variables() override;
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args)
      CASTOFF_COMPILED_ARGS_CONST override;
  variable_list apply_with_saved(const variable_list& grads,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override;

  // Saves `t`; an undefined tensor, unless `is_needed`, holds its place.
  void save(const std::optional<Tensor>& t, bool is_needed = true, bool is_output = false) {
    saved_.push_back(is_needed ? SavedVariable(t, is_output) : SavedVariable());
  }
  // To be called when the output is known, and before declare_wide.
  void remember_dtype() { narrow_ = c10::typeMetaToScalarType(input_metadata(0).dtype()); }
  // Saves two factors that are operands `first` and the one after it, each for the other's
  // gradient.
  void save_factors(size_t first, const Tensor& lhs, const Tensor& rhs) {
    save(lhs, should_compute_output(first + 1));
    save(rhs, should_compute_output(first));
  }

 private:
  Wants wants() const;
  variable_list unpack();

  const std::shared_ptr<const Formula> formula_;
  std::vector<SavedVariable> saved_;
  ScalarType narrow_ = ScalarType::Undefined;  // of the output
};

// The node of an operator with these operands.
template <class... Operands>
std::shared_ptr<WideNode> make_node(std::shared_ptr<const Formula> formula,
                                    const Operands&... operands) {
  return std::shared_ptr<WideNode>(
      new WideNode(std::move(formula), torch::autograd::collect_next_edges(operands...)),
      torch::autograd::deleteNode);
}

// What `forward` gives below autograd, as the output of `node`.
template <class Forward>
auto record(const std::shared_ptr<WideNode>& node, const Forward& forward) {
  auto result = [&] {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return forward();
  }();
  torch::autograd::set_history(result, node);
  node->remember_dtype();
  return result;
}

// ---- operators that accumulate in float32

// The products of lhs and rhs summed over the contracting dimensions, in float32. Its dimensions:
// the batch ones, what is left of lhs, what is left of rhs. Differentiable under create_graph.
Tensor contract(const Tensor& lhs, const Tensor& rhs, at::IntArrayRef lhs_contracting,
                at::IntArrayRef rhs_contracting, at::IntArrayRef lhs_batch = {},
                at::IntArrayRef rhs_batch = {});

Tensor to_float(const Tensor& t);

// What `call` gives. castoff's operators differentiate in Python, which is worth its time under
// create_graph only.
template <class Call>
Tensor recorded_if_wanted(const Call& call) {
  if (at::GradMode::is_enabled()) return call();
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call();
}

// ---- kernels that override another

struct WideWeightGrad;

template <class Op>
using Overridden = ::castoff::Overridden<WideWeightGrad, Op, DispatchKey::AutogradXLA>;

template <class Op, class Kernel>
void override_kernel(torch::Library& library, const Kernel& kernel) {
  Overridden<Op>::by(library, kernel);
}

void register_matmuls(torch::Library& library);
void register_einsum(torch::Library& library);
void register_embedding(torch::Library& library);
void register_convolution(torch::Library& library);
void register_pointwise(torch::Library& library);
void register_batch_norm(torch::Library& library);
void register_functions(torch::Library& library);

}  // namespace torch_xla::wide_weight_grad
