// Tensors of Python, for the C++ of torch_xla/_step_replay/tensors.py.
//
// They come as addresses of Python's objects, which Python keeps alive. What an object has as its
// tensor is read in each call: it may be another one by then, as torch.utils.swap_tensors leaves
// it.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <exception>
#include <string>

namespace castoff::step_replay {

using Object = const void*;

// The tensor of an object; one that locate() said yes for.
c10::TensorImpl& impl_of(Object object);
at::Tensor tensor_of(Object object);

// Whether an object has its tensor where impl_of() reads it; the first one says where that is.
bool locate(Object object, const c10::TensorImpl* impl);

// A function of torch_xla's that is not exported, by its mangled name.
struct Function {
  const char* name;
  void* address = nullptr;
};

// Finds functions in the loaded _XLAC.so. Whether it is a build that lazy_ir.h knows, and has all.
bool find_functions(Function* functions, size_t count);

// What went wrong in a call, or nullptr.
template <class Run>
const char* told(const Run& run) {
  static thread_local std::string error;
  try {
    run();
    return nullptr;
  } catch (const c10::Error& e) {
    error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    error = e.what();
  }
  return error.c_str();
}

}  // namespace castoff::step_replay
