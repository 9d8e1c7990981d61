// Reductions over an empty list of dimensions, which means all of them, and operators along a
// dimension of a tensor that has none, which torch takes as a tensor of one element.

#include <ATen/core/Tensor.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/view_copy_ops.h>

#include <numeric>
#include <vector>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using c10::IValue;

Tensor as_shape(const Tensor& t, std::initializer_list<c10::SymInt> shape) {
  return at::_ops::view_copy::redispatch(kXla, t, c10::SymIntArrayRef(shape.begin(), shape.size()));
}

// ---- 0-d tensors

bool is_0d(const IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == 0;
}

void drop_dimension(IValue& result) {
  if (!result.isTensor() || !result.toTensor().defined()) return;
  const Tensor& t = result.toTensor();
  if (t.dim() == 1 && t.numel() == 1) result = as_shape(t, {});
}

// With each of the first `operands` arguments that is a 0-d tensor as a tensor of one element, and
// the results of one element as 0-d tensors.
template <size_t operands>
void along_a_dimension(Call& call) {
  if (C10_LIKELY(!is_0d(call[0]))) return call.proceed();
  for (size_t i = 0; i < operands; ++i) {
    if (is_0d(call[i])) call[i] = as_shape(call.tensor(i), {1});
  }
  const size_t results = call.results();
  call.proceed();
  for (size_t i = 0; i < results; ++i) drop_dimension(call.result(i));
}

// Fills in place, if there is an index at all.
void fill_along_a_dimension(Call& call) {
  if (C10_LIKELY(!is_0d(call[0]))) return call.proceed();
  Tensor self = call.tensor(0);
  call[0] = as_shape(self, {1});
  if (is_0d(call[2])) call[2] = as_shape(call.tensor(2), {1});
  call.proceed();
  at::_ops::copy_::redispatch(kXla, self, as_shape(call.result().toTensor(), {}), false);
  call.result() = self;
}

// ---- reductions over a list of dimensions

bool is_empty_list(const IValue& dims) {
  return dims.isIntList() && dims.toIntList().empty();
}

// The dimensions are argument `dims`.
template <size_t dims>
void over_dimensions(Call& call) {
  const int64_t rank = call.tensor(0).dim();
  if (C10_LIKELY(rank > 0 && !is_empty_list(call[dims]))) return call.proceed();
  if (rank == 0) {
    // Every one of 0 and -1 is dimension 0 of the tensor of one element; what keepdim keeps is
    // dropped.
    if (call[dims].isIntList() && call[dims].toIntList().empty())
      call[dims] = std::vector<int64_t>{0};
    return along_a_dimension<1>(call);
  }
  std::vector<int64_t> all(rank);
  std::iota(all.begin(), all.end(), 0);
  call[dims] = std::move(all);
  call.proceed();
}

// ---- registration

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, over_dimensions<1>,
         "amax amin logsumexp mean.dim std.correction std.dim std_mean.correction sum.dim_IntList "
         "var.correction var_mean.correction count_nonzero.dim_IntList");
  remedy(xla, over_dimensions<2>, "linalg_vector_norm norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype");
  remedy(xla, along_a_dimension<1>,
         "_log_softmax _softmax all.dim any.dim argmax argmin cummax cumprod cumsum flip kthvalue "
         "max.dim min.dim prod.dim_int sort sort.stable squeeze_copy.dim squeeze_copy.dims topk");
  remedy(xla, fill_along_a_dimension, "index_fill_.int_Scalar index_fill_.int_Tensor");
  remedy(xla, along_a_dimension<2>, "_log_softmax_backward_data _softmax_backward_data");
  // self, dim, index[, source]; a value to fill with stays as it is.
  remedy(xla, along_a_dimension<3>, "gather index_select scatter.value scatter.value_reduce");
  remedy(xla, along_a_dimension<4>,
         "index_add index_copy scatter.reduce scatter.src scatter_add scatter_reduce.two");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_reduce_all_install)
