// What torch's headers do not say about the IR of torch_xla 2.6 to 2.9. Everything here that
// another build could have changed is in the first section.

#include "torch_xla/csrc/castoff/lazy_ir.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cumprod_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/permute_copy_ops.h>
#include <ATen/ops/view_copy_ops.h>
#include <c10/core/TensorImpl.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "torch_xla/csrc/castoff/kernels.h"

namespace castoff::lazy_ir {
namespace {

// ---- the ABI of torch_xla

// GNU build ids of _XLAC.so in the wheels of these releases. A self-test in each process says
// whether it may go on.
constexpr std::array<std::string_view, 12> kBuildIds = {
    // 2.9.0, for CPython 3.10 to 3.13
    "8c5718ff11eb3cf53cbae6e899d3deced2e63d92",
    "54c22d4a890e14d6f69d8b9dc9b69c93bdb6e9da",
    "70180cc571356c5282557f9fab547c1caecf0290",
    "9549defee13c5f2335e0596cbd2529eadca2f34c",
    // 2.8.1, for CPython 3.10 to 3.13
    "fe2315918f996da7497de83a2ea39b85c283936d",
    "9ff0f9a26e460839e889f8a21f463ccc27f73add",
    "2b6ab5e912e08dfdd6ab997419c9ca69e54acb10",
    "09899f205a690dc53e9d8a9182e5c679c07827d8",
    // 2.7.0, for CPython 3.10 and 3.11
    "d0bd47860e78183b7f9261a79ab5d71b4ad05344",
    "44dc8788637185a5e348c7cd6f784465ad7bf981",
    // 2.6.0, for CPython 3.10 and 3.11
    "528569274b4b2bda9d541d73f94466707b520f99",
    "0e802deae08ae22a719df8729a6a63ebddaaae2a",
};

// torch_xla's TensorImpl begins with a pointer to a LazyTensor.
struct TensorImplLayout : c10::TensorImpl {
  c10::intrusive_ptr<torch::lazy::LazyTensor> tensor;
};

// Who has a tensor's Data: torch_xla's class and its base class.
constexpr long kDataOwners = 2;

// Its nodes begin with the dimensions that are dynamic without a bound, and with an xla::Shape that
// begins with the element type (a tuple has its own).
struct NodeLayout : Node {
  std::unordered_set<uint32_t> unbounded_dimensions;
  int32_t element_type;
};
constexpr int32_t kTuple = 13;

// Its nodes' first virtual function after torch::lazy::Node's: Clone.
using Clone = NodePtr (*)(const Node*, torch::lazy::OpList);
constexpr size_t kCloneSlot = 10;

// A node's text has its xla::Shape after this, and SPMD's virtual device begins with that.
constexpr std::string_view kShapeInText = "xla_shape=";
constexpr std::string_view kSpmdDevice = "SPMD";

// ---- the loaded _XLAC.so

struct Module {
  std::string build_id;  // empty: it has none
  uintptr_t begin = 0, end = 0;

  bool contains(const void* p) const {
    const auto address = reinterpret_cast<uintptr_t>(p);
    return begin <= address && address < end;
  }
};

std::string hex(const unsigned char* bytes, size_t size) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

// The build id among the notes of one segment, or nothing.
std::string build_id_in(const char* notes, size_t size) {
  const auto aligned = [](size_t n) { return (n + 3) & ~size_t{3}; };
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= size;) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof(note));
    const size_t name = at + sizeof(note);
    const size_t description = name + aligned(note.n_namesz);
    if (description + note.n_descsz > size) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes + name, "GNU", 4) == 0) {
      return hex(reinterpret_cast<const unsigned char*>(notes) + description, note.n_descsz);
    }
    at = description + aligned(note.n_descsz);
  }
  return "";
}

int find_module(dl_phdr_info* info, size_t, void* result) {
  const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  if (path.substr(path.rfind('/') + 1).substr(0, 6) != "_XLAC.") return 0;
  auto& module = *static_cast<Module*>(result);
  module.begin = UINTPTR_MAX;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_NOTE && module.build_id.empty()) {
      module.build_id = build_id_in(reinterpret_cast<const char*>(begin), segment.p_memsz);
    } else if (segment.p_type == PT_LOAD) {
      module.begin = std::min(module.begin, begin);
      module.end = std::max<uintptr_t>(module.end, begin + segment.p_memsz);
    }
  }
  return 1;
}

const Module& module() {
  static const Module found = [] {
    Module m;
    dl_iterate_phdr(find_module, &m);
    return m;
  }();
  return found;
}

const void* const* vtable(const void* object) {
  return *static_cast<const void* const* const*>(object);
}

// ---- text

// The part of a node's text that is the xla::Shape of one of its outputs, from its element type on:
// "f32[6,4]{1,0}, …", or nothing.
std::string_view shape_text(std::string_view text, size_t index) {
  const size_t found = text.find(kShapeInText);
  if (found == std::string_view::npos) return {};
  text.remove_prefix(found + kShapeInText.size());
  if (text.substr(0, 1) != "(") return index == 0 ? text : std::string_view{};
  text.remove_prefix(1);
  for (; index > 0; --index) {  // a comma followed by a blank stands between shapes alone
    const size_t next = text.find(", ");
    if (next == std::string_view::npos || text.find(')') < next) return {};
    text.remove_prefix(next + 2);
  }
  return text;
}

struct Named {
  ElementType type;
  std::string_view name;
};

constexpr Named kNames[] = {
    {ElementType::kPred, "pred"},         {ElementType::kS8, "s8"},
    {ElementType::kS16, "s16"},           {ElementType::kS32, "s32"},
    {ElementType::kS64, "s64"},           {ElementType::kU8, "u8"},
    {ElementType::kU16, "u16"},           {ElementType::kU32, "u32"},
    {ElementType::kU64, "u64"},           {ElementType::kF16, "f16"},
    {ElementType::kF32, "f32"},           {ElementType::kF64, "f64"},
    {ElementType::kC64, "c64"},           {ElementType::kBF16, "bf16"},
    {ElementType::kC128, "c128"},         {ElementType::kF8E5M2, "f8e5m2"},
    {ElementType::kF8E4M3FN, "f8e4m3fn"},
};

ElementType type_in_text(const Output& output) {
  const std::string text = output.node->ToString();
  const std::string_view shape = shape_text(text, output.index);
  const std::string_view name = shape.substr(0, std::min(shape.find('['), shape.size()));
  for (const Named& named : kNames) {
    if (named.name == name) return named.type;
  }
  return ElementType::kUnknown;
}

// ---- tensors

// The tensor behind the implementation; of a tensor for which data_of() has something.
const torch::lazy::LazyTensorPtr& lazy_of(const at::Tensor& tensor) {
  return static_cast<const TensorImplLayout*>(tensor.unsafeGetTensorImpl())->tensor;
}

// ---- views

at::Tensor view_copy(const at::Tensor& t, const std::vector<int64_t>& sizes) {
  return at::_ops::view_copy::redispatch(kXla, t, c10::fromIntArrayRefSlow(sizes));
}

// What a tensor of torch_xla's holds. Without functionalization a view has no IR yet: the operand
// of a cast to any other dtype is what it will have.
Value ir_of(const at::Tensor& t) {
  Data* data = data_of(t);
  if (data == nullptr || data->ir_value) return data == nullptr ? Value() : data->ir_value;
  const at::Tensor other =
      cast(t, c10::isIntegralType(t.scalar_type(), true) ? at::kFloat : at::kInt);
  data = data_of(other);
  return data == nullptr || !data->ir_value ? Value() : operand(*data->ir_value.node, 0);
}

// Views a value through torch_xla's kernel, on a tensor made for it.
Value view_of(const Value& input, const std::vector<int64_t>& sizes, const at::Tensor& like) {
  const at::Tensor scratch =
      cast(like, c10::isIntegralType(like.scalar_type(), true) ? at::kFloat : at::kInt);
  Data* data = data_of(scratch);
  if (data == nullptr) return {};
  data->ir_value = input;
  ++data->generation;  // makes the tensor read its sizes anew
  return ir_of(view_copy(scratch, sizes));
}

// ---- casts

struct Mapping {
  at::ScalarType dtype;
  ElementType type;
  bool integral;
};

constexpr Mapping kMappings[] = {
    {at::kBool, ElementType::kPred, true},  {at::kByte, ElementType::kU8, true},
    {at::kChar, ElementType::kS8, true},    {at::kShort, ElementType::kS16, true},
    {at::kInt, ElementType::kS32, true},    {at::kLong, ElementType::kS64, true},
    {at::kHalf, ElementType::kF16, false},  {at::kBFloat16, ElementType::kBF16, false},
    {at::kFloat, ElementType::kF32, false}, {at::kDouble, ElementType::kF64, false},
};

// torch_xla's cumprod of int64, or in it, leaves the device.
bool is_cumprods(at::ScalarType dtype) {
  const auto is_it = [&](const Mapping& mapping) { return mapping.dtype == dtype; };
  return dtype != at::kLong && std::any_of(std::begin(kMappings), std::end(kMappings), is_it);
}

// torch_xla's cumprod, called for the tensor that it makes.
std::optional<PresentKernel> cumprod_kernel;

const c10::OperatorHandle& cumprod_op() {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::cumprod", "");
  return handle;
}

// A tensor of the sizes of another one, whose value is yet to be replaced: one node, where `empty`
// makes three. dtype: of the new tensor.
at::Tensor tensor_like(const at::Tensor& like, at::ScalarType dtype) {
  return CallOf<at::_ops::cumprod::schema>::call(*cumprod_kernel, cumprod_op(), kXla, like, 0,
                                                 dtype);
}

// Set once torch_xla has computed a tensor where it was made, as it does in eager mode and where a
// graph has grown to its limit, and if the self-test failed.
std::atomic<bool> left_to_torch_xla{false};

// Whether this thread makes IR to look at, of torch_xla's own kernels.
thread_local bool by_torch_xla = false;

struct ByTorchXla {
  ByTorchXla() { by_torch_xla = true; }
  ~ByTorchXla() { by_torch_xla = false; }
};

// torch_xla's casts from one dtype to another are clones of one node, which is made when the first
// is asked for and stays.
NodePtr make_template(const at::Device& device, at::ScalarType from, at::ScalarType to) {
  const ByTorchXla by;
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor one = at::_ops::empty_memory_format::redispatch(
      kXla, {1}, from, at::kStrided, device, std::nullopt, std::nullopt);
  return ir_of(cast(one, to)).node;
}

// nullptr if the cast is not a node of its own.
const NodePtr& template_of(const at::Device& device, at::ScalarType from, at::ScalarType to) {
  constexpr size_t kTypes = static_cast<size_t>(at::ScalarType::NumOptions);
  static std::array<std::atomic<const NodePtr*>, kTypes * kTypes> all{};
  std::atomic<const NodePtr*>& place =
      all[static_cast<size_t>(from) * kTypes + static_cast<size_t>(to)];
  const NodePtr* found = place.load(std::memory_order_acquire);
  if (C10_LIKELY(found != nullptr)) return *found;
  NodePtr node = make_template(device, from, to);
  if (node != nullptr && node->op() != OpKind::Get("xla::cast")) node = nullptr;
  const auto* made = new NodePtr(std::move(node));  // nodes are not to be deleted at the exit
  if (place.compare_exchange_strong(found, made)) return *made;
  delete made;
  return *found;
}

// ---- the self-test

const OpKind& view_kind() {
  static const OpKind kind = OpKind::Get("aten::view");
  return kind;
}

#define EXPECT(condition) TORCH_CHECK(condition, "expected " #condition)

Value value_of(const at::Tensor& t) {
  const Value value = ir_of(t);
  TORCH_CHECK(value, "expected a tensor with IR");
  return value;
}

void test_cast(const at::Tensor& source, const Mapping& to) {
  const at::Tensor tensor = cast(source, to.dtype);
  const Value value = value_of(tensor);
  EXPECT(value.node->op() == OpKind::Get("xla::cast"));
  EXPECT(value.index == 0 && value.node->num_outputs() == 1);
  EXPECT(value.node->operands().size() == 1);
  EXPECT(operand(*value.node, 0).node == value_of(source).node);
  EXPECT(element_type(value) == type_in_text(value));
  EXPECT(static_sizes(value) == source.sizes().vec());
  EXPECT(!is_annotated(*value.node, source, true));
  EXPECT(clone(*value.node, {value_of(source)})->hash() == value.node->hash());
  // A device that keeps narrow integers in wide ones (Neuron) masks them where they are cast, so
  // that a cast there says less about its values than its element type does.
  const bool narrower = to.dtype == at::kLong && element_type(value) == ElementType::kS32;
  TORCH_CHECK(!to.integral || element_type(value) == to.type || narrower, "this device holds ",
              to.dtype, " in elements of another type");
  if (!is_cumprods(to.dtype)) return;
  const at::Tensor other = tensor_like(source, to.dtype);
  EXPECT(other.scalar_type() == to.dtype && other.sizes() == source.sizes());
}

void test_views(const at::Tensor& source) {
  const at::Tensor wide = cast(source, at::kFloat);
  const Value narrow = value_of(source);
  const at::Tensor permuted = at::_ops::permute_copy::redispatch(kXla, wide, {1, 0});
  const Value permute = value_of(permuted);
  EXPECT(clone(*permute.node, {value_of(wide)})->hash() == permute.node->hash());
  const NodePtr again = clone(*permute.node, {narrow});
  EXPECT(again->op() == permute.node->op() && again->op() == OpKind::Get("aten::permute"));
  EXPECT(element_type(Output(again.get())) == element_type(narrow));
  EXPECT(static_sizes(Output(again.get())) == permuted.sizes().vec());

  const at::Tensor viewed = view_copy(wide, {3, 2});
  const Value view = value_of(viewed);
  EXPECT(view.node->op() == view_kind());
  EXPECT(view_again(*view.node, value_of(wide), wide).node->hash() == view.node->hash());
  const Value narrow_view = view_again(*view.node, narrow, source);
  EXPECT(element_type(narrow_view) == element_type(narrow));
  EXPECT(static_sizes(narrow_view) == viewed.sizes().vec());
}

void self_test(const at::Device& device) {
  const at::Tensor source = at::_ops::empty_memory_format::redispatch(
      kXla, {2, 3}, at::kBFloat16, at::kStrided, device, std::nullopt, std::nullopt);
  EXPECT(data_of(source)->unique_id > 0);
  EXPECT(lazy_of(source)->data().use_count() == kDataOwners);
  EXPECT(element_type(value_of(source)) == ElementType::kBF16);
  for (const Mapping& to : kMappings) {
    if (to.dtype != at::kBFloat16) test_cast(source, to);
  }
  test_views(source);
}

#undef EXPECT

enum class State { kUntested, kPassed, kFailed };
std::atomic<State> state{State::kUntested};
State test(const at::Device& device) {
  const ByTorchXla by;
  // The first kernel that asks may be one above functionalization, such as einsum's.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::AutoDispatchSkipFunctionalize below_functionalization;
  try {
    self_test(device);
    return State::kPassed;
  } catch (const std::exception& e) {
    State untested = State::kUntested;
    if (state.compare_exchange_strong(untested, State::kFailed)) {
      const auto* error = dynamic_cast<const c10::Error*>(&e);
      TORCH_WARN("castoff: exact-casts and the topics that need it are off, as the IR of this ",
                 "torch_xla does not read as in the builds that they were proven on: ",
                 error == nullptr ? e.what() : error->what_without_backtrace(),
                 ". Everything else works as in stock torch_xla.");
    }
    return State::kFailed;
  }
}

}  // namespace

const std::optional<std::string>& refusal() {
  static const std::optional<std::string> reason = []() -> std::optional<std::string> {
    const Module& m = module();
    if (m.end == 0) return "no _XLAC library is loaded";
    if (std::find(kBuildIds.begin(), kBuildIds.end(), m.build_id) != kBuildIds.end()) {
      // No topic has overridden it yet.
      cumprod_kernel.emplace(present_kernel(cumprod_op(), c10::DispatchKey::XLA));
      return std::nullopt;
    }
    return "expected the _XLAC library of a torch_xla wheel from PyPI, 2.6.0 to 2.9.0, found one "
           "with build id " +
           (m.build_id.empty() ? "(none)" : m.build_id);
  }();
  return reason;
}

// Threads that come at once each make the test. None waits for another: one of them may hold the
// GIL and the other, in torch_xla's kernels, want it.
bool ready(const at::Tensor& tensor) {
  State now = state.load(std::memory_order_acquire);
  if (C10_LIKELY(now != State::kUntested)) return now == State::kPassed;
  if (by_torch_xla) return false;
  now = test(tensor.device());
  State untested = State::kUntested;
  return state.compare_exchange_strong(untested, now) ? now == State::kPassed
                                                      : untested == State::kPassed;
}

Data* data_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_bare_xla(tensor)) return nullptr;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!module().contains(vtable(impl))) return nullptr;
  const auto& lazy = lazy_of(tensor);
  return lazy == nullptr ? nullptr : lazy->data().get();
}

Data* data_of(c10::TensorImpl* address) {
  const auto tensor = at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(address));
  return data_of(
      at::functionalization::impl::from_functional_tensor(tensor, /*assert_functional=*/false));
}

torch::lazy::BackendDataPtr replace_value(std::initializer_list<at::Tensor> tensors,
                                          const torch::lazy::BackendDataPtr& buffer,
                                          at::ScalarType dtype, at::IntArrayRef sizes) {
  Data* data = data_of(*tensors.begin());
  if (data == nullptr || data->handle == nullptr || data->ir_value ||
      data->tensor_data.has_value() || buffer == nullptr || data->device != buffer->device() ||
      is_spmd(*data)) {
    return nullptr;
  }
  long lazy_tensors = 0;
  size_t their_owners = 0;
  for (const at::Tensor* tensor = tensors.begin(); tensor != tensors.end(); ++tensor) {
    if (data_of(*tensor) != data || tensor->scalar_type() != dtype || tensor->sizes() != sizes) {
      return nullptr;
    }
    const auto& lazy = lazy_of(*tensor);
    const auto is_same = [&](const at::Tensor& earlier) { return lazy_of(earlier) == lazy; };
    if (std::any_of(tensors.begin(), tensor, is_same)) continue;
    ++lazy_tensors;
    their_owners += lazy.use_count();
  }
  const long owners = lazy_of(*tensors.begin())->data().use_count();
  if (owners != kDataOwners * lazy_tensors || their_owners != tensors.size()) return nullptr;
  return std::exchange(data->handle, buffer);
}

Value operand(const Node& node, size_t i) {
  // Owners of the operands are at hand for derived classes only.
  struct Owners : Node {
    static const std::vector<NodePtr>& of(const Node& n) { return n.*(&Owners::operands_); }
  };
  return Value(Owners::of(node).at(i), node.operand(i).index);
}

void replace_operand(const Value& value, size_t i, const Value& operand) {
  struct Operands : Node {
    static void set(Node& n, size_t i, const Value& to) {
      (n.*(&Operands::operands_)).at(i) = to.node;
      (n.*(&Operands::operands_as_outputs_)).at(i) = Output(to.node.get(), to.index);
    }
  };
  Operands::set(*value.node, i, operand);
}

ElementType element_type(const Output& output) {
  const int32_t type = static_cast<const NodeLayout*>(output.node)->element_type;
  // The types of a tuple are further inside; its text is the safer way there, and rarely gone.
  if (type == kTuple) return type_in_text(output);
  return output.index == 0 ? static_cast<ElementType>(type) : ElementType::kUnknown;
}

// From the node's text: the layout of an xla::Shape's sizes is not worth relying on for the few
// views that a fold crosses. A size that is not static is "<=4" or "?".
std::optional<std::vector<int64_t>> static_sizes(const Output& output) {
  const std::string text = output.node->ToString();
  std::string_view shape = shape_text(text, output.index);
  const size_t open = shape.find('['), close = shape.find(']');
  if (open == std::string_view::npos || close == std::string_view::npos) return std::nullopt;
  shape = shape.substr(open + 1, close - open - 1);
  std::vector<int64_t> sizes;
  while (!shape.empty()) {
    const std::string size(shape.substr(0, shape.find(',')));
    if (size.empty() || size.find_first_not_of("0123456789") != std::string::npos) {
      return std::nullopt;
    }
    sizes.push_back(std::strtoll(size.c_str(), nullptr, 10));
    shape.remove_prefix(std::min(size.size() + 1, shape.size()));
  }
  return sizes;
}

NodePtr clone(const Node& node, const std::vector<Value>& operands) {
  const void* const* functions = vtable(&node);
  TORCH_CHECK(module().contains(functions) && module().contains(functions[kCloneSlot]),
              "expected a node of torch_xla's, found ", node.op());
  return reinterpret_cast<Clone>(const_cast<void*>(functions[kCloneSlot]))(&node, operands);
}

Value view_again(const Node& view, const Value& input, const at::Tensor& like) {
  const std::optional<std::vector<int64_t>> sizes = static_sizes(Output(&view));
  return sizes ? view_of(input, *sizes, like) : Value();
}

at::Tensor tensor_of(const Value& value, const at::Tensor& like) {
  const at::Tensor tensor = view_copy(like, like.sizes().vec());
  Data* data = data_of(tensor);
  if (data == nullptr) return {};
  data->ir_value = value;
  ++data->generation;  // makes the tensor read its sizes anew
  return tensor;
}

at::Tensor cast_of(const at::Tensor& tensor, at::ScalarType dtype) {
  const at::ScalarType from = tensor.scalar_type();
  if (tensor.dim() == 0 || !is_cumprods(from) || !is_cumprods(dtype)) return {};
  if (by_torch_xla || left_to_torch_xla.load(std::memory_order_relaxed)) return {};
  const Value value = unsharded_value(tensor);
  if (!value) return {};
  // torch_xla's own cast fills a tensor with zeros first, which is half of its cost.
  const at::Tensor out = tensor_like(tensor, dtype);
  Data* data = data_of(out);
  const bool is_pending = data != nullptr && data->ir_value && data->handle == nullptr;
  if (!is_pending || !ready(tensor)) {
    left_to_torch_xla.store(true, std::memory_order_relaxed);
    return {};
  }
  const NodePtr& node = template_of(tensor.device(), from, dtype);
  // What a tensor holds can be of another dtype than it says: see held().
  if (node == nullptr || element_type(node->operand(0)) != element_type(value)) return {};
  data->ir_value = clone(*node, {value});
  return out;
}

Value own_node(const Value& value, const at::Tensor& like) {
  const std::optional<std::vector<int64_t>> sizes = static_sizes(value);
  return sizes && value.index == 0 ? view_of(value, *sizes, like) : Value();
}

bool is_spmd(const Data& data) {
  // A device's text is made by a stream, anew each time; its type is a number.
  enum class Answer : uint8_t { kNone, kNo, kYes };
  static std::array<std::atomic<Answer>, 256> answers{};
  std::atomic<Answer>& answer = answers[static_cast<uint8_t>(data.device.type())];
  Answer found = answer.load(std::memory_order_relaxed);
  if (found == Answer::kNone) {
    const bool spmd = data.device.toString().compare(0, kSpmdDevice.size(), kSpmdDevice) == 0;
    found = spmd ? Answer::kYes : Answer::kNo;
    answer.store(found, std::memory_order_relaxed);
  }
  return found == Answer::kYes;
}

Value unsharded_value(const at::Tensor& tensor) {
  const Data* data = data_of(tensor);
  return data == nullptr || is_spmd(*data) ? Value() : data->ir_value;
}

bool is_annotated(const Node& node, const at::Tensor& like, bool spmd) {
  if (!static_cast<const NodeLayout&>(node).unbounded_dimensions.empty()) return true;
  if (!spmd) return false;
  // A sharding is part of the hash, and a new node has none.
  std::vector<Value> operands;
  for (size_t i = 0; i < node.operands().size(); ++i) operands.push_back(operand(node, i));
  const Value again = node.op() == view_kind() ? view_again(node, operands.at(0), like)
                                               : Value(clone(node, operands));
  return !again || again.node->hash() != node.hash();
}

}  // namespace castoff::lazy_ir

// Why this torch_xla's IR is not to be touched; nullptr if it may be.
extern "C" __attribute__((visibility("default"))) const char* castoff_lazy_ir_refusal() {
  const auto& reason = castoff::lazy_ir::refusal();
  return reason ? reason->c_str() : nullptr;
}
