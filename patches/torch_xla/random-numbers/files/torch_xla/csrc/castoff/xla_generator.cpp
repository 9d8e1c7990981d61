// torch.Generator(device="xla"), which stock refuses. torch_xla draws from one number for each
// device, which every operator advances by one step. A generator is such a number: a draw from it
// exchanges the two.
//
// Of CPython this uses the stable ABI and no header: one library serves every release.

#include "torch_xla/csrc/castoff/xla_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <string_view>

// Weak, because a program without Python may load this library.
extern "C" {
[[gnu::weak]] void* PyType_GetSlot(PyObject* type, int slot);
[[gnu::weak]] ssize_t PyTuple_Size(PyObject* tuple);
[[gnu::weak]] PyObject* PyTuple_GetItem(PyObject* tuple, ssize_t i);
[[gnu::weak]] PyObject* PyDict_GetItemString(PyObject* dict, const char* key);
[[gnu::weak]] PyObject* PyObject_Str(PyObject* object);
[[gnu::weak]] const char* PyUnicode_AsUTF8AndSize(PyObject* object, ssize_t* size);
[[gnu::weak]] void PyErr_Clear();
[[gnu::weak]] void PyErr_SetString(PyObject* exception, const char* message);
[[gnu::weak]] void Py_DecRef(PyObject* object);
[[gnu::weak]] extern PyObject* PyExc_RuntimeError;
[[gnu::weak]] int PyGILState_Ensure();
[[gnu::weak]] void PyGILState_Release(int state);
}

namespace castoff {
namespace {

GeneratorHooks hooks{};

// ---- the generator

class XlaGenerator final : public c10::GeneratorImpl {
 public:
  XlaGenerator(c10::Device device, uint64_t seed, uint64_t next)
      : GeneratorImpl(device, kXla), seed_(seed), next_(next) {}

  void set_current_seed(uint64_t seed) override { seed_ = next_ = seed; }
  uint64_t current_seed() const override { return seed_; }

  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }

  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset == 0, "expected the offset 0, found ", offset,
                ": an XLA generator has none; get_state() holds how far it is");
  }
  uint64_t get_offset() const override { return 0; }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const State state{seed_, next_};
    at::Tensor bytes = at::empty({sizeof state}, at::TensorOptions().dtype(at::kByte));
    std::memcpy(bytes.mutable_data_ptr(), state.data(), sizeof state);
    return bytes.getIntrusivePtr();
  }

  void set_state(const c10::TensorImpl& bytes) override {
    State state{};
    TORCH_CHECK(bytes.device().is_cpu() && bytes.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
                    bytes.is_contiguous() && bytes.numel() == sizeof state,
                "expected the state of an XLA generator, ", sizeof state,
                " uint8 on the CPU; found ", bytes.numel(), " ", bytes.dtype(), " on ",
                bytes.device(), ". Take it from get_state() of an XLA generator");
    std::memcpy(state.data(), bytes.data(), sizeof state);
    seed_ = state[0];
    next_ = state[1];
  }

  // What the next draw starts from.
  uint64_t next() const { return next_; }
  void set_next(uint64_t next) { next_ = next; }

 private:
  using State = std::array<uint64_t, 2>;

  XlaGenerator* clone_impl() const override { return new XlaGenerator(device(), seed_, next_); }

  uint64_t seed_;
  uint64_t next_;
};

// ---- drawing from it

// Its draws must not be taken by other threads' or take theirs.
class HoldGil {
 public:
  HoldGil() : state_(PyGILState_Ensure()) {}
  ~HoldGil() { PyGILState_Release(state_); }
  HoldGil(const HoldGil&) = delete;
  HoldGil& operator=(const HoldGil&) = delete;

 private:
  const int state_;
};

// While it lives the device draws from the generator.
class Exchange {
 public:
  explicit Exchange(XlaGenerator& generator)
      : generator_(generator), own_(exchange(generator.next())) {}
  ~Exchange() { generator_.set_next(exchange(own_)); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

 private:
  uint64_t exchange(uint64_t seed) const {
    return hooks.exchange_seed(generator_.device().index(), seed);
  }

  const HoldGil gil_;
  XlaGenerator& generator_;
  const uint64_t own_;
};

// The argument that is an XLA generator, if one is.
std::optional<size_t> place_of_generator(Call& call) {
  for (size_t i = call.size(); i-- > 0;) {
    if (call[i].isGenerator()) {
      const at::Generator generator = call[i].toGenerator();
      if (generator.defined() && generator.device().is_xla()) return i;
    }
  }
  return std::nullopt;
}

XlaGenerator& xla_generator(const at::Generator& generator) {
  return *generator.get<XlaGenerator>();
}

void check_device(Call& call, const XlaGenerator& generator) {
  if (!is_tensor(call[0])) return;
  const c10::Device device = call.tensor(0).device();
  TORCH_CHECK(device == generator.device(), "expected a generator of ", device, ", found one of ",
              generator.device(), ": make it with torch.Generator(device=\"", device, "\")");
}

// A generator of torch's CPU kernels, which differs from draw to draw.
at::Generator on_the_cpu(XlaGenerator& generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex_);
  at::Generator found = at::detail::createCPUGenerator(generator.next());
  generator.set_next(at::check_generator<at::CPUGeneratorImpl>(found)->random64());
  return found;
}

// ---- torch.Generator

constexpr int kTpNew = 65;         // Py_tp_new
constexpr size_t kTypeWords = 50;  // of a PyTypeObject, which has more in every release

using New = PyObject* (*)(PyObject* type, PyObject* arguments, PyObject* keywords);
New stock_new = nullptr;

std::optional<c10::Device> xla_device(PyObject* arguments, PyObject* keywords) {
  PyObject* device = nullptr;
  if (PyTuple_Size(arguments) > 0) {
    device = PyTuple_GetItem(arguments, 0);
  } else if (keywords != nullptr) {
    device = PyDict_GetItemString(keywords, "device");
  }
  if (device == nullptr) return std::nullopt;
  PyObject* text = PyObject_Str(device);
  ssize_t size = 0;
  const char* name = text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, &size);
  std::optional<c10::Device> found;
  if (name == nullptr) {
    PyErr_Clear();  // torch says what is wrong with it
  } else if (std::string_view(name).substr(0, 3) == "xla") {
    found = c10::Device(name);
  }
  if (text != nullptr) Py_DecRef(text);
  return found;
}

c10::Device with_index(c10::Device device) {
  return device.has_index() ? device : c10::impl::getDeviceGuardImpl(c10::kXLA)->getDevice();
}

PyObject* new_generator(PyObject* type, PyObject* arguments, PyObject* keywords) {
  try {
    if (const auto device = xla_device(arguments, keywords)) {
      return hooks.wrap(at::make_generator<XlaGenerator>(
          with_index(*device), c10::default_rng_seed_val, c10::default_rng_seed_val));
    }
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  return stock_new(type, arguments, keywords);
}

}  // namespace

void take_generators(PyObject* type, const GeneratorHooks& given) {
  hooks = given;
  void* const present = PyType_GetSlot(type, kTpNew);
  void** const words = reinterpret_cast<void**>(type);
  void** const slot = std::find(words, words + kTypeWords, present);
  TORCH_CHECK(present != nullptr && slot != words + kTypeWords,
              "expected the slot tp_new in the type torch.Generator, found none");
  stock_new = reinterpret_cast<New>(present);
  *slot = reinterpret_cast<void*>(&new_generator);
}

void draw_from_generator(Call& call, Remedy draw) {
  const auto place = place_of_generator(call);
  if (C10_LIKELY(!place)) return draw(call);
  const at::Generator generator = call[*place].toGenerator();
  check_device(call, xla_generator(generator));
  call[*place] = c10::IValue();
  const Exchange exchange(xla_generator(generator));
  draw(call);
}

void draw_on_the_cpu(Call& call) {
  const auto place = place_of_generator(call);
  if (C10_LIKELY(!place)) return call.proceed();
  const at::Generator generator = call[*place].toGenerator();
  check_device(call, xla_generator(generator));
  call[*place] = on_the_cpu(xla_generator(generator));
  call.proceed();
}

}  // namespace castoff
