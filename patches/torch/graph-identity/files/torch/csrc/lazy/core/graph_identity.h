#pragma once

// What tells one lazy graph from another, in the key under which its executable is kept.
//
// The tree hash of a node has a leaf as its shape alone, so that (a - b) * a and (a - b) * b are
// one tree; and a list of the leaves' parameter numbers in post order is 0, 1, 2, ... for either.
// What is missing is which parameter feeds which operand (pytorch/xla#8353).

#include <torch/csrc/lazy/backend/backend_data.h>
#include <torch/csrc/lazy/core/ir.h>

#include <cstddef>
#include <vector>

namespace torch::lazy::graph_identity {

// Puts the identity of a graph in the place of `parameters`, which has the number of the parameter
// of each node with device data, in post order: a 128-bit hash, as two words, of what the graph
// computes from its parameters. That is every node's own hash, which operand is which output of
// which node, which leaf is which parameter, and the order of the roots. Graphs that differ only in
// how often they compute the same value have one identity.
//
// Before that, buffers among its data that others have, too, are kept from donation
// (shared_buffers.h).
//
// Takes time in proportion to the edges of the graph; thread-safe. Throws c10::Error if
// `post_order` is not a post order of the roots' graph, or `parameters` does not belong to it; and
// if the graph, which is to run on `device`, has data of another device: torch_xla's runtime would
// end the process (pytorch/xla#8973). The virtual device of SPMD has data of all.
void identify(c10::ArrayRef<Value> roots, c10::ArrayRef<const Node*> post_order,
              const BackendDevice& device, c10::ArrayRef<BackendDataPtr> data,
              std::vector<std::size_t>& parameters);

}  // namespace torch::lazy::graph_identity
