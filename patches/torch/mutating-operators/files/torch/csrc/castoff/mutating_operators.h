#pragma once

// Custom operators that write to their arguments, where functionalization has no kernel of their
// own for them.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch::castoff {

// Whether the operator writes to an argument, and one of its tensors is on XLA.
bool writes_on_xla(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Runs such an operator; its arguments on the stack are replaced by its results. A kernel for XLA
// or for all devices sees the functional tensors. Any other sees copies, which are written back.
void run_mutating_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack);

}  // namespace torch::castoff
