#include <torch/csrc/autograd/expanded_gradients.h>

#include <torch/csrc/castoff/kill_switch.h>
#include <torch/csrc/castoff/torch_version.h>

#if CASTOFF_TORCH_AT_LEAST(2, 6)
#include <torch/csrc/castoff/view_metas.h>

#include <algorithm>
#endif

namespace torch::autograd::grad_dtype {

#if CASTOFF_TORCH_AT_LEAST(2, 6)

void copy_expanded_view(at::Tensor& grad) {
  static const bool enabled = castoff::topic_enabled("grad-dtype");
  if (!enabled || !at::functionalization::impl::isFunctionalTensor(grad)) {
    return;
  }
  const auto& views =
      castoff::views_of(*at::functionalization::impl::unsafeGetFunctionalWrapper(grad));
  if (std::any_of(views.begin(), views.end(),
                  [](const auto& view) { return castoff::operator_of(view) == "expand"; })) {
    grad = grad.clone();
  }
}

#else  // no topic refuses the write there

void copy_expanded_view(at::Tensor& /*grad*/) {}

#endif

}  // namespace torch::autograd::grad_dtype
