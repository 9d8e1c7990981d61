#pragma once

// Everything in which torch's releases differ for this topic.

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/grad_dtype.h>
#include <torch/csrc/castoff/torch_version.h>

#include <algorithm>
#include <memory>
#include <typeinfo>
#include <utility>

namespace torch::autograd::grad_dtype {

// `metadata` with other options. `nested` has the shape where it is that of a strided nested
// tensor.
inline InputMetadata with_options(const InputMetadata& metadata, const at::TensorOptions& options,
                                  const at::Tensor& nested) {
#if CASTOFF_TORCH_AT_LEAST(2, 6)
  if (metadata.is_cpp_nested_tensor()) {
    const MetadataShape shape(std::in_place_type<at::Tensor>, nested._nested_tensor_size());
    return InputMetadata(options, shape, metadata.is_tensor_subclass(), true);
  }
  const auto sizes = metadata.shape_as_dim_vector();
  const MetadataShape shape(std::in_place_type<SymIntSmallVec>, sizes.begin(), sizes.end());
  return InputMetadata(options, shape, metadata.is_tensor_subclass(), metadata.is_nested_tensor());
#else
  if (metadata.is_nested_tensor()) {
    const MetadataShape shape(c10::in_place_type<at::Tensor>, nested._nested_tensor_size());
    return InputMetadata(options, shape, metadata.is_tensor_subclass());
  }
  const MetadataShape shape(c10::in_place_type<SymIntSmallVec>, metadata.shape_as_dim_vector());
  return InputMetadata(options, shape, metadata.is_tensor_subclass());
#endif
}

// One more input of `node`.
inline void add_input(Node& node, const InputMetadata& metadata) {
  if (metadata.was_default_constructed()) {
    node.add_input_metadata(Node::undefined_input());
    return;
  }
#if CASTOFF_TORCH_AT_LEAST(2, 6)
  node.add_input_metadata(metadata.options(), metadata.shape_as_dim_vector(),
                          metadata.is_tensor_subclass(), metadata.is_nested_tensor());
#else
  TORCH_CHECK(!metadata.is_nested_tensor(),
              "grad_dtype of a strided nested tensor needs torch 2.6 or later; set it to None");
  node.add_input_metadata(metadata.options(), metadata.shape_as_dim_vector(),
                          metadata.is_tensor_subclass());
#endif
}

#if CASTOFF_TORCH_AT_LEAST(2, 6)

inline bool stands_for_metadata(const edge_list& /*edges*/) {
  return false;
}

#else

// What validate_outputs over metadata goes through where torch has the one over edges only.
struct MetadataNode final : Node {
  variable_list apply(variable_list&& /*grads*/) override { return {}; }
};

inline bool stands_for_metadata(const edge_list& edges) {
  const auto is_stand_in = [](const Edge& edge) {
    return edge.function && typeid(*edge.function) == typeid(MetadataNode);
  };
  return std::any_of(edges.begin(), edges.end(), is_stand_in);
}

inline void validate_outputs(const OptionalMetadata& metadata, variable_list& grads,
                             const FormatError& format_error) {
  edge_list edges(metadata.size());
  for (size_t i = 0; i < metadata.size(); ++i) {
    if (metadata[i]) {
      auto node = std::make_shared<MetadataNode>();
      add_input(*node, *metadata[i]);
      edges[i] = Edge(std::move(node), 0);
    }
  }
  torch::autograd::validate_outputs(edges, grads, format_error);
}

#endif

}  // namespace torch::autograd::grad_dtype
