// convolution, which conv1d, conv2d, conv3d and their transposed kin come down to.
#include <torch_xla/csrc/castoff/wide_weight_grad.h>

#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>

#include <array>
#include <vector>

namespace torch_xla::wide_weight_grad {
namespace {

using Ints = std::vector<int64_t>;

Ints ints(c10::SymIntArrayRef values) {
  Ints all;
  for (const auto& value : values) all.push_back(value.guard_int(__FILE__, __LINE__));
  return all;
}

// The gradient of the weight, in float32, of one native convolution.
Tensor weight_grad(const Tensor& grad, const Tensor& input, const Tensor& weight,
                   const Ints& stride, const Ints& padding, const Ints& dilation, bool transposed,
                   int64_t groups) {
  using Signature = Tensor(const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef,
                           at::IntArrayRef, at::IntArrayRef, bool, int64_t, ScalarType);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("castoff::convolution_weight_grad", "")
                             .typed<Signature>();
  return recorded_if_wanted([&] {
    return op.call(grad, input, weight.sizes(), stride, padding, dilation, transposed, groups,
                   ScalarType::Float);
  });
}

// The sum over all dimensions but that of the channels.
Tensor bias_grad(const Tensor& grad) {
  Ints dims;
  for (int64_t dim = 0; dim < grad.dim(); ++dim) {
    if (dim != 1) dims.push_back(dim);
  }
  return grad.sum(dims, /*keepdim=*/false, ScalarType::Float);
}

// Saves input and weight.
class WideConvolution final : public Formula {
 public:
  std::string name() const override { return "WideConvolutionBackward0"; }

  std::optional<Ints> bias_sizes;
  Ints stride, padding, dilation, output_padding;
  bool transposed = false;
  int64_t groups = 1;

  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    const Tensor &x = saved[0], &w = saved[1];
    std::array<bool, 3> narrow{wants.any[0], wants.any[1], bias_sizes.has_value() && wants.any[2]};
    if (wants.wide[1]) {
      narrow[1] = false;
      results[1] = weight_grad(grad, x, w, stride, padding, dilation, transposed, groups);
    }
    if (narrow[2] && wants.wide[2]) {
      narrow[2] = false;
      results[2] = bias_grad(grad);
    }
    add_narrow(grad, x, w, narrow, results);
  }
  std::vector<c10::IValue> constants() const override {
    return {bias_sizes, stride, padding, dilation, output_padding, transposed, groups};
  }

 private:
  // The gradients that `mask` asks for, as stock makes them.
  void add_narrow(const Tensor& grad, const Tensor& x, const Tensor& w, std::array<bool, 3> mask,
                  variable_list& results) const {
    if (!mask[0] && !mask[1] && !mask[2]) return;
    const auto symbolic = [](const Ints& values) { return c10::fromIntArrayRefSlow(values); };
    auto [of_input, of_weight, of_bias] = at::_ops::convolution_backward::call(
        grad, x, w,
        bias_sizes ? at::OptionalSymIntArrayRef(symbolic(*bias_sizes))
                   : at::OptionalSymIntArrayRef(),
        symbolic(stride), symbolic(padding), symbolic(dilation), transposed,
        symbolic(output_padding), groups, mask);
    if (mask[0]) results[0] = std::move(of_input);
    if (mask[1]) results[1] = std::move(of_weight);
    if (mask[2]) results[2] = std::move(of_bias);
  }
};

Tensor convolution(DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                   const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
                   c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                   c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  using Op = at::_ops::convolution;
  if (!in_use() || (!is_wide(weight) && !is_wide(bias)) ||
      has_forward_gradient(input, weight, bias)) {
    return Overridden<Op>::call(keys, input, weight, bias, stride, padding, dilation, transposed,
                                output_padding, groups);
  }
  auto formula = std::make_shared<WideConvolution>();
  if (bias && bias->defined()) formula->bias_sizes = ints(bias->sym_sizes());
  formula->stride = ints(stride);
  formula->padding = ints(padding);
  formula->dilation = ints(dilation);
  formula->output_padding = ints(output_padding);
  formula->transposed = transposed;
  formula->groups = groups.guard_int(__FILE__, __LINE__);
  const auto node = make_node(std::move(formula), input, weight, bias);
  node->save(input);
  node->save(weight);
  return record(node, [&] {
    return Op::redispatch(keys & c10::after_autograd_keyset, input, weight, bias, stride, padding,
                          dilation, transposed, output_padding, groups);
  });
}

}  // namespace

void register_convolution(torch::Library& library) {
  override_kernel<at::_ops::convolution>(library, TORCH_FN(convolution));
}

}  // namespace torch_xla::wide_weight_grad
