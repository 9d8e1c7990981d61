#pragma once

// What tells one lazy graph from another, in the key under which its executable is kept.
//
// The tree hash of a node has a leaf as its shape alone, so that (a - b) * a and (a - b) * b are
// one tree; and a list of the leaves' parameter numbers in post order is 0, 1, 2, ... for either.
// What is missing is which parameter feeds which operand (pytorch/xla#8353).

#include <torch/csrc/lazy/core/ir.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch::lazy::graph_identity {

// What a graph computes from its parameters, as the two words of a 128-bit hash: every node's own
// hash, which operand is which output of which node, which leaf is which parameter, and the order
// of the roots. Graphs that differ only in how often they compute the same value have one identity.
// `parameters` has the number of the parameter of each node with device data, in post order. Takes
// time in proportion to the edges of the graph; thread-safe. Throws c10::Error if `post_order` is
// not a post order of the roots' graph, or `parameters` does not belong to it.
std::vector<std::size_t> words(c10::ArrayRef<Value> roots, c10::ArrayRef<const Node*> post_order,
                               c10::ArrayRef<std::size_t> parameters);

// What the process has set that changes how every graph is lowered, as one word for `words` to fold
// in; 0, which it is at first, stands for what a graph is lowered as without any setting.
void set_salt(std::uint64_t salt);

}  // namespace torch::lazy::graph_identity
