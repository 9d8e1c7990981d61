// Whether a view has an element of its base more than once.

#pragma once

#include <ATen/FunctionalTensorWrapper.h>

namespace castoff {

// Raises torch's error for a destination of which several elements are one. For views by expand,
// unfold and as_strided; nothing else makes such ones.
void refuse_overlap_of_view(const at::FunctionalTensorWrapper& view);

inline void refuse_overlap(const at::FunctionalTensorWrapper& destination) {
  if (!destination.isBaseTensor()) refuse_overlap_of_view(destination);
}

}  // namespace castoff
