// Gradients of gradients through torch_xla's own functions of autograd. Their backward calls its
// kernels past autograd, so that the gradient of einsum or of max pooling is a constant to
// create_graph=True. Here such a gradient comes from torch's formula, which is differentiable.

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/einsum_native.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/max_pool3d_with_indices_ops.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <typeinfo>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/values.h"

namespace castoff {
namespace {

using at::Tensor;
using torch::autograd::variable_list;
using Arguments = std::vector<c10::IValue>;

// What the operator computes of these tensors and its other arguments, by differentiable operators.
using Formula = Tensor (*)(const variable_list&, const Arguments&);

// equation, tensors, path
Tensor einsum(const variable_list& tensors, const Arguments& arguments) {
  return at::native::einsum(arguments[0].toStringView(), tensors);
}

// self, kernel_size, stride, padding, dilation, ceil_mode
template <class Op>
Tensor max_pool(const variable_list& tensors, const Arguments& arguments) {
  const auto sizes = [&](size_t i) { return arguments[i].toIntVector(); };
  return std::get<0>(
      Op::call(tensors[0], sizes(1), sizes(2), sizes(3), sizes(4), arguments[5].toBool()));
}

class DifferentiableGradient final : public torch::autograd::FunctionPostHook {
 public:
  DifferentiableGradient(Formula formula, variable_list tensors, Arguments arguments)
      : formula_(formula), tensors_(std::move(tensors)), arguments_(std::move(arguments)) {}

  variable_list operator()(const variable_list& gradients,
                           const variable_list& of_result) override {
    const bool last = !torch::autograd::get_current_graph_task_keep_graph();
    const variable_list tensors = last ? std::exchange(tensors_, {}) : tensors_;
    const bool wanted = at::GradMode::is_enabled() && of_result.size() == 1 &&
                        of_result[0].defined() && gradients.size() == tensors.size();
    return wanted ? differentiable(gradients, of_result, tensors) : gradients;
  }

 private:
  // A tensor that is there twice has two gradients.
  variable_list differentiable(variable_list gradients, const variable_list& of_result,
                               const variable_list& tensors) const {
    variable_list operands, differentiated;
    for (const Tensor& t : tensors) {
      operands.push_back(t.requires_grad() ? at::_ops::alias::call(t) : t);
      if (t.requires_grad()) differentiated.push_back(operands.back());
    }
    const variable_list found = torch::autograd::grad(
        {formula_(operands, arguments_)}, differentiated, of_result, /*retain_graph=*/true,
        /*create_graph=*/true, /*allow_unused=*/true);
    size_t next = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].requires_grad()) continue;
      const Tensor& gradient = found[next++];
      if (gradient.defined() && gradients[i].defined()) gradients[i] = gradient;
    }
    return gradients;
  }

  const Formula formula_;
  variable_list tensors_;
  const Arguments arguments_;
};

// Whether it is one of torch_xla's functions: torch's own have differentiable gradients.
bool is_function_of_torch_xla(const torch::autograd::Node& node) {
  const char* name = typeid(node).name();
  return std::strstr(name, "torch_xla") != nullptr &&
         std::strstr(name, "AutogradFunction") != nullptr;
}

// Who packs saved tensors, to recompute them or to keep them elsewhere, keeps none of them as is.
bool are_saved_tensors_packed() {
  return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

// Whether the operator is answered otherwise, because torch_xla's gradients of it are wrong.
using Answered = bool (*)(Call&, const variable_list&);

template <Formula formula, size_t at, Answered answered = nullptr>
void differentiate_twice(Call& call) {
  if (!at::GradMode::is_enabled()) return call.proceed();
  variable_list tensors;
  if (call[at].isTensorList()) {
    tensors = call[at].toTensorVector();
  } else {
    tensors.push_back(call.tensor(at));
  }
  const bool differentiated = std::any_of(tensors.begin(), tensors.end(),
                                          [](const Tensor& t) { return t.requires_grad(); });
  if (!differentiated) return call.proceed();
  if constexpr (answered != nullptr) {
    if (answered(call, tensors)) return;
  }
  if (are_saved_tensors_packed()) return call.proceed();
  Arguments arguments(call.begin(), call.end());
  arguments[at] = c10::IValue();
  call.proceed();
  const auto& node = call.result().toTensor().grad_fn();
  if (node == nullptr || !is_function_of_torch_xla(*node)) return;
  node->add_post_hook(
      std::make_unique<DifferentiableGradient>(formula, std::move(tensors), std::move(arguments)));
}

}  // namespace

void mend_second_gradients(torch::Library& autograd) {
  remedy(autograd, differentiate_twice<einsum, 1, einsum_answered_by_torch>, "einsum", kAutograd);
  remedy(autograd, differentiate_twice<max_pool<at::_ops::max_pool2d_with_indices>, 0>,
         "max_pool2d", kAutograd);
  remedy(autograd, differentiate_twice<max_pool<at::_ops::max_pool3d_with_indices>, 0>,
         "max_pool3d", kAutograd);
}

}  // namespace castoff
