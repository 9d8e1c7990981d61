#include <torch_xla/csrc/castoff/wide_weight_grad.h>

#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/var_mean.h>

#include <array>
#include <tuple>
#include <vector>

namespace torch_xla::wide_weight_grad {
namespace {

// Saves input, weight, running mean and variance, and the mean and inverse deviation that it used.
class WideBatchNorm final : public Formula {
 public:
  std::string name() const override { return "WideBatchNormBackward0"; }

  bool training = false;
  double eps = 0;

  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    const Tensor &x = saved[0], &w = saved[1], &mean = saved[2], &var = saved[3];
    const std::array<bool, 3> narrow{wants.any[0], wants.any[1] && !wants.wide[1],
                                     wants.any[2] && !wants.wide[2]};
    if (wants.wide[1]) {
      results[1] = to_float(grad).mul(normalized(x, mean, var)).sum(all_but_channels(x));
    }
    if (wants.wide[2]) {
      results[2] = grad.sum(all_but_channels(x), /*keepdim=*/false, ScalarType::Float);
    }
    if (!narrow[0] && !narrow[1] && !narrow[2]) return;
    auto stock = at::_ops::native_batch_norm_backward::call(grad, x, w, mean, var, saved[4],
                                                            saved[5], training, eps, narrow);
    if (narrow[0]) results[0] = std::get<0>(std::move(stock));
    if (narrow[1]) results[1] = std::get<1>(std::move(stock));
    if (narrow[2]) results[2] = std::get<2>(std::move(stock));
  }
  std::vector<c10::IValue> constants() const override { return {training, eps}; }

 private:
  static std::vector<int64_t> all_but_channels(const Tensor& x) {
    std::vector<int64_t> dims{0};
    for (int64_t dim = 2; dim < x.dim(); ++dim) dims.push_back(dim);
    return dims;
  }

  // The normalised input in float32. The statistics that the forward pass saved are in the weight's
  // dtype; those of the batch are made again.
  Tensor normalized(const Tensor& x, const Tensor& mean, const Tensor& var) const {
    const Tensor wide = to_float(x);
    if (training) {
      const auto [v, m] =
          at::var_mean(wide, all_but_channels(x), /*correction=*/0, /*keepdim=*/true);
      return wide.sub(m).mul(v.add(eps).rsqrt());
    }
    std::vector<int64_t> channels(x.dim(), 1);
    channels[1] = -1;
    return wide.sub(to_float(mean).view(channels))
        .mul(to_float(var).view(channels).add(eps).rsqrt());
  }
};

std::tuple<Tensor, Tensor, Tensor> batch_norm(DispatchKeySet keys, const Tensor& input,
                                              const std::optional<Tensor>& weight,
                                              const std::optional<Tensor>& bias,
                                              const std::optional<Tensor>& running_mean,
                                              const std::optional<Tensor>& running_var,
                                              bool training, double momentum, double eps) {
  using Op = at::_ops::native_batch_norm;
  if (!in_use() || (!is_wide(weight) && !is_wide(bias)) ||
      has_forward_gradient(input, weight, bias)) {
    return Overridden<Op>::call(keys, input, weight, bias, running_mean, running_var, training,
                                momentum, eps);
  }
  auto formula = std::make_shared<WideBatchNorm>();
  formula->training = training;
  formula->eps = eps;
  const auto node = make_node(std::move(formula), input, weight, bias);
  for (const auto& saved : {std::optional<Tensor>(input), weight, running_mean, running_var}) {
    node->save(saved);
  }
  auto results = [&] {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return Op::redispatch(keys & c10::after_autograd_keyset, input, weight, bias, running_mean,
                          running_var, training, momentum, eps);
  }();
  auto& [output, mean, invstd] = results;
  torch::autograd::set_history(std::vector<Tensor>{output, mean, invstd}, node);
  node->remember_dtype();
  node->save(mean, /*is_needed=*/true, /*is_output=*/true);
  node->save(invstd, /*is_needed=*/true, /*is_output=*/true);
  return results;
}

}  // namespace

void register_batch_norm(torch::Library& library) {
  override_kernel<at::_ops::native_batch_norm>(library, TORCH_FN(batch_norm));
}

}  // namespace torch_xla::wide_weight_grad
