// Whether tensors and objects are what they were when a step was traced, for
// torch_xla/_step_replay/tensors.py.

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "torch_xla/csrc/castoff/step_replay.h"

namespace castoff::step_replay {
namespace {

// An object begins with what Python knows of it; the pointer to the tensor is one of these words.
constexpr size_t kFirstWord = 2, kLastWord = 5;
std::atomic<size_t> tensor_word{0};  // 0: not known yet

const void* word_of(Object object, size_t word) {
  return static_cast<const void* const*>(object)[word];
}

// As _step_replay/tensors.py lays them out.
struct TensorGuards {
  size_t leaves;  // tensors whose .grad has such a dtype, or is not there (kNoGrad)
  const Object* leaf;
  const int64_t* grad_dtype;
  size_t flags;
  const Object* flagged;
  const int64_t* requires_grad;
  size_t versions;
  const Object* versioned;
  const int64_t* version;
  size_t states;
  const Object* state;
  const int64_t* shapes;  // of each the dtype, the number of dimensions and the sizes
};

constexpr int64_t kNoGrad = -1;

int64_t dtype_of(const c10::TensorImpl& impl) {
  return static_cast<int64_t>(c10::typeMetaToScalarType(impl.dtype()));
}

bool grads_hold(const TensorGuards& guards) {
  for (size_t i = 0; i < guards.leaves; ++i) {
    const at::Tensor& grad = impl_of(guards.leaf[i]).grad();
    const int64_t dtype = grad.defined() ? dtype_of(*grad.unsafeGetTensorImpl()) : kNoGrad;
    if (dtype != guards.grad_dtype[i]) return false;
  }
  return true;
}

bool flags_hold(const TensorGuards& guards) {
  for (size_t i = 0; i < guards.flags; ++i) {
    if (impl_of(guards.flagged[i]).requires_grad() != (guards.requires_grad[i] != 0)) return false;
  }
  return true;
}

bool versions_hold(const TensorGuards& guards) {
  for (size_t i = 0; i < guards.versions; ++i) {
    const auto& counter = impl_of(guards.versioned[i]).version_counter();
    if (static_cast<int64_t>(counter.current_version()) != guards.version[i]) return false;
  }
  return true;
}

bool shapes_hold(const TensorGuards& guards) {
  const int64_t* expected = guards.shapes;
  for (size_t i = 0; i < guards.states; ++i) {
    const c10::TensorImpl& impl = impl_of(guards.state[i]);
    const c10::IntArrayRef sizes = impl.sizes();
    if (*expected++ != dtype_of(impl) || *expected++ != static_cast<int64_t>(sizes.size()) ||
        !std::equal(sizes.begin(), sizes.end(), expected)) {
      return false;
    }
    expected += sizes.size();
  }
  return true;
}

// As _step_replay/tensors.py lays them out. The functions are Python's, which looks entries up and
// measures containers.
struct ObjectGuards {
  Object (*entry_of)(Object mapping, Object key);
  std::ptrdiff_t (*size_of)(Object container);
  size_t entries;
  const Object* mapping;
  const Object* key;
  const Object* value;
  size_t containers;
  const Object* container;
  const int64_t* size;
};

}  // namespace

c10::TensorImpl& impl_of(Object object) {
  const void* impl = word_of(object, tensor_word.load(std::memory_order_relaxed));
  TORCH_CHECK(impl != nullptr, "expected a tensor, found none");
  return *static_cast<c10::TensorImpl*>(const_cast<void*>(impl));
}

at::Tensor tensor_of(Object object) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(&impl_of(object)));
}

bool locate(Object object, const c10::TensorImpl* impl) {
  size_t word = tensor_word.load();
  for (size_t i = kFirstWord; word == 0 && i <= kLastWord; ++i) {
    if (word_of(object, i) == impl) tensor_word.store(word = i);
  }
  return word != 0 && impl != nullptr && word_of(object, word) == impl;
}

}  // namespace castoff::step_replay

using namespace castoff::step_replay;

extern "C" {

// Whether objects have these tensors where they will be looked for.
__attribute__((visibility("default"))) bool castoff_step_replay_locate(
    const Object* objects, const c10::TensorImpl* const* impls, size_t count) {
  return std::equal(objects, objects + count, impls, locate);
}

// Whether tensors are what they were. No, if one does not say.
__attribute__((visibility("default"))) bool castoff_step_replay_tensors_hold(
    const TensorGuards* guards) {
  bool hold = false;
  const char* error = told([&] {
    hold = grads_hold(*guards) && flags_hold(*guards) && versions_hold(*guards) &&
           shapes_hold(*guards);
  });
  return error == nullptr && hold;
}

// Whether entries of dicts are the same objects as they were, and containers of the same sizes.
__attribute__((visibility("default"))) bool castoff_step_replay_objects_hold(
    const ObjectGuards* guards) {
  for (size_t i = 0; i < guards->entries; ++i) {
    if (guards->entry_of(guards->mapping[i], guards->key[i]) != guards->value[i]) return false;
  }
  for (size_t i = 0; i < guards->containers; ++i) {
    if (guards->size_of(guards->container[i]) != guards->size[i]) return false;
  }
  return true;
}

// Writes the dtype, the number of dimensions and the sizes of each tensor one after another, as far
// as there is room; how many numbers they are, or 0 if a tensor has none.
__attribute__((visibility("default"))) size_t castoff_step_replay_shapes(const Object* tensors,
                                                                         size_t count,
                                                                         int64_t* numbers,
                                                                         size_t room) {
  size_t written = 0;
  const auto write = [&](int64_t number) {
    if (written < room) numbers[written] = number;
    ++written;
  };
  const char* error = told([&] {
    for (size_t i = 0; i < count; ++i) {
      const c10::TensorImpl& impl = impl_of(tensors[i]);
      write(dtype_of(impl));
      write(impl.dim());
      for (const int64_t size : impl.sizes()) write(size);
    }
  });
  return error == nullptr ? written : 0;
}

}  // extern "C"
