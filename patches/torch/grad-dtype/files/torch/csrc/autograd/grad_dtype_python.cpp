// What torch/_grad_dtype.py calls. Plain C functions over TensorImpl addresses (Tensor._cdata) and
// no Python header: one library serves every CPython.
//
// The setter of Tensor.grad is replaced in place, in the getset table of torch._C.TensorBase, when
// some tensor first gets a grad_dtype, or an output a declared one: a property in its stead would
// slow down every read of .grad and be another object than the one that torch.overrides and Dynamo
// know.
#include <c10/util/python_stub.h>
#include <torch/csrc/autograd/grad_dtype.h>
#include <torch/csrc/castoff/kill_switch.h>

#include <array>
#include <cstring>
#include <exception>
#include <string>

// The stable ABI of CPython; weak, because a program without Python may load this library.

extern "C" {
[[gnu::weak]] PyObject* PyObject_CallFunctionObjArgs(PyObject* callable, ...);
[[gnu::weak]] int PyObject_IsTrue(PyObject* object);
[[gnu::weak]] void Py_IncRef(PyObject* object);
[[gnu::weak]] void Py_DecRef(PyObject* object);
}

namespace torch::autograd::grad_dtype {

// Overlay builds put the .data setter's half in place on the first use of grad_dtype; a source
// build has it in variable.cpp.
[[gnu::weak]] void install_set_data();

namespace {

using Setter = int (*)(PyObject* self, PyObject* value, void* closure);

// PyGetSetDef, as every CPython since 3.0 lays it out.
struct GetSetDefinition {
  const char* name;
  void* get;
  Setter set;
  const char* doc;
  void* closure;
};

struct GradSetter {
  std::array<GetSetDefinition*, 2> definitions{};  // of `grad` and `_grad`
  Setter stock = nullptr;
  PyObject* assign = nullptr;
  PyObject* none = nullptr;
};
GradSetter grad_setter;

int set_grad(PyObject* self, PyObject* value, void* closure) {
  if (!engine_in_use() || value == nullptr || value == grad_setter.none) {
    return grad_setter.stock(self, value, closure);
  }
  PyObject* assigned = PyObject_CallFunctionObjArgs(grad_setter.assign, self, value, nullptr);
  if (assigned == nullptr) {
    return -1;
  }
  const bool done = PyObject_IsTrue(assigned) == 1;
  Py_DecRef(assigned);
  return done ? 0 : grad_setter.stock(self, value, closure);
}

// On the first use of grad_dtype or of a declaration, so that a process without any pays nothing.
void replace_setter() {
  static const bool replaced = [] {
    for (GetSetDefinition* definition : grad_setter.definitions) {
      if (definition != nullptr) {
        // Other threads may assign to some .grad now.
        __atomic_store_n(&definition->set, &set_grad, __ATOMIC_RELEASE);
      }
    }
    return true;
  }();
  (void)replaced;
}

at::Tensor borrowed(c10::TensorImpl* impl) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(impl));
}

// Does `change` and gives nullptr, or the text of what it threw.
template <class Change>
const char* error_of(const Change& change) {
  thread_local std::string error;
  try {
    TORCH_CHECK(
        torch::castoff::topic_enabled("grad-dtype"),
        "grad_dtype is switched off in this process (CASTOFF_DISABLE, or an overlay built for "
        "another torch)");
    change();
    return nullptr;
  } catch (const c10::Error& e) {
    error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    error = e.what();
  }
  return error.c_str();
}

}  // namespace
}  // namespace torch::autograd::grad_dtype

namespace gd = torch::autograd::grad_dtype;

// -1 for the tensor's own dtype, -2 for any, else a ScalarType.
extern "C" C10_EXPORT int castoff_grad_dtype_get(c10::TensorImpl* impl) {
  return gd::get(*impl).code();
}

// For other libraries: the same for the gradient that travels `edge`.
extern "C" C10_EXPORT int castoff_grad_dtype_over_edge(const torch::autograd::Edge* edge) {
  return gd::demanded_over(*edge).code();
}

// Its value is 0 while no leaf has a grad_dtype.
extern "C" C10_EXPORT const std::atomic<int64_t>* castoff_grad_dtype_tensors_in_use() {
  return &gd::tensors_in_use;
}

// The same for a non-leaf, from its node.
extern "C" C10_EXPORT int castoff_grad_dtype_of_output(c10::TensorImpl* impl) {
  return gd::of_output(gd::borrowed(impl)).code();
}

// The same for what the engine makes of a gradient for the tensor, which requires one.
extern "C" C10_EXPORT int castoff_grad_dtype_demanded(c10::TensorImpl* impl) {
  return gd::demanded_over(torch::autograd::impl::gradient_edge(gd::borrowed(impl))).code();
}

// nullptr, or why it could not be declared (valid until this thread's next call).
extern "C" C10_EXPORT const char* castoff_grad_dtype_declare(c10::TensorImpl* impl, int code) {
  return gd::error_of([&] {
    gd::replace_setter();
    gd::declare_output(gd::borrowed(impl), gd::GradDtype::from_code(static_cast<int16_t>(code)));
  });
}

// nullptr, or why it could not be set (valid until this thread's next call).
extern "C" C10_EXPORT const char* castoff_grad_dtype_set(c10::TensorImpl* impl, int code) {
  return gd::error_of([&] {
    if (gd::install_set_data != nullptr) {
      gd::install_set_data();
    }
    gd::replace_setter();
    gd::set(*impl, gd::GradDtype::from_code(static_cast<int16_t>(code)));
  });
}

// Assigns .grad with no check; torch/_grad_dtype.py has made them.
extern "C" C10_EXPORT void castoff_grad_dtype_assign(c10::TensorImpl* impl, c10::TensorImpl* grad) {
  gd::borrowed(impl).mutable_grad() = gd::borrowed(grad);
}

// set_grad is to take its place in the definitions of `grad` and `_grad`. `assign(self, value)`
// says whether it has assigned. False if they are not the pair of definitions that this knows.
extern "C" C10_EXPORT bool castoff_grad_dtype_install(gd::GetSetDefinition* grad,
                                                      gd::GetSetDefinition* private_grad,
                                                      PyObject* assign, PyObject* none) {
  const bool has_python = PyObject_CallFunctionObjArgs != nullptr && PyObject_IsTrue != nullptr &&
                          Py_IncRef != nullptr && Py_DecRef != nullptr;
  if (!has_python || std::strcmp(grad->name, "grad") != 0 ||
      std::strcmp(private_grad->name, "_grad") != 0 || grad->set == nullptr ||
      grad->set != private_grad->set) {
    return false;
  }
  // Kept for good, as the setter is: a module that is reloaded installs its new function.
  Py_IncRef(assign);
  gd::grad_setter.assign = assign;
  gd::grad_setter.none = none;
  if (grad->set != &gd::set_grad) {
    gd::grad_setter.stock = grad->set;
    gd::grad_setter.definitions = {grad, private_grad};
  }
  return true;
}
