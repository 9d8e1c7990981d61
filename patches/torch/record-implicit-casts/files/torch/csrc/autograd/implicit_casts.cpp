#include <torch/csrc/autograd/implicit_casts.h>

#include <torch/csrc/autograd/gradient_receivers.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace torch::autograd::implicit_casts {

std::atomic<int64_t> Validation::recorders{0};

namespace {

constexpr int64_t kSymbolic = -1;

// std::shared_ptr<Node>, or c10::intrusive_ptr<Node> in later releases.
using NodePointer = decltype(Edge::function);

struct Cast {
  c10::ScalarType from;
  c10::ScalarType to;
  std::vector<int64_t> shape;
  std::string produced_by;
  std::string demanded_by;
  int64_t index;
  // The node that remembers where its forward op was made; nullptr without anomaly mode.
  NodePointer forward;
  // Addresses of the leaves that asked for it.
  std::vector<const void*> leaves;
  bool rounded;
};

// Nothing that could wait for Python's lock happens under this one: names and nodes are taken
// before, nodes are released after.
struct Recorders {
  std::mutex mutex;
  std::map<int64_t, std::deque<Cast>> casts;
  int64_t last_id = 0;
};

Recorders& all() {
  static auto* const recorders = new Recorders;  // autograd's threads outlive static destructors
  return *recorders;
}

struct AnomalyStack : Node {
  static bool is_there(Node& node) { return (node.*(&AnomalyStack::anomaly_metadata_)) != nullptr; }
};

void add_recorder(int64_t count) {
  Validation::recorders.fetch_add(count, std::memory_order_relaxed);
  add_engine_users(count);
}

std::vector<int64_t> shape_of(const at::Tensor& grad) {
  std::vector<int64_t> shape;
  if (!grad.is_nested()) {
    for (const auto& size : grad.sym_sizes()) {
      shape.push_back(size.maybe_as_int().value_or(kSymbolic));
    }
  }
  return shape;
}

// The node whose outputs are validated, or nullptr: for a root of the backward there is none,
// though another backward that this one is part of may have a current node.
NodePointer producer_of(const edge_list& edges) {
  auto node = get_current_node();
  return node && &node->next_edges() == &edges ? node : NodePointer();
}

std::vector<const void*> addresses_of(const std::vector<const at::Tensor*>& leaves) {
  std::vector<const void*> addresses;
  for (const auto* leaf : leaves) {
    addresses.push_back(leaf->unsafeGetTensorImpl());
  }
  return addresses;
}

enum class Warning { kOff, kWaiting, kGiven };
std::atomic<Warning> warning{Warning::kOff};

// Whether `producer` has made a gradient in `from` that it could have made in `to`.
bool is_rounded(const Node* producer, c10::ScalarType from, c10::ScalarType to) {
  return producer != nullptr && at::isReducedFloatingType(from) && at::isFloatingType(to) &&
         c10::elementSize(to) > c10::elementSize(from) && !hands_on(*producer);
}

void warn_once(const Node& producer, c10::ScalarType from, c10::ScalarType to,
               const at::Tensor& leaf) {
  auto waiting = Warning::kWaiting;
  if (!warning.compare_exchange_strong(waiting, Warning::kGiven)) {
    return;
  }
  add_recorder(-1);
  TORCH_WARN("The gradient of a parameter of shape ", leaf.sym_sizes(), " was made by ",
             producer.name(), " in ", from, " and cast to ", to,
             ": it is as rounded as without wide_grads. "
             "torch_xla.amp.wide_grads_report(module, step) lists all of these, with their lines. "
             "This is the first, and no other is warned of.");
}

}  // namespace

void warn_of_rounding() {
  auto off = Warning::kOff;
  if (warning.compare_exchange_strong(off, Warning::kWaiting)) {
    add_recorder(1);
  }
}

void Validation::remember(const variable_list& grads) {
  if (grads.size() != edges_.size()) {
    return;
  }
  for (const auto& grad : grads) {
    before_.push_back(grad.defined() ? grad.scalar_type() : c10::ScalarType::Undefined);
  }
}

void Validation::compare(const variable_list& grads) const {
  std::vector<Cast> made;
  const auto producer = producer_of(edges_);
  for (size_t i = 0; i < before_.size(); ++i) {
    if (before_[i] == c10::ScalarType::Undefined || !grads[i].defined() || !edges_[i].function ||
        grads[i].scalar_type() == before_[i]) {
      continue;
    }
    const auto to = grads[i].scalar_type();
    const bool rounded = is_rounded(producer.get(), before_[i], to);
    // The warning counts as a recorder while it waits, and wants nothing of other casts.
    const bool is_recorded =
        recorders.load(std::memory_order_relaxed) != (warning == Warning::kWaiting ? 1 : 0);
    if (!rounded && !is_recorded) {
      continue;
    }
    const auto leaves = leaves_behind(edges_[i]);
    if (rounded && !leaves.empty()) {
      warn_once(*producer, before_[i], to, *leaves.front());
    }
    if (!is_recorded) {
      continue;
    }
    const auto& made_by = producer ? producer : edges_[i].function;
    made.push_back({before_[i], to, shape_of(grads[i]), producer ? producer->name() : "",
                    demanding_node(edges_[i]).name(), static_cast<int64_t>(i),
                    AnomalyStack::is_there(*made_by) ? made_by : NodePointer(),
                    addresses_of(leaves), rounded});
  }
  if (made.empty()) {
    return;
  }
  auto& recorders = all();
  const std::lock_guard<std::mutex> lock(recorders.mutex);
  for (auto& [id, casts] : recorders.casts) {
    casts.insert(casts.end(), made.begin(), made.end());
  }
}

namespace {

// What torch/autograd/_implicit_casts.py reads; mirrored there.
struct View {
  const char* from;
  const char* to;
  int64_t index;
  const int64_t* shape;
  int64_t dimensions;
  const char* produced_by;
  const char* demanded_by;
  const void* const* leaves;
  int64_t leaf_count;
  bool has_stack;
  bool rounded;
};

int64_t start() {
  auto& recorders = all();
  const std::lock_guard<std::mutex> lock(recorders.mutex);
  recorders.casts.try_emplace(++recorders.last_id);
  add_recorder(1);
  return recorders.last_id;
}

void stop(int64_t id) {
  std::deque<Cast> dropped;
  auto& recorders = all();
  const std::lock_guard<std::mutex> lock(recorders.mutex);
  const auto found = recorders.casts.find(id);
  if (found != recorders.casts.end()) {
    dropped = std::move(found->second);
    recorders.casts.erase(found);
    add_recorder(-1);
  }
}

std::unique_ptr<Cast> take(int64_t id) {
  auto& recorders = all();
  const std::lock_guard<std::mutex> lock(recorders.mutex);
  const auto found = recorders.casts.find(id);
  if (found == recorders.casts.end() || found->second.empty()) {
    return nullptr;
  }
  auto cast = std::make_unique<Cast>(std::move(found->second.front()));
  found->second.pop_front();
  return cast;
}

}  // namespace
}  // namespace torch::autograd::implicit_casts

namespace casts = torch::autograd::implicit_casts;

// Starts a recorder and gives its id.
extern "C" C10_EXPORT int64_t castoff_implicit_casts_start() {
  return casts::start();
}

// Stops it and drops what was not taken.
extern "C" C10_EXPORT void castoff_implicit_casts_stop(int64_t id) {
  casts::stop(id);
}

// Takes the oldest cast out of a recorder: false if there is none. `view` is valid until drop(). If
// the cast knows its forward op, `forward`, a tensor of the caller's, gets it as its grad_fn.
extern "C" C10_EXPORT void* castoff_implicit_casts_take(int64_t id, casts::View* view,
                                                        c10::TensorImpl* forward) {
  auto cast = casts::take(id);
  if (!cast) {
    return nullptr;
  }
  *view = {c10::toString(cast->from),
           c10::toString(cast->to),
           cast->index,
           cast->shape.data(),
           static_cast<int64_t>(cast->shape.size()),
           cast->produced_by.c_str(),
           cast->demanded_by.c_str(),
           cast->leaves.data(),
           static_cast<int64_t>(cast->leaves.size()),
           cast->forward != nullptr,
           cast->rounded};
  if (cast->forward) {
    torch::autograd::impl::set_gradient_edge(
        at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(forward)),
        {std::move(cast->forward), 0});
  }
  return cast.release();
}

// Lets the first rounded gradient be warned of.
extern "C" C10_EXPORT void castoff_implicit_casts_warn_of_rounding() {
  casts::warn_of_rounding();
}

// Frees what take() gave.
extern "C" C10_EXPORT void castoff_implicit_casts_drop(void* cast) {
  delete static_cast<casts::Cast*>(cast);
}
