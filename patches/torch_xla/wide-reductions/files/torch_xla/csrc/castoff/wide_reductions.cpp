// Means, norms, softmax, pooling and losses of bfloat16 and float16, computed in float32 and
// rounded once, as torch's CPU and CUDA kernels do. With dtype= the operand is converted first, as
// torch documents. Of sums, those that a backward pass adds.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/graph_task.h>

#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/target.h"
#include "torch_xla/csrc/castoff/wide.h"

namespace castoff {
namespace {

using at::ScalarType;

// ---- reductions with dtype=, which is argument `dtype`

template <size_t dtype>
void reduce_wide(Call& call) {
  const ScalarType from = call.tensor(0).scalar_type();
  const ScalarType to = call[dtype].isNone() ? from : call[dtype].toScalarType();
  if (C10_LIKELY(from == to && !is_half(from))) return call.proceed();
  if (from != to) call[0] = cast(call.tensor(0), to);
  if (!is_half(to)) return call.proceed();
  call[0] = cast(call.tensor(0), ScalarType::Float);
  call[dtype] = ScalarType::Float;
  call.proceed();
  round(call, to);
}

// ---- sums in a backward pass

// bfloat16 has 8 digits: adding ones, a sum stays at 256.
constexpr int64_t kManyElements = 256;

// How many elements each sum adds up; `dims` is argument 1, or absent for all.
int64_t summands(Call& call, bool has_dims) {
  const at::Tensor& x = call.tensor(0);
  if (!has_dims || call[1].isNone() || call[1].toIntVector().empty()) return x.numel();
  int64_t count = 1;
  for (const int64_t dim : call[1].toIntVector()) count *= x.size(dim);
  return count;
}

// The gradient of an operand that was broadcast, such as a bias, is a sum that the program does not
// write. One that it writes has the dtype= that it gives. A TPU's compiler sums in float32 by
// itself.
template <size_t dtype>
void sum(Call& call) {
  if (C10_LIKELY(!is_half_tensor(call[0])) || !call[dtype].isNone() || is_for_tpu() ||
      torch::autograd::get_current_graph_task_id() == -1 ||
      summands(call, dtype == 3) < kManyElements) {
    return call.proceed();
  }
  compute_wide(call);
}

// ---- softmax

// self, dim, half_to_float
void softmax(Call& call) {
  if (C10_LIKELY(!is_half_tensor(call[0]))) return call.proceed();
  const ScalarType dtype = call[2].toBool() ? ScalarType::Float : call.tensor(0).scalar_type();
  widen(call);
  call[2] = false;
  call.proceed();
  if (dtype != ScalarType::Float) round(call, dtype);
}

// grad_output, output, dim, input_dtype
void softmax_backward(Call& call) {
  const ScalarType dtype = call[3].toScalarType();
  if (C10_LIKELY(!is_half(dtype))) return call.proceed();
  widen(call);
  call[3] = ScalarType::Float;
  call.proceed();
  round(call, dtype);
}

// ---- registration

void install() {
  const QuietOverride quiet;
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, reduce_wide<1>, {{"aten::mean", ""}});
  remedy(xla, reduce_wide<3>, {{"aten::mean", "dim"}});
  remedy(xla, sum<1>, {{"aten::sum", ""}});
  remedy(xla, sum<3>, {{"aten::sum", "dim_IntList"}});
  remedy(xla, reduce_wide<4>,
         {{"aten::linalg_vector_norm", ""}, {"aten::norm", "ScalarOpt_dim_dtype"}});
  remedy(xla, softmax, {{"aten::_softmax", ""}});
  remedy(xla, softmax_backward, {{"aten::_softmax_backward_data", ""}});
  remedy(xla, compute_wide,
         {
             {"aten::_adaptive_avg_pool2d", ""},
             {"aten::avg_pool2d", ""},
             {"aten::binary_cross_entropy", ""},
             {"aten::binary_cross_entropy_with_logits", ""},
             {"aten::log_sigmoid_forward", ""},
             {"aten::mse_loss", ""},
             {"aten::norm", "Scalar"},
             {"aten::norm", "ScalarOpt_dim"},
             {"aten::smooth_l1_loss", ""},
             {"aten::std", ""},
             {"aten::std", "correction"},
             {"aten::std", "dim"},
             {"aten::std_mean", "correction"},
             {"aten::var", "correction"},
             {"aten::var_mean", "correction"},
         });
}

}  // namespace
}  // namespace castoff

// Puts the kernels in place; nullptr, or what went wrong. Call it once.
extern "C" __attribute__((visibility("default"))) const char* castoff_wide_reductions_install() {
  return castoff::put_in_place(castoff::install);
}
