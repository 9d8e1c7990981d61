#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/castoff/kill_switch.h>
#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/graph_identity.h>
#include <torch/csrc/lazy/core/hash.h>
#include <torch/csrc/lazy/core/shared_buffers.h>
#include <torch/csrc/lazy/core/unhashed.h>

#include <cstdint>

namespace torch::lazy::graph_identity {
namespace {

// Two 64-bit hashes. HashCombine multiplies 128-bit numbers in software, which would take a third
// of the time.
struct Identity {
  std::uint64_t high;
  std::uint64_t low;

  // No two values of one argument give the same result: each step can be undone.
  void mix(std::uint64_t other_high, std::uint64_t other_low) {
    high = (high ^ other_high) * 0x9e3779b97f4a7c15;
    low = (low ^ other_low) * 0xc2b2ae3d27d4eb4f;
    low ^= low >> 32;
    high ^= high >> 29;
    high += low;
  }
};

class Identities {
 public:
  Identities(c10::ArrayRef<const Node*> post_order, c10::ArrayRef<std::size_t> parameters)
      : parameters_(parameters) {
    of_node_.reserve(post_order.size());
    const auto* const backend = getBackend();
    for (const Node* node : post_order) {
      of_node_.emplace(node, compute(*node, *backend));
    }
    TORCH_INTERNAL_ASSERT(next_ == parameters_.size(), "parameters of another graph");
  }

  void mix_into(Identity& identity, const Output& output) const {
    const auto found = of_node_.find(output.node);
    TORCH_INTERNAL_ASSERT(found != of_node_.end(), "a node ahead of its operands");
    const Identity& other = found->second;
    identity.mix(other.high + output.index, other.low);
  }

 private:
  Identity compute(const Node& node, const BackendImplInterface& backend) {
    const hash_t hash = unhashed::of_node(node);
    Identity identity{c10::Uint128High64(hash), c10::Uint128Low64(hash)};
    const auto& operands = node.operands();
    for (const Output& operand : operands) {
      mix_into(identity, operand);
    }
    // Data has no operands. Whether a node is data takes a dynamic_cast.
    if (operands.empty() && backend.GetComputationDataFromNode(&node) != nullptr) {
      TORCH_INTERNAL_ASSERT(next_ < parameters_.size(), "parameters of another graph");
      identity.mix(parameters_[next_++], 0);
    }
    return identity;
  }

  c10::ArrayRef<std::size_t> parameters_;
  std::size_t next_ = 0;
  ska::flat_hash_map<const Node*, Identity> of_node_;
};

void expect_one_device(c10::ArrayRef<BackendDataPtr> data, const BackendDevice& device) {
  if (device.toString().rfind("SPMD", 0) == 0) {
    return;
  }
  for (const BackendDataPtr& of_leaf : data) {
    TORCH_CHECK(of_leaf->device() == device,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                of_leaf->device(), " and ", device, "!");
  }
}

// Asked here and not where the hunk is: a build without an overlay has no other place.
bool is_enabled() {
  static const bool enabled = castoff::topic_enabled("graph-identity");
  return enabled;
}

}  // namespace

void identify(c10::ArrayRef<Value> roots, c10::ArrayRef<const Node*> post_order,
              const BackendDevice& device, c10::ArrayRef<BackendDataPtr> data,
              std::vector<std::size_t>& parameters) {
  if (!is_enabled()) {
    return;
  }
  expect_one_device(data, device);
  shared_buffers::keep(roots, post_order, data);
  const Identities identities(post_order, parameters);
  Identity identity{unhashed::settings(), 0};
  for (const Value& root : roots) {
    identities.mix_into(identity, root);
  }
  parameters = {identity.high, identity.low};
}

}  // namespace torch::lazy::graph_identity
