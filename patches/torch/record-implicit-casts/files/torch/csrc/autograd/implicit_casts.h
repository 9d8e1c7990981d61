#pragma once

// torch.autograd.graph.record_implicit_casts: which gradients the engine converts, and for whom.

#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <cstdint>

namespace torch::autograd::implicit_casts {

// Lives around one validate_outputs over edges: remembers the dtypes that go in, and after it tells
// every recorder that runs in this process, in whatever thread, what has another dtype now.
//
// The conversions of a compiled backward are part of its graph and are not the engine's.
class Validation {
 public:
  Validation(const edge_list& edges, const variable_list& grads) : edges_(edges) {
    if (C10_UNLIKELY(recorders.load(std::memory_order_relaxed) != 0)) {
      remember(grads);
    }
  }
  void finish(const variable_list& grads) const {
    if (C10_UNLIKELY(!before_.empty())) {
      compare(grads);
    }
  }

  // Number of recorders that run, and one more while warn_of_rounding() waits for a case.
  static std::atomic<int64_t> recorders;

 private:
  void remember(const variable_list& grads);
  void compare(const variable_list& grads) const;

  const edge_list& edges_;
  c10::SmallVector<c10::ScalarType, 4> before_;
};

// From now on the first gradient that an operator has rounded, and that is then cast to the wider
// dtype that its leaf asked for, is warned of. Once in a process.
void warn_of_rounding();

}  // namespace torch::autograd::implicit_casts
