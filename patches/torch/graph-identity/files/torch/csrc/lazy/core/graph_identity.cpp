#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/castoff/kill_switch.h>
#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/graph_identity.h>
#include <torch/csrc/lazy/core/hash.h>
#include <torch/csrc/lazy/core/unhashed.h>

#include <cstdint>

namespace torch::lazy::graph_identity {
namespace {

class Hashes {
 public:
  Hashes(c10::ArrayRef<const Node*> post_order, c10::ArrayRef<std::size_t> parameters)
      : parameters_(parameters) {
    of_node_.reserve(post_order.size());
    const auto* const backend = getBackend();
    for (const Node* node : post_order) {
      of_node_.emplace(node, compute(*node, *backend));
    }
    TORCH_INTERNAL_ASSERT(next_ == parameters_.size(), "parameters of another graph");
  }

  hash_t of(const Output& output) const {
    const auto found = of_node_.find(output.node);
    TORCH_INTERNAL_ASSERT(found != of_node_.end(), "a node ahead of its operands");
    return HashCombine(found->second, hash_t(static_cast<std::uint64_t>(output.index)));
  }

 private:
  hash_t compute(const Node& node, const BackendImplInterface& backend) {
    hash_t hash = unhashed::of_node(node);
    for (const Output& operand : node.operands()) {
      hash = HashCombine(hash, of(operand));
    }
    if (backend.GetComputationDataFromNode(&node) != nullptr) {
      TORCH_INTERNAL_ASSERT(next_ < parameters_.size(), "parameters of another graph");
      hash = HashCombine(hash, Hash(parameters_[next_++]));
    }
    return hash;
  }

  c10::ArrayRef<std::size_t> parameters_;
  std::size_t next_ = 0;
  ska::flat_hash_map<const Node*, hash_t> of_node_;
};

}  // namespace

void identify(c10::ArrayRef<Value> roots, c10::ArrayRef<const Node*> post_order,
              std::vector<std::size_t>& parameters) {
  // Asked here and not where the hunk is: a build without an overlay has no other place.
  static const bool enabled = castoff::topic_enabled("graph-identity");
  if (!enabled) {
    return;
  }
  const Hashes hashes(post_order, parameters);
  hash_t hash(unhashed::settings());
  for (const Value& root : roots) {
    hash = HashCombine(hash, hashes.of(root));
  }
  parameters = {c10::Uint128High64(hash), c10::Uint128Low64(hash)};
}

}  // namespace torch::lazy::graph_identity
