#include <c10/util/flat_hash_map.h>
#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/csrc/lazy/core/shared_buffers.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace torch::lazy::shared_buffers {
namespace {

struct Shared {
  std::weak_ptr<BackendData> buffer;
  bool kept = false;  // whether it is read-only because of keep() alone
};

struct Buffers {
  std::mutex mutex;
  ska::flat_hash_map<const BackendData*, Shared> shared;
  size_t limit = 64;  // how many there may be before those that are gone are taken out
  std::atomic<bool> any{false};

  void forget_those_gone() {
    for (auto entry = shared.begin(); entry != shared.end();) {
      entry = entry->second.buffer.expired() ? shared.erase(entry) : std::next(entry);
    }
    limit = std::max<size_t>(64, 2 * shared.size());
  }

  // nullptr if the buffer is none of those; another one may have had its address.
  Shared* find(const BackendDataPtr& buffer) {
    const auto found = shared.find(buffer.get());
    return found == shared.end() || found->second.buffer.lock() != buffer ? nullptr
                                                                          : &found->second;
  }
};

// Never destroyed: a thread may be in a sync when the process ends.
Buffers& buffers() {
  static auto* const buffers = new Buffers;
  return *buffers;
}

// By how many of these nodes each buffer is held.
ska::flat_hash_map<const BackendData*, long> nodes_of_buffers(
    c10::ArrayRef<const Node*> post_order) {
  ska::flat_hash_map<const BackendData*, long> nodes;
  const auto* const backend = getBackend();
  for (const Node* node : post_order) {
    if (!node->operands().empty()) continue;
    if (const BackendDataPtr data = backend->GetComputationDataFromNode(node)) ++nodes[data.get()];
  }
  return nodes;
}

// While this thread computes a part of what is pending.
struct Part {
  bool is_open = false;
  std::vector<LazyGraphExecutor::DeviceDataInfo*> read_only;
  std::vector<BackendDataPtr> owners;
};
thread_local Part part;

struct Operands : Node {
  static const std::vector<NodePtr>& of(const Node& node) { return node.*(&Operands::operands_); }
};

void keep_what_others_read(c10::ArrayRef<Value> roots, c10::ArrayRef<const Node*> post_order) {
  std::vector<const NodePtr*> uses;  // within the graph
  for (const Value& root : roots) uses.push_back(&root.node);
  for (const Node* node : post_order) {
    for (const NodePtr& operand : Operands::of(*node)) uses.push_back(&operand);
  }
  ska::flat_hash_map<const Node*, long> counts;
  for (const NodePtr* use : uses) ++counts[use->get()];
  ska::flat_hash_set<const Node*> read;
  for (const NodePtr* use : uses) {
    if (use->use_count() > counts[use->get()]) read.insert(use->get());
  }
  for (auto node = post_order.rbegin(); node != post_order.rend(); ++node) {
    if (read.find(*node) == read.end()) continue;
    for (const NodePtr& operand : Operands::of(**node)) read.insert(operand.get());
    const BackendDataPtr data = getBackend()->GetComputationDataFromNode(*node);
    if (data == nullptr) continue;
    auto* const info = static_cast<LazyGraphExecutor::DeviceDataInfo*>(data->info());
    if (info == nullptr || info->read_only) continue;
    info->read_only = true;
    part.read_only.push_back(info);
    part.owners.push_back(data);
  }
}

}  // namespace

void add(const BackendDataPtr& buffer) {
  Buffers& all = buffers();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.find(buffer) != nullptr) return;
  if (all.shared.size() >= all.limit) all.forget_those_gone();
  all.shared[buffer.get()] = {buffer};
  all.any.store(true, std::memory_order_release);
}

bool has(const BackendDataPtr& buffer) {
  Buffers& all = buffers();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.find(buffer) != nullptr;
}

bool any() {
  return buffers().any.load(std::memory_order_acquire);
}

void keep(c10::ArrayRef<Value> roots, c10::ArrayRef<const Node*> post_order,
          c10::ArrayRef<BackendDataPtr> parameters) {
  if (part.is_open) keep_what_others_read(roots, post_order);
  if (!any()) return;
  Buffers& all = buffers();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::optional<ska::flat_hash_map<const BackendData*, long>> nodes;
  for (const BackendDataPtr& buffer : parameters) {
    Shared* const shared = all.find(buffer);
    auto* const info = static_cast<LazyGraphExecutor::DeviceDataInfo*>(buffer->info());
    if (shared == nullptr || info == nullptr || (info->read_only && !shared->kept)) continue;
    if (!nodes) nodes = nodes_of_buffers(post_order);
    // One owner is `parameters`.
    shared->kept = buffer.use_count() > 1 + (*nodes)[buffer.get()];
    info->read_only = shared->kept;
  }
}

}  // namespace torch::lazy::shared_buffers

// For torch_xla's shared-buffers and step-replay.
extern "C" {

[[gnu::visibility("default")]] void castoff_graph_identity_add_shared_buffer(
    const torch::lazy::BackendDataPtr& buffer);
[[gnu::visibility("default")]] bool castoff_graph_identity_any_shared_buffer();
[[gnu::visibility("default")]] void castoff_graph_identity_begin_part();
[[gnu::visibility("default")]] void castoff_graph_identity_end_part();
[[gnu::visibility("default")]] bool castoff_graph_identity_is_shared_buffer(
    const torch::lazy::BackendDataPtr& buffer);

void castoff_graph_identity_add_shared_buffer(const torch::lazy::BackendDataPtr& buffer) {
  torch::lazy::shared_buffers::add(buffer);
}

bool castoff_graph_identity_any_shared_buffer() {
  return torch::lazy::shared_buffers::any();
}

void castoff_graph_identity_begin_part() {
  torch::lazy::shared_buffers::part.is_open = true;
}

void castoff_graph_identity_end_part() {
  for (auto* info : torch::lazy::shared_buffers::part.read_only) info->read_only = false;
  torch::lazy::shared_buffers::part = {};
}

bool castoff_graph_identity_is_shared_buffer(const torch::lazy::BackendDataPtr& buffer) {
  return torch::lazy::shared_buffers::has(buffer);
}

}  // extern "C"
