// What a replayed call does with each of its hundreds of tensors, for
// torch_xla/_step_replay/tensors.py.
//
// From call to call only donated buffers are kept.

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/lazy/backend/backend_data.h>

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/step_replay.h"

namespace castoff::step_replay {
namespace {

namespace functionalization = at::functionalization::impl;

at::Tensor wrapper_of(Object object) {
  at::Tensor tensor = tensor_of(object);
  TORCH_CHECK(functionalization::isFunctionalTensor(tensor),
              "expected a tensor of the device in functionalization's wrapper, found ",
              tensor.toString(), " on ", tensor.device());
  return tensor;
}

std::vector<at::Tensor> wrappers_of(const Object* objects, size_t count) {
  std::vector<at::Tensor> found;
  found.reserve(count);
  for (size_t i = 0; i < count; ++i) found.push_back(wrapper_of(objects[i]));
  return found;
}

// What tensors had before a call. Of those that the graph took as donations the buffers hold no
// memory, and to release one waits for that graph: the host goes on, and releases them when the
// next graph was started.
struct Replaced {
  std::vector<at::Tensor> values;
  std::vector<torch::lazy::BackendDataPtr> buffers;
};

void keep_donated(Replaced donated) {
  static std::mutex mutex;
  static auto* kept = new Replaced();  // never freed: XLA's runtime ends first
  const std::lock_guard<std::mutex> guard(mutex);
  std::swap(*kept, donated);
}

at::Tensor value_of(const at::Tensor& wrapper) {
  return functionalization::unsafeGetFunctionalWrapper(wrapper)->value();
}

at::functionalization::FunctionalStorageImpl* storage_of(const at::Tensor& wrapper) {
  return static_cast<at::functionalization::FunctionalStorageImpl*>(
      wrapper.storage().unsafeGetStorageImpl());
}

// Lets a tensor have another value where that is all there is to do: no other tensor aliases it,
// and what it has as its value is what its storage has. The buffer that it had, or nullptr.
torch::lazy::BackendDataPtr give_in_place(const at::Tensor& wrapper, const at::Tensor& value) {
  const auto* impl = functionalization::unsafeGetFunctionalWrapper(wrapper);
  const at::Tensor& own = impl->value();
  const at::Tensor& base = storage_of(wrapper)->base();
  const bool same = own.is_same(base);
  if (wrapper.storage().use_count() != 1 || !impl->is_up_to_date() ||
      own.use_count() != (same ? 2 : 1) || base.use_count() != (same ? 2 : 1) ||
      !lazy_ir::ready(value)) {
    return nullptr;
  }
  // A parameter is a view, by detach(), of the tensor that it was made of, and has its data.
  return same ? lazy_ir::replace_value({own}, value) : lazy_ir::replace_value({own, base}, value);
}

// A tensor, and what aliases it, have another value; backward() of a graph that saved it says so.
void give(const at::Tensor& tensor, const at::Tensor& value, Replaced& before) {
  if (torch::lazy::BackendDataPtr buffer = give_in_place(tensor, value)) {
    before.buffers.push_back(std::move(buffer));
  } else {
    before.values.push_back(value_of(tensor));
    functionalization::replace_(tensor, value);
    functionalization::commit_update(tensor);
    functionalization::sync(tensor);
    storage_of(tensor)->apply_updates();  // so that the next call finds one value
  }
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

bool is_count(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.scalar_type() == at::kFloat &&
         tensor.numel() == 1 && !tensor.is_conj() && !tensor.is_neg() && tensor.has_storage();
}

}  // namespace
}  // namespace castoff::step_replay

using namespace castoff::step_replay;

extern "C" {

// Lets tensors have what was written to those that alias them.
__attribute__((visibility("default"))) const char* castoff_step_replay_sync(const Object* tensors,
                                                                            size_t count) {
  return told([&] {
    for (const at::Tensor& tensor : wrappers_of(tensors, count)) {
      functionalization::sync(tensor);
    }
  });
}

// Gives tensors the values of as many outputs of a graph, which took the buffers of the first ones
// as donations. All are looked at before any is changed.
__attribute__((visibility("default"))) const char* castoff_step_replay_give(const Object* tensors,
                                                                            const Object* outputs,
                                                                            size_t count,
                                                                            size_t donated) {
  return told([&] {
    const std::vector<at::Tensor> found = wrappers_of(tensors, count);
    const std::vector<at::Tensor> values = wrappers_of(outputs, count);
    Replaced donations, others;
    for (size_t i = 0; i < count; ++i) {
      give(found[i], value_of(values[i]), i < donated ? donations : others);
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
