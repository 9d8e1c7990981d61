#pragma once

// How compiled autograd takes a node, in which torch's releases differ.

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/castoff/torch_version.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch_xla::wide_weight_grad {

using torch::autograd::variable_list;

#if CASTOFF_TORCH_AT_LEAST(2, 7)

// Puts one call of `gradients(grads, tensors)` into the graph. Dynamo leaves it there as it is, and
// AOTAutograd traces through it. `gradients` is copied.
template <class Gradients>
variable_list put_into_graph(const std::string& name, const Gradients& gradients,
                             const variable_list& grads, const variable_list& tensors,
                             const torch::autograd::edge_list& edges,
                             torch::dynamo::autograd::SwapSavedVariables& saved) {
  namespace compiled = torch::dynamo::autograd;
  const auto call = [gradients](const variable_list& inputs,
                                const std::vector<c10::IValue>& arguments) {
    variable_list unpacked;
    for (const auto& argument : arguments) unpacked.push_back(argument.toTensor());
    return gradients(inputs, unpacked);
  };
  const auto& compiler = compiled::getPyCompilerInterface();
  const std::string function =
      compiler->bind_function(saved.get_py_compiler(), name, call,
                              std::vector<at::TypePtr>(tensors.size(), at::TensorType::get()),
                              /*is_custom_function=*/true, /*is_traceable=*/true);
  const auto metadata =
      compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
          compiled::get_input_metadata(edges));
  return compiler->call_function(saved.get_py_compiler(), "apply_functional", function, grads,
                                 {tensors.begin(), tensors.end()}, metadata);
}

#else

// The tensors are proxies: what the call does is traced.
template <class Gradients>
variable_list put_into_graph(const std::string& /*name*/, const Gradients& gradients,
                             const variable_list& grads, const variable_list& tensors,
                             const torch::autograd::edge_list& /*edges*/,
                             torch::dynamo::autograd::SwapSavedVariables& /*saved*/) {
  return gradients(grads, tensors);
}

#endif

}  // namespace torch_xla::wide_weight_grad
