#pragma once

// What torch_xla lowers graphs by and leaves out of its nodes' hashes.

#include <torch/csrc/lazy/core/hash.h>
#include <torch/csrc/lazy/core/ir.h>

#include <cstdint>

namespace torch::lazy::unhashed {

// A word for what the process has set; 0 as long as nothing is set. Python says it
// (torch_xla/_graph_identity.py). Thread-safe.
std::uint64_t settings();

// The hash of a node and its operands, with the attributes that some kinds of nodes leave out.
hash_t of_node(const Node& node);

}  // namespace torch::lazy::unhashed
