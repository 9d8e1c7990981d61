// A replayed call's work on its hundreds of tensors, for torch_xla/_step_replay/tensors.py.
//
// From call to call only donated buffers are kept.

#include <ATen/Context.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/csrc/castoff/view_metas.h>
#include <torch/csrc/lazy/backend/backend_data.h>
#include <torch/csrc/lazy/backend/backend_device.h>
#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/hash.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/csrc/lazy/core/tensor.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/step_replay.h"

namespace castoff::step_replay {
namespace {

namespace functionalization = at::functionalization::impl;
using torch::lazy::BackendDataPtr;

// ---- functions of torch_xla's and torch's

using LazyTensorPtr = c10::intrusive_ptr<torch::lazy::LazyTensor>;  // torch_xla's derives from it
using torch::lazy::BackendDevice;

struct Executor : torch::lazy::LazyGraphExecutor {
  using LazyGraphExecutor::DeviceContextArena;
};

struct Functions {
  void* (*executor)();
  // What _run_cached_graph does before it makes a tensor of Python of each result.
  std::vector<BackendDataPtr> (*execute)(void* executor, torch::lazy::hash_t graph,
                                         const std::vector<at::IValue>& inputs,
                                         const BackendDevice& device);
  // What it does then.
  LazyTensorPtr (*create)(BackendDataPtr buffer, std::optional<at::ScalarType> dtype);
  at::Tensor (*wrap)(LazyTensorPtr tensor, bool skip_functionalization);
  BackendDevice (*current_device)();
  Executor::DeviceContextArena* (*arena)();
  void* (*object_of)(const at::TensorBase& tensor);
};

std::optional<Functions> find() {
  Function found[] = {
      {"_ZN9torch_xla16XLAGraphExecutor3GetEv"},
      {"_ZN9torch_xla16XLAGraphExecutor29ExecuteComputationWithBarrierEN5torch4lazy6hash_tERKSt6"
       "vectorIN3c106IValueESaIS6_EERKNS2_13BackendDeviceE"},
      {"_ZN9torch_xla9XLATensor6CreateESt10shared_ptrIN5torch4lazy11BackendDataEESt8optionalIN3c1"
       "010ScalarTypeEE"},
      {"_ZN9torch_xla6bridge17AtenFromXlaTensorEN3c1013intrusive_ptrINS_9XLATensorENS1_6detail34"
       "intrusive_target_default_null_typeIS3_EEEEb"},
      {"_ZN9torch_xla6bridge16GetCurrentDeviceEv"},
      {"_ZN9torch_xla16XLAGraphExecutor18DeviceContextArena3GetEv"},
  };
  void* python = ::dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
  if (python == nullptr) return std::nullopt;
  void* object_of = ::dlsym(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE");
  if (object_of == nullptr || !find_functions(found, std::size(found))) return std::nullopt;
  Functions functions{};
  std::memcpy(&functions.executor, &found[0].address, sizeof(void*));
  std::memcpy(&functions.execute, &found[1].address, sizeof(void*));
  std::memcpy(&functions.create, &found[2].address, sizeof(void*));
  std::memcpy(&functions.wrap, &found[3].address, sizeof(void*));
  std::memcpy(&functions.current_device, &found[4].address, sizeof(void*));
  std::memcpy(&functions.arena, &found[5].address, sizeof(void*));
  std::memcpy(&functions.object_of, &object_of, sizeof(void*));
  return functions;
}

const std::optional<Functions>& functions() {
  static const std::optional<Functions> found = find();
  return found;
}

// ---- tensors

at::FunctionalTensorWrapper& wrapper_of(Object object) {
  c10::TensorImpl& impl = impl_of(object);
  TORCH_CHECK(impl.key_set().has(c10::DispatchKey::Functionalize),
              "expected a tensor of the device in functionalization's wrapper, found one of ",
              impl.dtype(), " on ", impl.device());
  return static_cast<at::FunctionalTensorWrapper&>(impl);
}

at::Tensor tensor_of(at::FunctionalTensorWrapper& wrapper) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(&wrapper));
}

// What tensors had before a call. Of those that the graph took as donations the buffers hold no
// memory, and to release one waits for that graph: the host goes on, and releases them when the
// next graph was started.
struct Replaced {
  std::vector<at::Tensor> values;
  std::vector<BackendDataPtr> buffers;
};

void keep_donated(Replaced donated) {
  static std::mutex mutex;
  static auto* kept = new Replaced();  // never freed: XLA's runtime ends first
  const std::lock_guard<std::mutex> guard(mutex);
  std::swap(*kept, donated);
}

// A result of a graph, and what it was when it was first looked at.
struct Result {
  const BackendDataPtr& buffer;
  at::ScalarType dtype;
  at::IntArrayRef sizes;
};

// Lets a tensor have another value where that is all there is to do: no other tensor aliases it,
// and what it has as its value is what its storage has. The buffer that it had, or nullptr.
BackendDataPtr give_in_place(const at::FunctionalTensorWrapper& wrapper, const Result& result) {
  const at::Tensor& own = wrapper.value();
  const at::Tensor& base = torch::castoff::memory_of(wrapper).base();
  const bool same = own.is_same(base);
  if (wrapper.storage().use_count() != 1 || !wrapper.is_up_to_date() ||
      own.use_count() != (same ? 2 : 1) || base.use_count() != (same ? 2 : 1) ||
      !lazy_ir::ready(own)) {
    return nullptr;
  }
  // A parameter is a view, by detach(), of the tensor that it was made of, and has its data.
  return same ? lazy_ir::replace_value({own}, result.buffer, result.dtype, result.sizes)
              : lazy_ir::replace_value({own, base}, result.buffer, result.dtype, result.sizes);
}

// Lets a tensor, and what aliases it, have another value.
void give_in_general(const at::Tensor& tensor, const at::Tensor& value, Replaced& before) {
  before.values.push_back(functionalization::unsafeGetFunctionalWrapper(tensor)->value());
  functionalization::replace_(tensor, value);
  functionalization::commit_update(tensor);
  functionalization::sync(tensor);
  // So that the next call finds one value.
  torch::castoff::memory_of(*functionalization::unsafeGetFunctionalWrapper(tensor)).apply_updates();
}

// The tensor that _run_cached_graph would have made of a result.
at::Tensor made_of(const BackendDataPtr& buffer) {
  return functions()->wrap(functions()->create(buffer, std::nullopt), false);
}

void give(at::FunctionalTensorWrapper& wrapper, const Result& result, Replaced& before) {
  if (BackendDataPtr buffer = give_in_place(wrapper, result)) {
    before.buffers.push_back(std::move(buffer));
  } else {
    const at::Tensor made = made_of(result.buffer);
    const at::Tensor& value = functionalization::unsafeGetFunctionalWrapper(made)->value();
    give_in_general(tensor_of(wrapper), value, before);
  }
  if (!wrapper.is_inference()) wrapper.bump_version();  // backward() of who saved it says so
}

bool is_count(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.scalar_type() == at::kFloat &&
         tensor.numel() == 1 && !tensor.is_conj() && !tensor.is_neg() && tensor.has_storage();
}

// ---- what is pending

// What torch_xla knows of the tensors of a device.
struct Arena : Executor::DeviceContextArena {
  // Whether all of them are computed, and on the device.
  static bool all_computed(DeviceContextArena& arena, const BackendDevice& device) {
    DeviceContext& context = *(arena.*&Arena::GetDeviceContext)(device);
    // Who frees the last owner takes the lock.
    std::vector<std::shared_ptr<torch::lazy::LazyTensor::Data>> owners;
    const std::lock_guard<std::mutex> guard(context.lock);
    owners.reserve(context.tensors_data.size());
    for (const auto& [number, data] : context.tensors_data) {
      owners.push_back(data.lock());
      if (owners.back() != nullptr && !is_computed(*owners.back())) return false;
    }
    return true;
  }

  // What was sent to the device has its buffer in a node; a clone would have it together with what
  // it was made of, and is computed before that gets another value.
  static bool is_computed(const torch::lazy::LazyTensor::Data& data) {
    static const auto sent = torch::lazy::OpKind::Get("xla::device_data");
    if (data.handle != nullptr) return true;
    const torch::lazy::NodePtr& node = data.ir_value.node;
    if (node == nullptr || node->op() != sent || node.use_count() != 1) return false;
    const auto buffer = torch::lazy::getBackend()->GetComputationDataFromNode(node.get());
    return buffer != nullptr && buffer.use_count() == 2;  // the node's, and this
  }
};

// The buffer of a computed tensor, or nullptr.
BackendDataPtr buffer_of(const at::FunctionalTensorWrapper& wrapper) {
  const torch::lazy::LazyTensor::Data* data = lazy_ir::data_of(wrapper.value());
  if (data == nullptr || data->handle != nullptr) return data == nullptr ? nullptr : data->handle;
  const torch::lazy::Node* node = data->ir_value.node.get();
  return node == nullptr ? nullptr : torch::lazy::getBackend()->GetComputationDataFromNode(node);
}

// ---- a call

// As _step_replay/tensors.py lays it out.
struct Call {
  const torch::lazy::hash_t* graph;
  size_t inputs;
  const Object* input;
};

struct Gifts {
  size_t targets;
  const Object* target;
  const int64_t* output;  // the number of the result that each of them gets
  const int64_t* shapes;  // of each such result the dtype, the number of dimensions and the sizes
  size_t donated;         // the graph took the buffers of so many of the first ones
};

// The results of the call that this thread has started, until they are given.
thread_local std::vector<BackendDataPtr> results;

const BackendDataPtr& result_of(int64_t number) {
  TORCH_CHECK(static_cast<size_t>(number) < results.size(), "expected more than ", number,
              " results, found ", results.size());
  return results[number];
}

void start(const Call& call) {
  TORCH_CHECK(functions(), "expected a torch_xla that says where its functions are");
  std::vector<at::IValue> inputs;
  inputs.reserve(call.inputs);
  for (size_t i = 0; i < call.inputs; ++i) {
    const bool is_sent = impl_of(call.input[i]).device().is_cpu();  // torch_xla sends it
    inputs.emplace_back(is_sent ? step_replay::tensor_of(call.input[i])
                                : wrapper_of(call.input[i]).value());
  }
  results.clear();
  results = functions()->execute(functions()->executor(), *call.graph, inputs,
                                 functions()->current_device());
}

void give_all(const Gifts& gifts) {
  std::vector<at::FunctionalTensorWrapper*> found;
  std::vector<Result> values;
  found.reserve(gifts.targets);
  values.reserve(gifts.targets);
  const int64_t* shape = gifts.shapes;
  for (size_t i = 0; i < gifts.targets; ++i) {
    found.push_back(&wrapper_of(gifts.target[i]));
    const auto dtype = static_cast<at::ScalarType>(*shape++);
    const auto dimensions = static_cast<size_t>(*shape++);
    values.push_back({result_of(gifts.output[i]), dtype, at::IntArrayRef(shape, dimensions)});
    shape += dimensions;
  }
  Replaced donations, others;
  for (size_t i = 0; i < found.size(); ++i) {
    give(*found[i], values[i], i < gifts.donated ? donations : others);
  }
  keep_donated(std::move(donations));
}

}  // namespace
}  // namespace castoff::step_replay

using namespace castoff::step_replay;

extern "C" {

// Lets tensors have what was written to those that alias them; nullptr stands for none.
__attribute__((visibility("default"))) const char* castoff_step_replay_sync(const Object* tensors,
                                                                            size_t count) {
  return told([&] {
    for (size_t i = 0; i < count; ++i) {
      if (tensors[i] != nullptr) wrapper_of(tensors[i]).sync_();
    }
  });
}

// Whether calls can be started here: torch_xla's functions are known.
__attribute__((visibility("default"))) bool castoff_step_replay_can_start() {
  bool can = false;
  return told([&] { can = functions().has_value(); }) == nullptr && can;
}

// What changes the graphs of this thread, as one number: modes of torch's, and the device's type,
// which is another one under SPMD.
__attribute__((visibility("default"))) uint64_t castoff_step_replay_modes() {
  namespace autocast = at::autocast;
  const int device = functions() ? functions()->current_device().type() : 0;
  uint64_t all = 0;
  for (const bool is_on :
       {at::GradMode::is_enabled(), c10::InferenceMode::is_enabled(),
        autocast::is_autocast_enabled(at::kXLA), autocast::is_autocast_enabled(at::kCPU),
        autocast::is_autocast_cache_enabled(), at::globalContext().deterministicAlgorithms()}) {
    all = all << 1 | static_cast<uint64_t>(is_on);
  }
  for (const int number : {static_cast<int>(autocast::get_autocast_dtype(at::kXLA)),
                           static_cast<int>(c10::get_default_dtype_as_scalartype()), device}) {
    all = all << 8 | static_cast<uint8_t>(number);
  }
  return all;
}

// Whether all tensors of the device are known to be computed.
__attribute__((visibility("default"))) bool castoff_step_replay_all_computed() {
  bool all = false;
  return told([&] {
           all = functions() &&
                 Arena::all_computed(*functions()->arena(), functions()->current_device());
         }) == nullptr &&
         all;
}

// Of which tensors another one may have the buffer, by torch's
// castoff_graph_identity_is_shared_buffer.
__attribute__((visibility("default"))) const char* castoff_step_replay_find_shared(
    const Object* tensors, size_t count, bool (*is_shared)(const BackendDataPtr&), bool* shared) {
  return told([&] {
    for (size_t i = 0; i < count; ++i) {
      const BackendDataPtr buffer = buffer_of(wrapper_of(tensors[i]));
      shared[i] = buffer != nullptr && is_shared(buffer);
    }
  });
}

// Starts a graph, whose results this thread keeps.
__attribute__((visibility("default"))) const char* castoff_step_replay_start(const Call* call) {
  return told([&] { start(*call); });
}

// Gives results to tensors, and forgets them. All are looked at before any is changed.
__attribute__((visibility("default"))) const char* castoff_step_replay_give(const Gifts* gifts) {
  return told([&] {
    give_all(*gifts);
    results.clear();
  });
}

// A tensor of Python of a result; nullptr if there is none.
__attribute__((visibility("default"))) void* castoff_step_replay_result(int64_t number) {
  void* object = nullptr;
  told([&] { object = functions()->object_of(made_of(result_of(number))); });
  return object;
}

// Gives tensors the values of as many others, as the above does.
__attribute__((visibility("default"))) const char* castoff_step_replay_copy(const Object* tensors,
                                                                            const Object* values,
                                                                            size_t count,
                                                                            size_t donated) {
  return told([&] {
    std::vector<std::pair<at::FunctionalTensorWrapper*, at::Tensor>> found;
    found.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      found.emplace_back(&wrapper_of(tensors[i]), wrapper_of(values[i]).value());
    }
    Replaced donations, others;
    for (size_t i = 0; i < count; ++i) {
      const auto& [wrapper, value] = found[i];
      give_in_general(tensor_of(*wrapper), value, i < donated ? donations : others);
      if (!wrapper->is_inference()) wrapper->bump_version();
    }
    keep_donated(std::move(donations));
  });
}

// Counts up tensors on the CPU by one. False, and none is changed, if one is no count in float32.
__attribute__((visibility("default"))) bool castoff_step_replay_count(const Object* tensors,
                                                                      size_t count) {
  std::vector<at::Tensor> found;
  const char* error = told([&] {
    found.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      found.push_back(tensor_of(tensors[i]));
      TORCH_CHECK(is_count(found.back()), "expected a count");
    }
    for (const at::Tensor& tensor : found) {
      ++*tensor.mutable_data_ptr<float>();
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    }
  });
  return error == nullptr;
}

}  // extern "C"
