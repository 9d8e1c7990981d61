#pragma once

// Everything in which torch's releases differ for this topic: where a leaf has what its gradient is
// to be. That is in torch's own fields where it has Tensor.grad_dtype, before that in the topic of
// this name.

#include <ATen/core/TensorBase.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/castoff/torch_version.h>

#include <optional>
#include <utility>

#if CASTOFF_TORCH_AT_LEAST(2, 10)
#include <torch/csrc/autograd/input_metadata.h>
#include <torch/csrc/autograd/variable.h>
#else
#include <torch/csrc/autograd/grad_dtype.h>
#endif

namespace torch::autograd::data_setter {

// std::shared_ptr<Node>, or c10::intrusive_ptr<Node> in later releases.
using NodePointer = decltype(Edge::function);

#if CASTOFF_TORCH_AT_LEAST(2, 10)

// An assignment to .data leaves alone both the leaf's grad_dtype, which is in its AutogradMeta, and
// what the engine goes by, the metadata of the leaf's node.
class LeafState {
 public:
  // Whether some tensor has something that an assignment would lose.
  static bool any_in_use() { return false; }

  void keep(const at::TensorBase& /*self*/) {}

  // Lets the graphs that end in `accumulator`, the node of `self`, deliver what `self` is after the
  // assignment.
  void follow(const at::TensorBase& self, NodePointer accumulator) {
    self_ = &self;
    accumulator_ = std::move(accumulator);
  }

  // The assignment has taken place, or has thrown. Writes where a backward in another thread may
  // read, as the setter of Tensor.grad_dtype does: one word, and the shape where that changes,
  // which the assignment itself has then changed under that backward.
  void finish() const {
    if (!accumulator_) {
      return;
    }
    auto& recorded = accumulator_->mutable_input_metadata(0);
    const bool was_complex = at::isComplexType(c10::typeMetaToScalarType(recorded.dtype()));
    if (recorded.device() != self_->device() || was_complex != self_->is_complex() ||
        is_placeholder(recorded)) {
      return;
    }
    recorded.set_grad_dtype(impl::get_autograd_meta(*self_)->grad_dtype(*self_));
    const auto sizes = self_->sym_sizes();
    if (recorded.shape_as_dim_vector() != sizes) {
      recorded.mutable_shape_as_dim_vector().assign(sizes.begin(), sizes.end());
    }
  }

  // Whether the node can stay: what it has recorded of its device cannot be changed, and a complex
  // gradient would lose its imaginary part on the way to a real leaf.
  static bool may_keep_node(const at::TensorBase& self, const at::TensorBase& new_data) {
    return self.device() == new_data.device() && self.is_complex() == new_data.is_complex();
  }

 private:
  // Whether the leaf has fewer elements than its graph was built with: its storage was given back
  // between forward and backward, and an empty tensor or one of one element holds the place, as
  // offloaders do. Its owner knows what to do with a gradient of the old shape.
  bool is_placeholder(const InputMetadata& recorded) const {
    c10::SymInt elements = 1;
    for (const auto& size : recorded.shape_as_dim_vector()) {
      elements *= size;
    }
    return self_->sym_numel() < elements;
  }

  const at::TensorBase* self_ = nullptr;
  NodePointer accumulator_;
};

#else

class LeafState {
 public:
  static bool any_in_use() { return grad_dtype::in_use(); }

  void keep(const at::TensorBase& self) { kept_.emplace(self); }

  void follow(const at::TensorBase& self, const NodePointer& /*accumulator*/) {
    grad_dtype::outrun_graphs(*self.unsafeGetTensorImpl());
  }

  void finish() const {}

  static bool may_keep_node(const at::TensorBase& /*self*/, const at::TensorBase& /*new_data*/) {
    return true;
  }

 private:
  std::optional<grad_dtype::KeepAcrossSetData> kept_;
};

#endif

}  // namespace torch::autograd::data_setter
