// What the topics of torch_xla share: kernels that stand before the one that was there.
//
// Such a kernel is boxed, as the dispatcher hands out the kernel that was there before in boxed
// form. Every registration lasts as long as the process does.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/detach_copy_ops.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>

namespace castoff {

inline constexpr c10::DispatchKeySet kXla(c10::DispatchKey::XLA);

// An XLA tensor as torch_xla's own kernels get it: no wrapper of any transform around it.
inline bool is_bare_xla(const at::Tensor& t) {
  return (t.key_set() - c10::autograd_dispatch_keyset_with_ADInplaceOrView -
          c10::autocast_dispatch_keyset)
             .highestPriorityTypeId() == c10::DispatchKey::XLA;
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

// A kernel that can hand its call on to the one that was there before.
class Before : public c10::OperatorKernel {
 public:
  Before(const c10::OperatorHandle& op, c10::DispatchKey key)
      : previous_(op.getComputedKernelForDispatchKey(key)) {}

 protected:
  void previous(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                torch::jit::Stack* stack) const {
    previous_.callBoxed(op, keys, stack);
  }

 private:
  c10::SafeKernelFunction previous_;
};

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

inline torch::Library& library(torch::Library::Kind kind, const char* ns,
                               std::optional<c10::DispatchKey> key) {
  return *new torch::Library(kind, ns, key, __FILE__, __LINE__);
}

// Puts Kernel(op, key, extra...), a subclass of Before, before the present kernel of an operator.
template <class Kernel, class... Extra>
void stand_before(torch::Library& lib, c10::DispatchKey key, const char* name, const char* overload,
                  const Extra&... extra) {
  const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  const std::string full = std::string(name) + (*overload ? "." : "") + overload;
  lib.impl(full.c_str(),
           torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(op, key, extra...)));
}

// For the entry point of a topic, which Python calls once: nullptr, or what went wrong.
template <class Install>
const char* put_in_place(const Install& install) {
  static std::string error;
  try {
    install();
    return nullptr;
  } catch (const std::exception& e) {
    error = e.what();
    return error.c_str();
  }
}

}  // namespace castoff
