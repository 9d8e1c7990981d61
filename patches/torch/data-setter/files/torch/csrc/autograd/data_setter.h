#pragma once

// `p.data = q` with another dtype, device or shape, under a live graph of p.
//
// torch drops p's AccumulateGrad there: the next graph gets a new one, without the hooks of the old
// one (DDP's all-reduce is such a hook), and a graph built before delivers a gradient of the old
// dtype. Here the node stays, and the leaf says what it delivers (leaf_state.h).

#include <ATen/core/TensorBase.h>
#include <torch/csrc/autograd/leaf_state.h>

namespace torch::autograd::data_setter {

// Lives around one assignment to .data: looks at the two tensors in the constructor, puts p's
// autograd state right in the destructor. Costs a comparison where the metadata stays the same and
// no tensor of the process has state to carry over.
//
// Where the shape changes, what becomes of the node is left to torch, which keeps it if dtype and
// device stay: FSDP's flat parameters change their size twice a step, and count on it.
class Reassignment {
 public:
  Reassignment(const at::TensorBase& self, const at::TensorBase& new_data);
  ~Reassignment();
  Reassignment(const Reassignment&) = delete;
  Reassignment(Reassignment&&) = delete;
  Reassignment& operator=(const Reassignment&) = delete;
  Reassignment& operator=(Reassignment&&) = delete;

 private:
  const at::TensorBase& self_;
  const at::TensorBase& new_data_;
  NodePointer kept_accumulator_;
  LeafState state_;
};

}  // namespace torch::autograd::data_setter
