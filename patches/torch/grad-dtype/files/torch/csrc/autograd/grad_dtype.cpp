#include <torch/csrc/autograd/grad_dtype.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/grad_dtype_versions.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/autograd/view_nodes.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <typeinfo>
#include <unordered_set>
#include <utility>

// Of every CPython; weak, because a program without Python may load this library.
struct _ts;
extern "C" {
[[gnu::weak]] int Py_IsInitialized();
[[gnu::weak]] int PyGILState_Check();
[[gnu::weak]] _ts* PyEval_SaveThread();
[[gnu::weak]] void PyEval_RestoreThread(_ts* state);
}

namespace torch::autograd::grad_dtype {

std::atomic<int64_t> tensors_in_use{0};
std::atomic<int64_t> engine_users{0};

namespace {

struct State final : c10::BackendMeta {
  State(GradDtype wanted, bool outran) : grad_dtype(wanted), outruns_graphs(outran) {
    tensors_in_use.fetch_add(1, std::memory_order_relaxed);
    engine_users.fetch_add(1, std::memory_order_relaxed);
  }
  ~State() override {
    tensors_in_use.fetch_sub(1, std::memory_order_relaxed);
    engine_users.fetch_sub(1, std::memory_order_relaxed);
  }
  State(const State&) = delete;
  State(State&&) = delete;
  State& operator=(const State&) = delete;
  State& operator=(State&&) = delete;

  // Called where one tensor's metadata is copied into another: detach(), views, .data. The copy is
  // another tensor and has no grad_dtype.
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& /*self*/) const override {
    return {};
  }

  const GradDtype grad_dtype;
  const bool outruns_graphs;
};

// The GIL is let go of here, where this thread has it.
class WithoutGil {
 public:
  WithoutGil() : state_(has_gil() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) {
      PyEval_RestoreThread(state_);
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil(WithoutGil&&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  WithoutGil& operator=(WithoutGil&&) = delete;

 private:
  // Before Python runs, and after, nobody has it; that is asked first, as Check then says yes.
  static bool has_gil() {
    return PyGILState_Check != nullptr && Py_IsInitialized() != 0 && PyGILState_Check() == 1;
  }

  _ts* const state_;
};

// Guards the place of a tensor's state. Not AutogradMeta's own mutex: that one is taken inside the
// assignment to .data, over which this one has to be held. Recursive, because what an assignment
// frees may run code of others.
//
// The owner may need the GIL: the sizes, device or layout of a tensor subclass may be written in
// Python, and an assignment to .data asks for them. So nobody waits here with the GIL.
std::unique_lock<std::recursive_mutex> lock_state(const c10::TensorImpl& impl) {
  static std::array<std::recursive_mutex, 64> stripes;
  const auto address = reinterpret_cast<uintptr_t>(&impl);
  std::unique_lock<std::recursive_mutex> lock(stripes[(address / 64) % stripes.size()],
                                              std::try_to_lock);
  if (C10_UNLIKELY(!lock.owns_lock())) {
    const WithoutGil waiting;
    lock.lock();
  }
  return lock;
}

c10::intrusive_ptr<State> state_of(c10::TensorImpl& impl) {
  auto meta = impl.get_backend_meta_intrusive_ptr();
  return meta && typeid(*meta) == typeid(State)
             ? c10::static_intrusive_pointer_cast<State>(std::move(meta))
             : c10::intrusive_ptr<State>();
}

}  // namespace

// One assignment to .data under way in this thread.
struct KeepAcrossSetData::Scope {
  explicit Scope(c10::TensorImpl& self)
      : impl(self),
        freed_after_unlocking(self.has_storage() ? self.storage() : c10::Storage()),
        lock(lock_state(self)),
        state(state_of(self)),
        outer(std::exchange(innermost, this)) {}
  ~Scope() {
    innermost = outer;
    if (state) {
      impl.set_backend_meta(std::move(state));
    }
  }
  Scope(const Scope&) = delete;
  Scope(Scope&&) = delete;
  Scope& operator=(const Scope&) = delete;
  Scope& operator=(Scope&&) = delete;

  static Scope* of(const c10::TensorImpl& impl) {
    auto* scope = innermost;
    while (scope != nullptr && &scope->impl != &impl) {
      scope = scope->outer;
    }
    return scope;
  }

  c10::TensorImpl& impl;
  // Its deleter may want the GIL, for which a thread that waits for the lock may hold it.
  c10::Storage freed_after_unlocking;
  std::unique_lock<std::recursive_mutex> lock;
  c10::intrusive_ptr<State> state;
  Scope* outer;

  static thread_local Scope* innermost;
};

thread_local KeepAcrossSetData::Scope* KeepAcrossSetData::Scope::innermost = nullptr;

namespace {

c10::intrusive_ptr<State> locked_state_of(c10::TensorImpl& impl) {
  if (!in_use()) {
    return {};
  }
  const auto lock = lock_state(impl);
  const auto* scope = KeepAcrossSetData::Scope::of(impl);
  return scope == nullptr ? state_of(impl) : scope->state;
}

// `change` makes the new state from the present one, which may be null.
template <class Change>
void change_state(c10::TensorImpl& impl, const Change& change) {
  const auto lock = lock_state(impl);
  if (auto* scope = KeepAcrossSetData::Scope::of(impl)) {
    scope->state = change(scope->state.get());
    return;
  }
  const auto present = state_of(impl);
  TORCH_CHECK(present || impl.get_backend_meta() == nullptr,
              "grad_dtype cannot be set on a tensor of device type '", impl.device_type(),
              "': its backend keeps metadata of its own in the tensor's BackendMeta");
  impl.set_backend_meta(change(present.get()));
}

// The leaf whose gradient `edge` delivers, or nullptr.
const at::Tensor* leaf_behind(const Edge& edge) {
  Node* node = edge.function.get();
  if (node == nullptr || node->num_outputs() != 0 || typeid(*node) != typeid(AccumulateGrad)) {
    return nullptr;
  }
  return &static_cast<AccumulateGrad*>(node)->variable;
}

// requires_grad marks what was asked for, "any" or the dtype that the options name: torch never
// sets it there, and compiled autograd packs it.
constexpr bool kAnyMark = true;
constexpr bool kDtypeMark = false;

// memory_format likewise: the tensor is complex and its grad_dtype real, or the other way round.
constexpr auto kOtherKindMark = at::MemoryFormat::Preserve;

bool asks_for_any(const std::optional<InputMetadata>& metadata) {
  return metadata.has_value() && metadata->options().requires_grad_opt() == kAnyMark;
}

bool asks_for_dtype(const std::optional<InputMetadata>& metadata) {
  return metadata.has_value() && metadata->options().requires_grad_opt() == kDtypeMark;
}

InputMetadata with_grad_dtype(const InputMetadata& metadata, GradDtype wanted,
                              const at::Tensor& leaf) {
  const auto& options = metadata.options();
  if (wanted.is_of_tensor()) {
    return with_options(metadata, options, leaf);
  }
  if (wanted.is_any()) {
    return with_options(metadata, options.requires_grad(kAnyMark), leaf);
  }
  auto marked = options.dtype(wanted.dtype()).requires_grad(kDtypeMark);
  if (at::isComplexType(c10::typeMetaToScalarType(metadata.dtype())) !=
      at::isComplexType(wanted.dtype())) {
    marked = marked.memory_format(kOtherKindMark);
  }
  return with_options(metadata, marked, leaf);
}

c10::intrusive_ptr<State> state_behind(const Edge& edge) {
  const auto* leaf = leaf_behind(edge);
  return leaf == nullptr ? c10::intrusive_ptr<State>()
                         : locked_state_of(*leaf->unsafeGetTensorImpl());
}

c10::ScalarType dtype_of(const InputMetadata& metadata) {
  return c10::typeMetaToScalarType(metadata.dtype());
}

GradDtype recorded_in(const InputMetadata& metadata) {
  return asks_for_any(metadata) ? GradDtype::any() : GradDtype::exactly(dtype_of(metadata));
}

// What a view of the tensor behind `edge` is to hand on to it, instead of a gradient of the dtype
// `of_view` that the two have in common: of_tensor() for nothing else. A narrower one can wait
// until the gradient is there, so that sums over it (expand, several uses) are not made in it.
GradDtype demanded_through_views(const Edge& edge, c10::ScalarType of_view) {
  auto wanted = GradDtype::of_tensor();
  if (leaf_behind(edge) != nullptr) {
    const auto state = state_behind(edge);
    wanted = state ? state->grad_dtype : wanted;
  } else if (!edge.function->input_metadata(edge.input_nr).was_default_constructed()) {
    wanted = recorded_in(edge.function->input_metadata(edge.input_nr));
  }
  const bool more =
      wanted.is_any() || (!wanted.is_of_tensor() && wanted.dtype() != of_view &&
                          at::isComplexType(wanted.dtype()) == at::isComplexType(of_view) &&
                          c10::elementSize(wanted.dtype()) >= c10::elementSize(of_view));
  return more ? wanted : GradDtype::of_tensor();
}

struct Demand {
  InputMetadata metadata;
  const Node& node;
};

// The leaf as it is now. An assignment to its .data in another thread waits.
InputMetadata present_metadata(const at::Tensor& leaf) {
  const auto lock = lock_state(*leaf.unsafeGetTensorImpl());
  return InputMetadata(leaf);
}

std::optional<Demand> demand_of_leaf(const Edge& edge) {
  const auto state = state_behind(edge);
  if (!state) {
    return std::nullopt;
  }
  const auto& leaf = *leaf_behind(edge);
  const auto& recorded =
      state->outruns_graphs ? present_metadata(leaf) : edge.function->input_metadata(edge.input_nr);
  return Demand{with_grad_dtype(recorded, state->grad_dtype, leaf), *edge.function};
}

// What the view that `edge` leads to has to hand on to `behind`.
GradDtype wanted_of_view(const Edge& edge, const Edge& behind) {
  const auto& recorded = edge.function->input_metadata(edge.input_nr);
  return recorded.was_default_constructed() || recorded.is_nested_tensor()
             ? GradDtype::of_tensor()
             : demanded_through_views(behind, dtype_of(recorded));
}

std::optional<Demand> demand_of_view(const Edge& edge, const Edge& behind) {
  const auto wanted = wanted_of_view(edge, behind);
  if (wanted.is_of_tensor()) {
    return std::nullopt;
  }
  const auto& recorded = edge.function->input_metadata(edge.input_nr);
  return Demand{with_grad_dtype(recorded, wanted, /*leaf=*/{}), *behind.function};
}

// What the gradient that travels `edge` has to be, or nullopt if stock knows: it does where nothing
// was asked for.
std::optional<Demand> demand_behind(const Edge& edge) {
  if (!edge.function) {
    return std::nullopt;
  }
  if (leaf_behind(edge) != nullptr) {
    return demand_of_leaf(edge);
  }
  const auto* behind = behind_views(edge);
  if (behind != nullptr && behind != &edge) {
    return demand_of_view(edge, *behind);
  }
  const auto& recorded = edge.function->input_metadata(edge.input_nr);
  return asks_for_any(recorded) || asks_for_dtype(recorded)
             ? std::optional<Demand>({recorded, *edge.function})
             : std::nullopt;
}

std::optional<InputMetadata> wanted_behind(const Edge& edge) {
  auto demand = demand_behind(edge);
  return demand ? std::optional<InputMetadata>(std::move(demand->metadata)) : std::nullopt;
}

// `metadata` with `grad`'s own dtype. A leaf that takes any dtype still takes differentiable ones
// only, and a real one no complex gradient.
InputMetadata accepting(const InputMetadata& metadata, const at::Tensor& grad,
                        const FormatError& format_error) {
  const bool complex_leaf = at::isComplexType(dtype_of(metadata));
  TORCH_CHECK(grad.is_floating_point() || (complex_leaf && grad.is_complex()),
              format_error(c10::str("invalid gradient - got ", grad.scalar_type(),
                                    " for a tensor whose grad_dtype is None, but expected a ",
                                    complex_leaf ? "floating point or complex" : "floating point",
                                    " dtype")));
  return with_options(
      metadata, metadata.options().dtype(grad.scalar_type()).requires_grad(c10::nullopt), grad);
}

// The sum over broadcast dimensions is made in the dtype that was asked for, if that is the wider
// one: the gradient of a broadcast bfloat16 bias with a float32 grad_dtype is a float32 sum.
void widen_before_reducing(const InputMetadata& wanted, at::Tensor& grad) {
  const auto dtype = c10::typeMetaToScalarType(wanted.dtype());
  if (asks_for_dtype(wanted) && grad.layout() == at::kStrided && !wanted.is_nested_tensor() &&
      grad.is_floating_point() && at::isFloatingType(dtype) &&
      c10::elementSize(dtype) > c10::elementSize(grad.scalar_type()) &&
      !wanted.is_same_shape(grad)) {
    grad = grad.to(dtype);
  }
}

std::string describe(const InputMetadata& metadata) {
  return c10::str(c10::typeMetaToScalarType(metadata.dtype()), metadata.shape_as_dim_vector(),
                  " on ", metadata.device());
}

bool fits(const InputMetadata& metadata, const at::Tensor& grad) {
  return metadata.is_same_shape(grad) || metadata.is_expandable_to_shape(grad);
}

// Whether `grad` is what `leaf` was when its graph was built, and cannot be what the leaf is now:
// of another shape, or complex where the leaf is real.
bool is_out_of_date(const at::Tensor& leaf, const InputMetadata& recorded,
                    const InputMetadata& wanted, const at::Tensor& grad) {
  if (wanted.is_nested_tensor() || recorded.is_nested_tensor() || grad.is_nested()) {
    return false;
  }
  if (grad.is_complex() && at::isComplexType(dtype_of(recorded)) && !leaf.is_complex()) {
    return true;
  }
  return wanted.shape_as_dim_vector() != recorded.shape_as_dim_vector() &&
         !wanted.is_same_shape(grad) && fits(recorded, grad);
}

// Whether `leaf` has fewer elements than its graph was built with: the storage of a parameter was
// given back between forward and backward, and an empty tensor or one of one element holds the
// place, as offloaders do. Its owner knows what to do with a gradient of the old shape.
bool is_placeholder(const at::Tensor& leaf, const InputMetadata& recorded) {
  c10::SymInt elements = 1;
  for (const auto& size : recorded.shape_as_dim_vector()) {
    elements *= size;
  }
  return leaf.sym_numel() < elements;
}

// What `edge` delivers where `is_out_of_date`: to a placeholder a gradient of the old shape. For
// any other leaf there is no gradient: throws.
InputMetadata for_released_leaf(const Edge& edge, const InputMetadata& wanted,
                                const at::Tensor& grad, size_t index,
                                const FormatError& format_error) {
  const auto& recorded = edge.function->input_metadata(edge.input_nr);
  const auto& leaf = *leaf_behind(edge);
  TORCH_CHECK(
      is_placeholder(leaf, recorded),
      format_error(c10::str(
          "invalid gradient at index ", index, " - got ", grad.scalar_type(), grad.sym_sizes(),
          " for a tensor whose .data was assigned to after the forward pass: it was ",
          describe(recorded), " and is ", describe(wanted),
          " now. Run the forward pass again, or undo the assignment before the backward pass")));
  return with_grad_dtype(recorded, get(*leaf.unsafeGetTensorImpl()), leaf);
}

// Whether the tensor that `wanted` was made of is complex.
bool is_of_complex(const InputMetadata& wanted) {
  const bool other_kind = wanted.options().memory_format_opt() == kOtherKindMark;
  return at::isComplexType(dtype_of(wanted)) != other_kind;
}

int64_t precision(c10::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(c10::toRealValueType(dtype)));
}

// Where a complex tensor has a real grad_dtype, or a real one a complex: the gradient in it. As in
// torch 2.10 it is the tensor that decides which gradients there may be, and stock's validation
// would ask the grad_dtype. What is not widened is summed over broadcast dimensions before. Throws
// for others.
void convert_kind(bool of_complex, const InputMetadata& wanted, at::Tensor& grad,
                  const FormatError& format_error) {
  const auto dtype = dtype_of(wanted);
  if (!asks_for_dtype(wanted) || at::isComplexType(dtype) == of_complex ||
      !(at::isFloatingType(dtype) || at::isComplexType(dtype))) {
    return;
  }
  TORCH_CHECK(
      grad.is_floating_point() || grad.is_complex() == of_complex,
      format_error(c10::str(
          "invalid gradient - got ", grad.scalar_type(), " for a ", of_complex ? "complex" : "real",
          " tensor, but expected a floating point ", of_complex ? "or complex " : "", "dtype")));
  if (grad.layout() == at::kStrided && precision(dtype) <= precision(grad.scalar_type()) &&
      !wanted.is_same_shape(grad) && wanted.is_expandable_to_shape(grad)) {
    grad = wanted.reduce_grad(grad);
  }
  grad = grad.to(dtype);
}

// A copy of `grad` in its own dtype, laid out as AccumulateGrad lays out a first gradient.
at::Tensor first_gradient(const at::Tensor& grad, const at::Tensor& leaf) {
  if (!leaf.is_non_overlapping_and_dense()) {
    return grad.clone(at::MemoryFormat::Contiguous);
  }
  const auto options =
      leaf.options().memory_format(c10::nullopt).dtype(grad.scalar_type()).requires_grad(false);
  return grad.new_empty_strided_symint(leaf.sym_sizes(), leaf.sym_strides(), options).copy_(grad);
}

// Whether AccumulateGrad would copy `grad`, and with the leaf's dtype, to make it the first one.
bool would_be_cast(const at::Tensor& grad, const at::Tensor& leaf, size_t internal_references) {
  if (grad.layout() != at::kStrided || grad.is_nested() || grad.is_mkldnn()) {
    return false;
  }
  const bool takes_over = !at::GradMode::is_enabled() && !leaf.is_sparse_csr() &&
                          at::caching::adjusted_use_count(grad) <= internal_references &&
                          utils::obeys_layout_contract(grad, leaf);
  return !takes_over;
}

}  // namespace

GradDtype get(c10::TensorImpl& impl) {
  const auto state = locked_state_of(impl);
  return state ? state->grad_dtype : GradDtype::of_tensor();
}

void set(c10::TensorImpl& impl, GradDtype grad_dtype) {
  change_state(impl, [grad_dtype](const State* present) {
    return c10::make_intrusive<State>(grad_dtype, present != nullptr && present->outruns_graphs);
  });
}

void outrun_graphs(c10::TensorImpl& impl) {
  change_state(impl, [](const State* present) {
    return c10::make_intrusive<State>(
        present == nullptr ? GradDtype::of_tensor() : present->grad_dtype, true);
  });
}

void describe_former_leaf(InputMetadata& metadata, const at::Tensor& tensor) {
  // What an accumulator records is the leaf's own: the engine asks the leaf.
  if (!tensor.defined() || (tensor.is_leaf() && tensor.requires_grad())) {
    return;
  }
  const auto wanted = get(*tensor.unsafeGetTensorImpl());
  if (wanted.is_of_tensor()) {
    return;
  }
  const auto marked = with_grad_dtype(metadata, wanted, tensor);
  metadata.~InputMetadata();  // its members are const
  new (&metadata) InputMetadata(marked);
}

void declare_output(const at::Tensor& output, GradDtype wanted) {
  static const bool counted = (engine_users.fetch_add(1, std::memory_order_relaxed), true);
  (void)counted;
  const auto& node = output.grad_fn();
  TORCH_CHECK(node && !output.is_nested(), "it has no node that could hold it");
  const auto index = static_cast<size_t>(output.output_nr());
  std::vector<InputMetadata> all;
  for (size_t i = 0; i < node->num_inputs(); ++i) {
    const auto& metadata = node->input_metadata(i);
    all.push_back(i == index ? with_grad_dtype(metadata, wanted, output) : metadata);
  }
  node->clear_input_metadata();
  for (const auto& metadata : all) {
    add_input(*node, metadata);
  }
}

GradDtype of_output(const at::Tensor& output) {
  const auto& node = output.grad_fn();
  const auto index = static_cast<size_t>(output.output_nr());
  return node && index < node->num_inputs() &&
                 !node->input_metadata(index).was_default_constructed()
             ? recorded_in(node->input_metadata(index))
             : GradDtype::exactly(output.scalar_type());
}

GradDtype demanded_over(const Edge& edge) {
  if (!engine_in_use() || !edge.function) {
    return GradDtype::of_tensor();
  }
  if (leaf_behind(edge) != nullptr) {
    const auto state = state_behind(edge);
    return state ? state->grad_dtype : GradDtype::of_tensor();
  }
  const auto* behind = behind_views(edge);
  if (behind != nullptr && behind != &edge) {
    return wanted_of_view(edge, *behind);
  }
  const auto& recorded = edge.function->input_metadata(edge.input_nr);
  return recorded.was_default_constructed() ? GradDtype::of_tensor() : recorded_in(recorded);
}

const Node& demanding_node(const Edge& edge) {
  const auto demand = demand_behind(edge);
  return demand ? demand->node : *edge.function;
}

std::vector<const at::Tensor*> leaves_behind(const Edge& edge) {
  constexpr size_t kMostNodes = 128;
  std::vector<const at::Tensor*> leaves;
  std::unordered_set<const Node*> seen;
  std::vector<Edge> left;
  if (demand_behind(edge)) {
    left.push_back(edge);
  }
  while (!left.empty()) {
    const Edge at = std::move(left.back());
    left.pop_back();
    if (!at.function || !seen.insert(at.function.get()).second) {
      continue;
    }
    if (seen.size() > kMostNodes) {
      return {};
    }
    if (const auto* leaf = leaf_behind(at)) {
      leaves.push_back(leaf);
    }
    left.insert(left.end(), at.function->next_edges().begin(), at.function->next_edges().end());
  }
  return leaves;
}

KeepAcrossSetData::KeepAcrossSetData(const at::TensorBase& self) {
  auto& impl = *self.unsafeGetTensorImpl();
  if (Scope::of(impl) == nullptr) {
    scope_ = std::make_unique<Scope>(impl);
  }
}

KeepAcrossSetData::~KeepAcrossSetData() = default;

void LeafGradients::take(const edge_list& edges, variable_list& grads,
                         const FormatError& format_error) {
  if (edges.size() != grads.size()) {
    return;  // the stock validation has the words for it
  }
  for (size_t i = 0; i < edges.size(); ++i) {
    auto wanted = grads[i].defined() ? wanted_behind(edges[i]) : std::nullopt;
    if (!wanted) {
      continue;
    }
    const auto* leaf = leaf_behind(edges[i]);
    if (leaf != nullptr) {
      const auto& recorded = edges[i].function->input_metadata(edges[i].input_nr);
      if (is_out_of_date(*leaf, recorded, *wanted, grads[i])) {
        wanted.emplace(for_released_leaf(edges[i], *wanted, grads[i], i, format_error));
      }
    }
    const bool of_complex = leaf != nullptr ? leaf->is_complex() : is_of_complex(*wanted);
    convert_kind(of_complex, *wanted, grads[i], format_error);
    wanted_.resize(grads.size());
    taken_.resize(grads.size());
    wanted_[i].emplace(std::move(*wanted));
    taken_[i] = std::move(grads[i]);
    grads[i] = at::Tensor();
  }
}

void LeafGradients::validate_into(variable_list& grads, const FormatError& format_error) {
  widen_before_reducing(wanted_, taken_);
  const auto resolved = resolve_any(wanted_, taken_, format_error);
  validate_outputs(resolved ? *resolved : wanted_, taken_, format_error);
  for (size_t i = 0; i < taken_.size(); ++i) {
    if (taken_[i].defined()) {
      grads[i] = std::move(taken_[i]);
    }
  }
}

void widen_before_reducing(const OptionalMetadata& metadata, variable_list& grads) {
  for (size_t i = 0; i < std::min(metadata.size(), grads.size()); ++i) {
    if (metadata[i] && grads[i].defined()) {
      widen_before_reducing(*metadata[i], grads[i]);
    }
  }
}

std::optional<OptionalMetadata> resolve_any(const OptionalMetadata& metadata,
                                            const variable_list& grads,
                                            const FormatError& format_error) {
  std::optional<OptionalMetadata> resolved;
  if (metadata.size() != grads.size()) {
    return resolved;
  }
  for (size_t i = 0; i < metadata.size(); ++i) {
    if (!asks_for_any(metadata[i]) || !grads[i].defined()) {
      continue;
    }
    if (!resolved) {
      resolved.emplace(metadata);
    }
    (*resolved)[i].emplace(accepting(*metadata[i], grads[i], format_error));
  }
  return resolved;
}

void describe_leaves(const edge_list& edges, OptionalMetadata& metadata) {
  if (!engine_in_use() || metadata.size() != edges.size()) {
    return;
  }
  for (size_t i = 0; i < edges.size(); ++i) {
    if (auto wanted = metadata[i] ? wanted_behind(edges[i]) : std::nullopt) {
      metadata[i].emplace(std::move(*wanted));
    }
  }
}

void specialize_on(const at::Tensor& leaf, dynamo::autograd::CompiledNodeArgs& args) {
  args.collect(get(*leaf.unsafeGetTensorImpl()).code());
}

bool accumulate_as_wanted(AccumulateGrad& node, variable_list& grads, std::mutex& node_mutex) {
  const at::Tensor& leaf = node.variable;
  if (grads.size() != 1 || !grads[0].defined() || grads[0].scalar_type() == leaf.scalar_type() ||
      leaf.grad_fn() || !leaf.requires_grad() || get(*leaf.unsafeGetTensorImpl()).is_of_tensor()) {
    return false;
  }
  const at::Tensor grad = std::move(grads[0]);
  const std::lock_guard<std::mutex> lock(node_mutex);
  at::Tensor& accumulated = leaf.mutable_grad();
  // The engine holds one more reference while the node has post hooks (DDP's all-reduce).
  const size_t internal_references = 1 + (node.post_hooks().empty() ? 0 : 1);
  if (!accumulated.defined() && would_be_cast(grad, leaf, internal_references)) {
    accumulated = first_gradient(grad, leaf);
  } else {
    AccumulateGrad::accumulateGrad(
        leaf, accumulated, grad, internal_references,
        [&accumulated](at::Tensor&& sum) { accumulated = std::move(sum); });
  }
  if (auto& hook = node.tensor_post_acc_grad_hooks()) {
    (*hook)(leaf);
  }
  return true;
}

}  // namespace torch::autograd::grad_dtype
