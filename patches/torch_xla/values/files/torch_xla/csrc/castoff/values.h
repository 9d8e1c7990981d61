// The parts of topic values, each in the file of its name. They put their kernels in place.

#pragma once

#include <torch/library.h>

#include <vector>

namespace castoff {

class Call;  // remedy.h

inline constexpr c10::DispatchKey kAutograd = c10::DispatchKey::AutogradXLA;

void mend_complex_numbers(torch::Library& xla);
void mend_indices(torch::Library& xla);
void mend_integers(torch::Library& xla);
void mend_matrices(torch::Library& xla, torch::Library& autograd);
void mend_normalization(torch::Library& xla, torch::Library& autograd);
void mend_reductions(torch::Library& xla);
void mend_resampling(torch::Library& xla);
void mend_second_gradients(torch::Library& autograd);
void mend_shapes(torch::Library& xla);
void mend_unfolding();
void mend_views(torch::Library& xla, torch::Library& autograd);
void mend_wide_steps(torch::Library& xla, torch::Library& autograd);
void refuse_dtypes(torch::Library& xla, torch::Library& autograd);

// Whether torch's einsum answers this call, one of operands with gradients (einsum_gradients.cpp).
bool einsum_answered_by_torch(Call& call, const std::vector<at::Tensor>& operands);

// Whether an operator that models are made of is computed in float32 (wide_steps.cpp).
bool is_computed_wide(c10::ScalarType dtype);

}  // namespace castoff
