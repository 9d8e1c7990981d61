#pragma once

// Tensor.grad_dtype: the dtype that the autograd engine gives to the gradient of a leaf.
//
// The semantics are those of torch 2.10 and later (pytorch/pytorch#162815):
//  - not set: the engine casts an incoming gradient to the leaf's own dtype;
//  - a dtype: to that dtype;
//  - None: not at all.
//
// The state is a BackendMeta of the leaf's TensorImpl. So it dies with the tensor, moves with it in
// torch.utils.swap_tensors, is not handed on by detach() and views, and costs nothing while unused.
// Nodes of the graph hold none of it: the engine asks the leaf when a gradient arrives, so that
// what was set after the forward pass counts, and no node is ever changed under a running backward.

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/input_metadata.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::dynamo::autograd {
class CompiledNodeArgs;
}

namespace torch::autograd {

struct AccumulateGrad;

namespace grad_dtype {

using FormatError = std::function<std::string(const std::string&)>;
using OptionalMetadata = std::vector<std::optional<InputMetadata>>;

// What a leaf wants its gradient to be: nothing special, one dtype, or whatever comes.
class GradDtype {
 public:
  static constexpr GradDtype of_tensor() { return GradDtype(kOfTensor); }
  static constexpr GradDtype any() { return GradDtype(kAny); }
  static constexpr GradDtype exactly(c10::ScalarType dtype) {
    return GradDtype(static_cast<int16_t>(dtype));
  }
  // From what code() gave, -1, -2 or a ScalarType.
  static constexpr GradDtype from_code(int16_t code) { return GradDtype(code); }

  constexpr bool is_of_tensor() const { return code_ == kOfTensor; }
  constexpr bool is_any() const { return code_ == kAny; }
  constexpr c10::ScalarType dtype() const { return static_cast<c10::ScalarType>(code_); }
  constexpr int16_t code() const { return code_; }

 private:
  static constexpr int16_t kOfTensor = -1;
  static constexpr int16_t kAny = -2;
  explicit constexpr GradDtype(int16_t code) : code_(code) {}
  int16_t code_;
};

// Number of tensors alive that have state here; zero keeps every fast path.
extern std::atomic<int64_t> tensors_in_use;
inline bool in_use() {
  return C10_UNLIKELY(tensors_in_use.load(std::memory_order_relaxed) != 0);
}

// The grad_dtype given to `impl`. Thread-safe.
GradDtype get(c10::TensorImpl& impl);

// Number of reasons for the engine to look at gradients more closely than stock: the tensors above,
// one more from the first declare_output() on, and every recorder of implicit casts.
extern std::atomic<int64_t> engine_users;
inline bool engine_in_use() {
  return C10_UNLIKELY(engine_users.load(std::memory_order_relaxed) != 0);
}

// Gives `impl` a grad_dtype. Thread-safe. Throws c10::Error where the tensor's backend keeps state
// of its own in the place that this needs.
void set(c10::TensorImpl& impl, GradDtype grad_dtype);

// From now on `impl` itself, as it is when a gradient arrives, says what dtype, device and shape
// that gradient has, and not what the nodes of its graphs have recorded: for a leaf that changes
// under a live graph. Thread-safe. Throws as set().
void outrun_graphs(c10::TensorImpl& impl);

void describe_former_leaf(InputMetadata& metadata, const at::Tensor& tensor);

// For what a node records of the tensor that it makes: an in-place operator may make it of a tensor
// that was given a grad_dtype, and the gradient that flows into the node has that.
inline void describe(InputMetadata& metadata, const at::Tensor& tensor) {
  if (in_use()) {
    describe_former_leaf(metadata, tensor);
  }
}

// Gives the gradient that flows into the node of `output`, fresh from the forward pass of an
// autograd.Function, the dtype `wanted`. It is kept in the node's metadata of that output, where
// the engine, compiled autograd and Python look for it. No backward may know the node yet. Throws
// c10::Error if output's gradient cannot have it.
void declare_output(const at::Tensor& output, GradDtype wanted);

// What the node of a non-leaf wants its gradient to be: never of_tensor().
GradDtype of_output(const at::Tensor& output);

// The dtype that the gradient that travels `edge` will have behind the engine; of_tensor() where
// the tensor's own says it. An operator that can make a gradient in that dtype asks for it here.
GradDtype demanded_over(const Edge& edge);

// The node that says what dtype the gradient that travels `edge` has: edge's own, or one behind the
// views that it leads to.
const Node& demanding_node(const Edge& edge);

// The leaves whose gradients the one that travels `edge` is part of, where it goes to a leaf with a
// grad_dtype, or to an output with a declared one that is computed from leaves in a few steps.
std::vector<const at::Tensor*> leaves_behind(const Edge& edge);

// Carries the state over an assignment to .data, which replaces everything that a TensorImpl holds:
// taken in the constructor, put back in the destructor. In between, other threads that ask for the
// state wait, and what this thread changes of it is what is put back. Scopes may nest.
class KeepAcrossSetData {
 public:
  explicit KeepAcrossSetData(const at::TensorBase& self);
  ~KeepAcrossSetData();
  KeepAcrossSetData(const KeepAcrossSetData&) = delete;
  KeepAcrossSetData(KeepAcrossSetData&&) = delete;
  KeepAcrossSetData& operator=(const KeepAcrossSetData&) = delete;
  KeepAcrossSetData& operator=(KeepAcrossSetData&&) = delete;

  struct Scope;

 private:
  std::unique_ptr<Scope> scope_;
};

// For VariableHooks::set_data: that, where some tensor has state to carry over.
inline std::optional<KeepAcrossSetData> keep_across_set_data(const at::TensorBase& self) {
  if (!in_use()) {
    return std::nullopt;
  }
  return std::optional<KeepAcrossSetData>(std::in_place, self);
}

// For validate_outputs over edges: the gradients that go to leaves with a grad_dtype, to outputs
// with a declared one, or to views of either, leave `grads` before the stock validation (which
// skips undefined ones) and come back validated against the metadata that is wanted there, by the
// stock validation over metadata.
class LeafGradients {
 public:
  LeafGradients(const edge_list& edges, variable_list& grads, const FormatError& format_error) {
    if (engine_in_use()) {
      take(edges, grads, format_error);
    }
  }
  // Throws what validate_outputs throws.
  void put_back(variable_list& grads, const FormatError& format_error) {
    if (C10_UNLIKELY(!wanted_.empty())) {
      validate_into(grads, format_error);
    }
  }

 private:
  void take(const edge_list& edges, variable_list& grads, const FormatError& format_error);
  void validate_into(variable_list& grads, const FormatError& format_error);

  OptionalMetadata wanted_;
  variable_list taken_;
};

// Casts the gradients that are summed over broadcast dimensions and were asked for in a wider dtype
// than they have.
void widen_before_reducing(const OptionalMetadata& metadata, variable_list& grads);

// For validate_outputs over metadata, as a compiled backward calls it: a copy of `metadata` in
// which "any" has become each gradient's own dtype, or nullopt where nothing asks for any. Throws
// c10::Error for a gradient that is not differentiable.
std::optional<OptionalMetadata> resolve_any(const OptionalMetadata& metadata,
                                            const variable_list& grads,
                                            const FormatError& format_error);

// For compiled autograd: puts what is wanted behind `edges` into their captured metadata.
void describe_leaves(const edge_list& edges, OptionalMetadata& metadata);

// For compiled autograd: makes the leaf's grad_dtype part of the key of the cached graph.
void specialize_on(const at::Tensor& leaf, dynamo::autograd::CompiledNodeArgs& args);

bool accumulate_as_wanted(AccumulateGrad& node, variable_list& grads, std::mutex& node_mutex);

// For AccumulateGrad::apply: accumulates grads[0] into the leaf's .grad if the two dtypes differ by
// the leaf's wish, and says whether it did. `node_mutex` is the node's own. Post-accumulate hooks
// have run when it did.
inline bool accumulate(AccumulateGrad& node, variable_list& grads, std::mutex& node_mutex) {
  return in_use() && accumulate_as_wanted(node, grads, node_mutex);
}

}  // namespace grad_dtype
}  // namespace torch::autograd
