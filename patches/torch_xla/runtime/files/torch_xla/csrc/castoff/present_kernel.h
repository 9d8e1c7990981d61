// The kernel that the dispatcher has at present, for those that override it (kernels.h).

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace castoff {
struct PresentKernelAccess {};
}  // namespace castoff

namespace c10 {

// An OperatorHandle does not give its kernels away; since 2.9 it gives one that can be called in
// boxed form alone, and only as long as the dispatcher has it. Every TypedOperatorHandle is its
// friend, though: so is this one, for a signature that no operator has.
template <>
class TypedOperatorHandle<castoff::PresentKernelAccess()> final {
 public:
  static const KernelFunction& lookup(const OperatorHandle& op, DispatchKey key) {
    return op.operatorDef_->op.lookup(DispatchKeySet(key));
  }
};

}  // namespace c10

namespace castoff {

using PresentKernel = c10::KernelFunction;

// The kernel that the dispatcher calls for an operator and a key at present. Throws if there is
// none. The copy keeps the kernel: what the dispatcher has is overwritten.
inline PresentKernel present_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return c10::TypedOperatorHandle<PresentKernelAccess()>::lookup(op, key);
}

}  // namespace castoff
