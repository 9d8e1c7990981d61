// What the table of Python functions (_lowerings/table.py) needs of the dispatcher: the kernels
// that its operators had, and in front of operators that torch_xla lowers as well the choice
// between the two.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "torch_xla/csrc/castoff/maxima.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

// ---- Operators that the table has, and torch_xla too: whether a call is for Python's
// function. It is found out here, so that all others cost as little as without the function.

bool dilated(const c10::IValue& dilation) {
  const c10::DimVector by = dilation.toDimVector();
  return std::any_of(by.begin(), by.end(), [](int64_t d) { return d != 1; });
}

// Python's function refuses complex numbers, on which XLA's builder ends the process.
bool is_dilated_or_complex_pool(Call& call) {
  return dilated(call[4]) || call.tensor(0).is_complex();
}

bool is_dilated_pool_backward(Call& call) {
  return dilated(call[5]);
}

bool divides(at::IntArrayRef sizes, at::IntArrayRef output) {
  if (sizes.size() < output.size()) return true;
  const at::IntArrayRef last = sizes.slice(sizes.size() - output.size());
  return std::equal(output.begin(), output.end(), last.begin(),
                    [](int64_t out, int64_t size) { return out != 0 && size % out == 0; });
}

// self, output size
bool is_uneven_pool(Call& call) {
  return !divides(call.tensor(0).sizes(), call[1].toDimVector());
}

// grad, self
template <size_t kDims>
bool is_uneven_pool_backward(Call& call) {
  const at::IntArrayRef output = call.tensor(0).sizes();
  if (output.size() < kDims) return false;
  return !divides(call.tensor(1).sizes(), output.slice(output.size() - kDims));
}

// grad, self, kernel, stride, padding, ceil_mode, count_include_pad, divisor
bool is_weighted_pool_backward(Call& call) {
  return (call[5].toBool() && call[6].toBool()) || !call[7].isNone();
}

// self, dim, index, source, reduce, include_self
bool is_mean_or_leaves_self_out(Call& call) {
  return call[4].toStringRef() == "mean" || !call[5].toBool() || call.tensor(0).dim() == 0;
}

// self, dim, dtype
bool is_product_of_int64(Call& call) {
  const at::ScalarType own = call.tensor(0).scalar_type();
  const bool integral = c10::isIntegralType(own, /*includeBool=*/true);
  const at::ScalarType dtype =
      call[2].isNone() ? (integral ? at::kLong : own) : call[2].toScalarType();
  return dtype == at::kLong;
}

// weights, samples, replacement, generator
bool is_without_replacement(Call& call) {
  return call[1].toInt() > 1 && !call[2].toBool() && call[3].isNone();
}

using Condition = bool (*)(Call&);

struct Shared {
  const char* name;
  const char* overload;
  c10::DispatchKey key;
  Condition is_for_python;
};

constexpr c10::DispatchKey kXlaKey = c10::DispatchKey::XLA;
constexpr c10::DispatchKey kAutograd = c10::DispatchKey::AutogradXLA;

constexpr Shared kShared[] = {
    {"_adaptive_avg_pool2d", "", kXlaKey, is_uneven_pool},
    {"_adaptive_avg_pool2d_backward", "", kXlaKey, is_uneven_pool_backward<2>},
    {"_adaptive_avg_pool3d", "", kXlaKey, is_uneven_pool},
    {"_adaptive_avg_pool3d_backward", "", kXlaKey, is_uneven_pool_backward<3>},
    {"avg_pool2d_backward", "", kXlaKey, is_weighted_pool_backward},
    {"avg_pool3d_backward", "", kXlaKey, is_weighted_pool_backward},
    {"cumprod", "", kXlaKey, is_product_of_int64},
    {"max_pool2d", "", kAutograd, is_dilated_or_complex_pool},
    {"max_pool2d_with_indices", "", kXlaKey, is_dilated_or_complex_pool},
    {"max_pool2d_with_indices_backward", "", kXlaKey, is_dilated_pool_backward},
    {"max_pool3d", "", kAutograd, is_dilated_or_complex_pool},
    {"max_pool3d_with_indices", "", kXlaKey, is_dilated_or_complex_pool},
    {"max_pool3d_with_indices_backward", "", kXlaKey, is_dilated_pool_backward},
    {"multinomial", "", kXlaKey, is_without_replacement},
    {"scatter_reduce", "two", kXlaKey, is_mean_or_leaves_self_out},
};

// Calls Python's function, which is in place when this one is installed, or torch_xla's kernel.
class Choice final : public OverrideKernel {
 public:
  Choice(const c10::OperatorHandle& op, c10::DispatchKey key, Condition is_for_python,
         const PresentKernel& earlier)
      : OverrideKernel(op, key), is_for_python_(is_for_python), earlier_(earlier) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    Call call(op, keys, *stack, op.schema().arguments().size(), earlier_);
    if (C10_UNLIKELY(is_for_python_(call))) return call_overridden(op, keys, stack);
    call.proceed();
  }

 private:
  const Condition is_for_python_;
  const PresentKernel earlier_;
};

// ---- The kernel that an operator of the table had, as an operator of its own: before
// torch 2.9 Python cannot hold a kernel.

class Earlier final : public c10::OperatorKernel {
 public:
  Earlier(const c10::OperatorHandle& op, const PresentKernel& kernel) : op_(op), kernel_(kernel) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    kernel_.callBoxed(op_, keys, stack);
  }

 private:
  const c10::OperatorHandle op_;
  const PresentKernel kernel_;
};

c10::OperatorHandle aten(const char* name, const char* overload) {
  const std::string full = std::string("aten::") + name;
  return c10::Dispatcher::singleton().findSchemaOrThrow(full.c_str(), overload);
}

std::string with_overload(const std::string& name, const char* overload) {
  return name + (*overload ? "." : "") + overload;
}

std::unordered_map<std::string, PresentKernel>& earlier_kernels() {
  static auto& kernels = *new std::unordered_map<std::string, PresentKernel>;
  return kernels;
}

std::string id(const char* name, const char* overload, c10::DispatchKey key) {
  return with_overload(std::string(c10::toString(key)) + "::" + name, overload);
}

// Defines castoff_<key>::<name>.<overload>, which calls the present kernel of aten's operator.
void keep(const char* name, const char* overload, c10::DispatchKey key) {
  const c10::OperatorHandle op = aten(name, overload);
  const PresentKernel present = present_kernel(op, key);
  earlier_kernels().emplace(id(name, overload, key), present);
  const std::string space = std::string("castoff_") + c10::toString(key);
  torch::Library& lib = library(torch::Library::FRAGMENT, space.c_str(), std::nullopt);
  lib.def(op.schema().cloneWithName(space + "::" + name, overload));
  lib.impl(with_overload(name, overload).c_str(),
           torch::dispatch(
               c10::DispatchKey::CompositeImplicitAutograd,
               torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Earlier>(op, present))));
}

void choose() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", kXlaKey);
  torch::Library& autograd = library(torch::Library::IMPL, "aten", kAutograd);
  for (const Shared& op : kShared) {
    override_kernel<Choice>(
        op.key == kXlaKey ? xla : autograd, op.key, (std::string("aten::") + op.name).c_str(),
        op.overload, op.is_for_python, earlier_kernels().at(id(op.name, op.overload, op.key)));
  }
  begin_maxima_at_infinity(xla, [](const char* name, const char* overload) {
    return earlier_kernels().at(id(name, overload, kXlaKey));
  });
}

}  // namespace
}  // namespace castoff

// Defines the operator that calls the present kernel of aten::<name>.<overload> and a dispatch key;
// nullptr, or what went wrong.
extern "C" __attribute__((visibility("default"))) const char* castoff_on_device_keep(
    const char* name, const char* overload, const char* key) {
  return castoff::put_in_place([&] { castoff::keep(name, overload, c10::parseDispatchKey(key)); });
}

// Puts the choice between Python's functions, which are in place, and torch_xla's kernels in front;
// nullptr, or what went wrong. Call it once.
extern "C" __attribute__((visibility("default"))) const char* castoff_on_device_choose() {
  return castoff::put_in_place(castoff::choose);
}
