// Everything in which torch's releases differ for kernels that override another (kernels.h).

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/castoff/torch_version.h>

#if CASTOFF_TORCH_AT_LEAST(2, 9)

namespace castoff {

using PresentKernel = c10::SafeKernelFunction;

// The kernel that the dispatcher calls for an operator and a key at present. Throws if there is
// none. It can be called after another has taken its place.
inline PresentKernel present_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return op.getComputedKernelForDispatchKey(key);
}

}  // namespace castoff

#else

namespace castoff {
struct PresentKernelAccess {};
}  // namespace castoff

namespace c10 {

// Before 2.9 an OperatorHandle does not give its kernels away. Every TypedOperatorHandle is its
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

// The same. The copy keeps the kernel: what the dispatcher has is overwritten.
inline PresentKernel present_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return c10::TypedOperatorHandle<PresentKernelAccess()>::lookup(op, key);
}

}  // namespace castoff

#endif
