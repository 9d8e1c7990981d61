#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/graph_identity.h>
#include <torch/csrc/lazy/core/hash.h>

#include <atomic>

namespace torch::lazy::graph_identity {
namespace {

std::atomic<std::uint64_t> current_salt{0};

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
    hash_t hash = node.hash();
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

std::vector<std::size_t> words(c10::ArrayRef<Value> roots, c10::ArrayRef<const Node*> post_order,
                               c10::ArrayRef<std::size_t> parameters) {
  const Hashes hashes(post_order, parameters);
  hash_t hash(current_salt.load(std::memory_order_relaxed));
  for (const Value& root : roots) {
    hash = HashCombine(hash, hashes.of(root));
  }
  return {c10::Uint128High64(hash), c10::Uint128Low64(hash)};
}

void set_salt(std::uint64_t salt) {
  current_salt.store(salt, std::memory_order_relaxed);
}

}  // namespace torch::lazy::graph_identity

// For Python: torch_xla says there what its settings are.
extern "C" {

[[gnu::visibility("default")]] void castoff_graph_identity_set_salt(std::uint64_t salt);

void castoff_graph_identity_set_salt(std::uint64_t salt) {
  torch::lazy::graph_identity::set_salt(salt);
}

}  // extern "C"
