// Indices that count from the end, and indices beyond what they index.

#include "torch_xla/csrc/castoff/indices.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using at::ScalarType;
using at::Tensor;

// self, dim, index, …: indices may count from the end, where torch_xla fills nothing.
void fill_from_the_end(Call& call) {
  const Tensor self = call.tensor(0), index = call.tensor(2);
  const int64_t dim = call[1].toInt(), rank = self.dim();
  if (index.numel() == 0 || rank == 0 || dim >= rank || dim < -rank) return call.proceed();
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto from_the_start = [&] { return at::add(index, self.size(dim)); };
  call[2] = at::where(at::lt(index, 0), from_the_start(), index);
  call.proceed();
}

bool is_mask(const Tensor& index) {
  return index.scalar_type() == ScalarType::Bool || index.scalar_type() == ScalarType::Byte;
}

template <class Number>
int64_t first_beyond(const Tensor& indices, int64_t size) {
  const auto* begin = indices.const_data_ptr<Number>();
  const auto* end = begin + indices.numel();
  const auto* found =
      std::find_if(begin, end, [=](Number index) { return index < -size || index >= size; });
  return found == end ? 0 : static_cast<int64_t>(*found);
}

// An index of the CPU that is not in a dimension of this size; 0 if there is none.
int64_t first_beyond(const Tensor& index, int64_t size) {
  if (!index.device().is_cpu() || size == 0) return 0;
  const ScalarType dtype = index.scalar_type();
  const Tensor indices = index.contiguous();
  if (dtype == ScalarType::Long) return first_beyond<int64_t>(indices, size);
  return dtype == ScalarType::Int ? first_beyond<int32_t>(indices, size) : 0;
}

// self, indices, …: of indices beyond self XLA reads the nearest, and writes none. The values of
// those on the CPU are at hand.
void list_of_indices(Call& call) {
  const Tensor& self = call.tensor(0);
  int64_t dim = 0;
  for (const c10::IValue& entry : call[1].toListRef()) {
    if (dim >= self.dim()) break;  // which the kernel refuses
    if (!is_tensor(entry) || !is_mask(entry.toTensor())) {
      const int64_t size = self.size(dim);
      const int64_t index = is_tensor(entry) ? first_beyond(entry.toTensor(), size) : 0;
      TORCH_CHECK_INDEX(index == 0, "index ", index, " is out of bounds for dimension ", dim,
                        " with size ", size);
      ++dim;
    } else {
      dim += entry.toTensor().dim();
    }
  }
  call.proceed();
}

}  // namespace

void mend_indices(torch::Library& xla) {
  remedy(xla, fill_from_the_end, "index_fill_.int_Scalar index_fill_.int_Tensor");
  remedy(xla, list_of_indices, "_index_put_impl_ index.Tensor index_put_");
}

}  // namespace castoff
