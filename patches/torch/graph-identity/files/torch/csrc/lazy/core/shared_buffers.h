#pragma once

// Buffers that two tensors have, as after `x.copy_(y)` of a y that is computed. torch_xla donates
// the buffer of a tensor that is written to the graph that writes it, whoever else has it.

#include <torch/csrc/lazy/backend/backend_data.h>
#include <torch/csrc/lazy/core/ir.h>

namespace torch::lazy::shared_buffers {

// Says that more than one tensor may have this buffer. Thread-safe.
void add(const BackendDataPtr& buffer);

// Whether it was added. Thread-safe.
bool has(const BackendDataPtr& buffer);

// Whether any buffer was. Thread-safe.
bool any();

// Marks those parameters of a graph read-only, so that they are not donated, that were added and
// that a tensor or a graph besides this one still holds; and while a part of what is pending is
// computed, those that the rest of it reads. Takes no time as long as none is added; thread-safe.
void keep(c10::ArrayRef<Value> roots, c10::ArrayRef<const Node*> post_order,
          c10::ArrayRef<BackendDataPtr> parameters);

}  // namespace torch::lazy::shared_buffers
