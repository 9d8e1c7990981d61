// Unboxed kernels of operators with gradients of their own, and which calls they can take.

#pragma once

#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "torch_xla/csrc/castoff/kernels.h"

namespace castoff {

// An XLA tensor that nothing but autograd or functionalization looks at, or, where `traced`, a mode
// such as a tracer of torch.compile.
inline bool is_plain(const at::Tensor& t, bool traced = false) {
  using c10::DispatchKey;
  static const c10::DispatchKeySet transforms(
      {DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper, DispatchKey::Batched});
  const bool is_met = t.key_set().has(DispatchKey::Python);
  return t.defined() && t.is_xla() && !t.is_nested() && !t.key_set().has_any(transforms) &&
         (!is_met || (traced && c10::impl::TorchDispatchModeTLS::any_modes_set())) &&
         !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
         !torch::autograd::isFwGradDefined(t);
}

// Puts Kernels::call<key>, for each key, in the place of the present kernel of Op.
template <class Topic, class Op, class Kernels, c10::DispatchKey... keys>
void override_on(const char* file, int line) {
  (Overridden<Topic, Op, keys>::by(library(torch::Library::IMPL, "aten", keys, file, line),
                                   TORCH_FN(Kernels::template call<keys>)),
   ...);
}

// The same for every key that a call can meet first: for most it is AutogradXLA; in inference mode
// it is Functionalize, or XLA where functionalization is off.
template <class Topic, class Op, class Kernels>
void override_above_autograd(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  using c10::DispatchKey;
  override_on<Topic, Op, Kernels, DispatchKey::AutogradXLA, DispatchKey::Functionalize,
              DispatchKey::XLA>(file, line);
}

}  // namespace castoff
