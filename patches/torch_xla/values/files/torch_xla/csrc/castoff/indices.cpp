// Indices of several kinds, beyond what they index, or counted from the end, and numbers where
// torch_xla takes tensors of one dimension.

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_copy.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cstdint>

#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/values.h"

namespace castoff {
namespace {

// ---- one tensor of indices

// torch_xla asks for the rank of the index's node, and a node of several outputs, such as that of
// sort, topk or max, has none: the process ends.
template <size_t position>
void index_of_one_output(Call& call) {
  const Tensor& index = call.tensor(position);
  const auto* data = lazy_ir::refusal() ? nullptr : lazy_ir::data_of(index);
  if (C10_UNLIKELY(data != nullptr && data->ir_value && data->ir_value.node->num_outputs() > 1)) {
    const Below below;
    call[position] = at::view_copy(index, index.sizes());
  }
}

template <size_t position>
void by_index(Call& call) {
  index_of_one_output<position>(call);
  call.proceed();
}

// self, dim, index, source, whose fractions self must hold.
void add_or_copy(Call& call) {
  const ScalarType self = call.tensor(0).scalar_type(), source = call.tensor(3).scalar_type();
  if (C10_UNLIKELY(!c10::canCast(source, self))) refuse_mixed(call, {self, source});
  by_index<2>(call);
}

// self, dim, index, …: indices may count from the end, where torch_xla fills nothing.
void fill(Call& call) {
  index_of_one_output<2>(call);
  const Tensor self = call.tensor(0), index = call.tensor(2);
  const int64_t dim = call[1].toInt(), rank = self.dim();
  if (index.numel() == 0 || rank == 0 || dim >= rank || dim < -rank) return call.proceed();
  const Below below;
  call[2] = at::where(index < 0, index + self.size(dim), index);
  call.proceed();
}

// weight, indices, offsets, scale_grad_by_freq, mode, …: torch_xla takes the largest of a bag's
// elements and 0.
void embedding_bag(Call& call) {
  constexpr int64_t kMax = 2;
  if (C10_LIKELY(call[4].toInt() != kMax)) return call.proceed();
  call.on_the_cpu();
}

// ---- a list of indices

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

// ---- numbers as tensors of one element

Tensor with_batch(const Tensor& t) {
  return t.dim() > 0 ? t : t.view({1});
}

// self, target, …: also of one row of scores and one class. torch_xla truncates targets that are
// no integers.
void nll_loss(Call& call) {
  const Tensor self = call.tensor(0);
  const ScalarType dtype = call.tensor(1).scalar_type();
  TORCH_CHECK(c10::isIntegralType(dtype, /*includeBool=*/false), call.op().schema().name(),
              ": expected classes of int64 as targets, but found ", dtype,
              ". Convert them: target.long().");
  check_floats(call);
  if (self.numel() == 0) return call.on_the_cpu();
  if (C10_LIKELY(self.dim() != 1)) return call.proceed();
  const Below below;
  call[0] = self.unsqueeze(0);
  call[1] = with_batch(call.tensor(1));
  call.proceed();
  call.result() = call.result().toTensor().view(at::IntArrayRef());
}

// grad_output, self, target, …
void nll_loss_backward(Call& call) {
  const Tensor self = call.tensor(1);
  if (self.numel() == 0) return call.on_the_cpu();
  if (C10_LIKELY(self.dim() != 1)) return call.proceed();
  const Below below;
  constexpr size_t kReduction = 4;
  if (call[kReduction].toInt() == at::Reduction::None) call[0] = with_batch(call.tensor(0));
  call[1] = self.unsqueeze(0);
  call[2] = with_batch(call.tensor(2));
  call.proceed();
  call.result() = call.result().toTensor().squeeze(0);
}

// self, dim, index, …: a number counts as one of one element, and an index without elements may
// have any rank.
void gather(Call& call) {
  const Tensor self = call.tensor(0), index = call.tensor(2);
  if (C10_LIKELY(self.dim() == index.dim() && index.numel() > 0)) return call.proceed();
  const Below below;
  if (index.numel() == 0) return call.answer(at::empty(index.sizes(), self.options()));
  if (std::max(self.dim(), index.dim()) > 1) return call.proceed();
  call[0] = with_batch(self);
  call[2] = with_batch(index);
  call.proceed();
  call.result() = call.result().toTensor().view(index.sizes());
}

// As torch's check of a scatter, of sizes of one rank. torch_xla cuts what is too large off, or
// fails when it compiles.
void check_index(at::IntArrayRef self, int64_t dim, at::IntArrayRef index, at::IntArrayRef src) {
  dim = c10::maybe_wrap_dim(dim, static_cast<int64_t>(self.size()));
  for (size_t i = 0; i < self.size(); ++i) {
    TORCH_CHECK((static_cast<int64_t>(i) == dim || index[i] <= self[i]) && index[i] <= src[i],
                "Expected index ", index, " to be no larger than self ", self,
                " apart from dimension ", dim, ", and no larger than src ", src, ".");
  }
}

// A number counts as one of one element, and an index without elements writes nothing.
void scatter_of_numbers(Call& call, const Tensor self, const Tensor index) {
  const bool of_tensor = call[3].isTensor();
  const Below below;
  if (index.numel() == 0) return call.answer(at::clone(self));
  if (std::max({self.dim(), index.dim(), of_tensor ? call.tensor(3).dim() : 0}) > 1)
    return call.proceed();
  call[0] = with_batch(self);
  call[2] = with_batch(index);
  if (of_tensor) call[3] = with_batch(call.tensor(3));
  call.proceed();
  call.result() = call.result().toTensor().view(self.sizes());
}

// self, dim, index, a tensor or a number, …
void scatter(Call& call) {
  const Tensor &self = call.tensor(0), &index = call.tensor(2);
  const at::IntArrayRef sizes = self.sizes(), of_index = index.sizes();
  const bool of_tensor = call[3].isTensor();
  const at::IntArrayRef of_src = of_tensor ? call.tensor(3).sizes() : of_index;
  const bool is_of_one_rank = sizes.size() == of_index.size() && sizes.size() == of_src.size();
  if (C10_UNLIKELY(!is_of_one_rank || index.numel() == 0)) {
    return scatter_of_numbers(call, self, index);
  }
  check_index(sizes, call[1].toInt(), of_index, of_src);
  call.proceed();
}

// self, mask, source: torch_xla takes no mask of more dimensions than self, none of 0, and no
// source of more elements.
void masked_scatter(Call& call) {
  const Tensor self = call.tensor(0), mask = call.tensor(1);
  const Below below;
  if (C10_UNLIKELY(mask.sizes() != self.sizes())) {
    const auto shape = at::infer_size(self.sizes(), mask.sizes());
    call[0] = self.expand(shape);
    call[1] = mask.expand(shape);
  }
  const int64_t places = call.tensor(0).numel();
  if (C10_UNLIKELY(call.tensor(2).numel() > places)) {
    call[2] = call.tensor(2).reshape(-1).slice(0, 0, places);
  }
  if (C10_LIKELY(self.dim() > 0 || mask.dim() > 0)) return call.proceed();
  call[0] = with_batch(self);
  call[1] = with_batch(mask);
  call.proceed();
  call.result() = call.result().toTensor().view(at::IntArrayRef());
}

}  // namespace

void mend_indices(torch::Library& xla) {
  remedy(xla, by_index<1>, "embedding embedding_dense_backward");
  remedy(xla, by_index<2>, "index_select");
  remedy(xla, add_or_copy, "index_add index_copy");
  remedy(xla, fill, "index_fill_.int_Scalar index_fill_.int_Tensor");
  remedy(xla, embedding_bag, "_embedding_bag_forward_only");
  remedy(xla, list_of_indices, "_index_put_impl_ index.Tensor index_put_");
  remedy(xla, nll_loss, "nll_loss_forward nll_loss2d_forward");
  remedy(xla, nll_loss_backward, "nll_loss_backward nll_loss2d_backward");
  remedy(xla, gather, "gather");
  remedy(xla, scatter,
         "scatter.reduce scatter.src scatter.value scatter.value_reduce scatter_add "
         "scatter_reduce.two");
  remedy(xla, masked_scatter, "masked_scatter");
}

}  // namespace castoff
