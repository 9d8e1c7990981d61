#include <torch_xla/csrc/castoff/wide_weight_grad.h>

#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/var_mean.h>

#include <array>
#include <tuple>
#include <vector>

namespace torch_xla::wide_weight_grad {
namespace {

class WideBatchNormBackward0 final : public WideNode {
 public:
  std::string name() const override { return "WideBatchNormBackward0"; }

  SavedVariable input, weight, running_mean, running_var, save_mean, save_invstd;
  bool training = false;
  double eps = 0;

 protected:
  void differentiate(const Tensor& grad, variable_list& results) override {
    const Tensor x = unpack(input), w = unpack(weight), mean = unpack(running_mean),
                 var = unpack(running_var), saved_mean = unpack(save_mean),
                 saved_invstd = unpack(save_invstd);
    if (!grad.defined()) return;
    std::array<bool, 3> narrow{wants(0), wants(1), wants(2)};
    if (narrow[1] && wants_wide(1)) {
      narrow[1] = false;
      results[1] = to_float(grad).mul(normalized(x, mean, var)).sum(all_but_channels(x));
    }
    if (narrow[2] && wants_wide(2)) {
      narrow[2] = false;
      results[2] = grad.sum(all_but_channels(x), /*keepdim=*/false, ScalarType::Float);
    }
    if (!narrow[0] && !narrow[1] && !narrow[2]) return;
    auto stock = at::_ops::native_batch_norm_backward::call(grad, x, w, mean, var, saved_mean,
                                                            saved_invstd, training, eps, narrow);
    if (narrow[0]) results[0] = std::get<0>(std::move(stock));
    if (narrow[1]) results[1] = std::get<1>(std::move(stock));
    if (narrow[2]) results[2] = std::get<2>(std::move(stock));
  }
  void release() override {
    for (auto* saved : {&input, &weight, &running_mean, &running_var, &save_mean, &save_invstd}) {
      saved->reset_data();
    }
  }

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

SavedVariable save_optional(const std::optional<Tensor>& input) {
  return SavedVariable(input, /*is_output=*/false);
}

std::tuple<Tensor, Tensor, Tensor> batch_norm(DispatchKeySet keys, const Tensor& input,
                                              const std::optional<Tensor>& weight,
                                              const std::optional<Tensor>& bias,
                                              const std::optional<Tensor>& running_mean,
                                              const std::optional<Tensor>& running_var,
                                              bool training, double momentum, double eps) {
  using Op = at::_ops::native_batch_norm;
  if (!in_use() || (!is_wide(weight) && !is_wide(bias)) ||
      has_forward_gradient(input, weight, bias)) {
    return Previous<Op>::call(keys, input, weight, bias, running_mean, running_var, training,
                              momentum, eps);
  }
  const auto node = make_node<WideBatchNormBackward0>();
  node->set_next_edges(torch::autograd::collect_next_edges(input, weight, bias));
  node->input = save(input);
  node->weight = save_optional(weight);
  node->running_mean = save_optional(running_mean);
  node->running_var = save_optional(running_var);
  node->training = training;
  node->eps = eps;
  auto results = [&] {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return Op::redispatch(keys & c10::after_autograd_keyset, input, weight, bias, running_mean,
                          running_var, training, momentum, eps);
  }();
  auto& [output, mean, invstd] = results;
  torch::autograd::set_history(std::vector<Tensor>{output, mean, invstd}, node);
  node->save_mean = SavedVariable(mean, /*is_output=*/true);
  node->save_invstd = SavedVariable(invstd, /*is_output=*/true);
  return results;
}

}  // namespace

void register_batch_norm(torch::Library& library) {
  stand_before<at::_ops::native_batch_norm>(library, TORCH_FN(batch_norm));
}

}  // namespace torch_xla::wide_weight_grad
