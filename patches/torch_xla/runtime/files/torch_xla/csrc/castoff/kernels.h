// What the topics of torch_xla share: kernels that override the present one of an operator, and can
// hand a call on to it.
//
// Every registration lasts as long as the process does.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/detach_copy_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "torch_xla/csrc/castoff/present_kernel.h"

namespace castoff {

using at::Scalar;
using at::ScalarType;
using at::Tensor;

inline constexpr c10::DispatchKeySet kXla(c10::DispatchKey::XLA);

// An XLA tensor as torch_xla's own kernels get it: no wrapper of any transform around it.
inline bool is_bare_xla(const at::Tensor& t) {
  return (t.key_set() - c10::autograd_dispatch_keyset_with_ADInplaceOrView -
          c10::autocast_dispatch_keyset)
             .highestPriorityTypeId() == c10::DispatchKey::XLA;
}

// As at::autocast::is_autocast_enabled of XLA, whose header includes every operator.
inline bool autocast_enabled() {
  return !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastXLA);
}

// What an XLA tensor holds, under its true dtype. torch_xla's FSDP swaps a parameter's data for its
// shard in compute_dtype beneath the tensor, which goes on to declare the parameter's dtype; a copy
// does not.
inline at::Tensor held(const at::Tensor& t) {
  return at::_ops::detach_copy::redispatch(kXla, t);
}

inline at::ScalarType held_dtype(const at::Tensor& t) {
  return held(t).scalar_type();
}

// bfloat16 or float16; not float8, as at::isReducedFloatingType has it.
inline bool is_half(at::ScalarType dtype) {
  return dtype == at::ScalarType::BFloat16 || dtype == at::ScalarType::Half;
}

// torch_xla's own cast of a bare XLA tensor; below autograd.
inline at::Tensor cast(const at::Tensor& t, at::ScalarType dtype) {
  return at::_ops::_to_copy::redispatch(kXla, t, dtype, {}, {}, {}, /*non_blocking=*/false, {});
}

// The dispatcher warns of the first kernel that takes another's place, once in a process. Here that
// is meant, and the one warning is left for registrations that the user may not have meant.
class QuietOverride final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("previously registered kernel") == std::string::npos) {
      outer_->process(warning);
    }
  }

 private:
  c10::WarningHandler* outer_ = c10::WarningUtils::get_warning_handler();
  c10::WarningUtils::WarnAlways always_;  // does not use up the "once"
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

// `key` is a dispatch key or std::nullopt: torch 2.1 has an optional of its own. The dispatcher
// keeps the place of the call with each kernel, so that one can see which topic it is of.
template <class Key>
torch::Library& library(torch::Library::Kind kind, const char* ns, Key key,
                        const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return *new torch::Library(kind, ns, key, file, static_cast<uint32_t>(line));
}

// A boxed kernel that can hand its call on to the one that it overrides.
class OverrideKernel : public c10::OperatorKernel {
 public:
  OverrideKernel(const c10::OperatorHandle& op, c10::DispatchKey key)
      : overridden_(present_kernel(op, key)) {}

 protected:
  void call_overridden(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) const {
    overridden_.callBoxed(op, keys, stack);
  }

 private:
  const PresentKernel overridden_;
};

// Puts Kernel(op, key, extra...), a subclass of OverrideKernel, in the place of the present kernel
// of an operator.
template <class Kernel, class... Extra>
void override_kernel(torch::Library& lib, c10::DispatchKey key, const char* name,
                     const char* overload, const Extra&... extra) {
  const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  const std::string full = std::string(name) + (*overload ? "." : "") + overload;
  lib.impl(full.c_str(),
           torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(op, key, extra...)));
}

// Calls `take` with name and overload of each operator of a list like "add.Tensor mm".
template <class Take>
void each_operator(const std::string& operators, const Take& take) {
  for (size_t at = 0; at < operators.size();) {
    const size_t end = std::min(operators.find(' ', at), operators.size());
    const size_t dot = std::min(operators.find('.', at), end);
    const std::string name = "aten::" + operators.substr(at, dot - at);
    take(name.c_str(), dot == end ? "" : operators.substr(dot + 1, end - dot - 1).c_str());
    at = end + 1;
  }
}

template <class Signature>
struct CallOf;

template <class Result, class... Arguments>
struct CallOf<Result(Arguments...)> {
  static Result call(const PresentKernel& kernel, const c10::OperatorHandle& op,
                     c10::DispatchKeySet keys, Arguments... arguments) {
    return kernel.call<Result, Arguments...>(op, keys, std::forward<Arguments>(arguments)...);
  }
};

// The same for an unboxed kernel of Op, a class in at::_ops: what it overrides. Topic is any type
// of the topic, since another one may override the same operator.
template <class Topic, class Op, c10::DispatchKey key>
class Overridden {
 public:
  template <class... Arguments>
  static decltype(auto) call(c10::DispatchKeySet keys, Arguments&&... arguments) {
    return CallOf<typename Op::schema>::call(*kernel_, op(), keys,
                                             std::forward<Arguments>(arguments)...);
  }

  // Puts `kernel` in the place of the present one.
  template <class Kernel>
  static void by(torch::Library& lib, const Kernel& kernel) {
    kernel_.emplace(present_kernel(op(), key));
    const std::string overload = Op::overload_name;
    lib.impl((Op::name + (overload.empty() ? "" : "." + overload)).c_str(), kernel);
  }

 private:
  static const c10::OperatorHandle& op() {
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    return handle;
  }

  static inline std::optional<PresentKernel> kernel_;
};

// For an entry point of a topic, which Python calls once: nullptr, or what went wrong.
template <class Install>
const char* put_in_place(const Install& install) {
  static std::string error;
  const QuietOverride quiet;
  try {
    install();
    return nullptr;
  } catch (const std::exception& e) {
    error = e.what();
    return error.c_str();
  }
}

}  // namespace castoff

// The entry point of a topic that needs no more than castoff::install.
#define CASTOFF_ENTRY_POINT(name)                                        \
  extern "C" __attribute__((visibility("default"))) const char* name() { \
    return castoff::put_in_place(castoff::install);                      \
  }
