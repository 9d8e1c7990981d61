// aten::lstm with the products of all steps in one, where a step does not wait for another.
//
// torch's formula, which is all that XLA has, multiplies the input of each step by its weights and,
// in the backward pass, has two products for the weights' gradients in each, whose sums it rounds.
// Here the input's product is one for all steps, and so is each gradient of a weight, as on the CPU
// and as in cuDNN. What a step computes from the state before it is as in torch's formula. Calls of
// other forms go to the kernel that is overridden: torch's formula.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm_ops.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/dot_general.h"
#include "torch_xla/csrc/castoff/kernels.h"

namespace castoff {
namespace {

using at::ScalarType;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- the steps of one layer in one direction

// What the steps start from. `products` are those of the input: [steps, batch, 4 * hidden].
struct Start {
  Tensor products, hidden, cell, weight;
  std::optional<Tensor> bias;
  bool reverse;

  int64_t count() const { return products.size(0); }
  // The steps in the order in which they are computed.
  int64_t place(int64_t step) const { return reverse ? count() - 1 - step : step; }
};

// What each step has, in the order in which they are computed: the four gates, the states, and the
// hyperbolic tangent of the cell.
struct Steps {
  variable_list gates, hidden, cell, tangent;
};

Steps computed(const Start& start) {
  Steps found;
  Tensor hidden = start.hidden, cell = start.cell;
  for (int64_t step = 0; step < start.count(); ++step) {
    const Tensor sum = at::linear(hidden, start.weight, start.bias)
                           .add(start.products.select(0, start.place(step)));
    const variable_list parts = sum.chunk(4, 1);
    const Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid();
    const Tensor candidate = parts[2].tanh(), out = parts[3].sigmoid();
    cell = forget.mul(cell).add(in.mul(candidate));
    found.tangent.push_back(cell.tanh());
    hidden = out.mul(found.tangent.back());
    found.gates.insert(found.gates.end(), {in, forget, candidate, out});
    found.hidden.push_back(hidden);
    found.cell.push_back(cell);
  }
  return found;
}

// In the order of time.
Tensor stacked(variable_list steps, bool reverse) {
  if (reverse) std::reverse(steps.begin(), steps.end());
  return at::stack(steps, 0);
}

Tensor sum_of(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  return a.add(b);
}

// Of [steps, batch, …], a row for each step and element of the batch.
Tensor rows(const Tensor& t) {
  return t.reshape({t.size(0) * t.size(1), t.size(2)});
}

// The gradients of a step, in float32 for narrower tensors.
struct Backward {
  const Start& start;
  const Steps& steps;
  ScalarType dtype = start.products.scalar_type();
  ScalarType wide = is_half(dtype) ? ScalarType::Float : dtype;
  Tensor of_hidden{}, of_cell{};  // by the steps after

  // The gradient of the gates' arguments, rounded for its products.
  Tensor of_step(int64_t step, const Tensor& of_output) {
    const auto gate = [&](int64_t n) { return steps.gates[4 * step + n].to(wide); };
    const Tensor in = gate(0), forget = gate(1), candidate = gate(2), out = gate(3);
    const Tensor tangent = steps.tangent[step].to(wide);
    const Tensor before = (step == 0 ? start.cell : steps.cell[step - 1]).to(wide);
    const Tensor own = of_output.defined() ? of_output.to(wide) : Tensor();
    const Tensor hidden = sum_of(own, of_hidden);
    const Tensor cell = sum_of(hidden.mul(out).mul(one_less_square(tangent)), of_cell);
    const Tensor of_sum =
        at::cat(
            {of_sigmoid(cell.mul(candidate), in), of_sigmoid(cell.mul(before), forget),
             cell.mul(in).mul(one_less_square(candidate)), of_sigmoid(hidden.mul(tangent), out)},
            1)
            .to(dtype);
    of_cell = cell.mul(forget);
    of_hidden = dot_general(of_sum, start.weight, {1}, {0}, {}, wide);
    return of_sum;
  }

 private:
  static Tensor one_less_square(const Tensor& t) { return t.mul(t).neg().add(1); }
  static Tensor of_sigmoid(const Tensor& grad, const Tensor& result) {
    return grad.mul(result.neg().add(1)).mul(result);
  }
};

// ---- autograd

// The products are those of at::linear, which autograd knows.
class Layer final : public torch::autograd::Function<Layer> {
 public:
  static constexpr bool is_traceable = true;  // by compiled autograd

  static variable_list forward(AutogradContext* ctx, const Tensor& products, const Tensor& hidden,
                               const Tensor& cell, const Tensor& weight,
                               const std::optional<Tensor>& bias, bool reverse) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Start start{products, hidden, cell, weight, bias, reverse};
    const Steps steps = computed(start);
    // The last states are results, which the program may write to; they are not saved.
    variable_list saved{products, hidden, cell, weight, bias.value_or(Tensor())};
    saved.insert(saved.end(), steps.gates.begin(), steps.gates.end());
    saved.insert(saved.end(), steps.tangent.begin(), steps.tangent.end());
    saved.insert(saved.end(), steps.hidden.begin(), steps.hidden.end() - 1);
    saved.insert(saved.end(), steps.cell.begin(), steps.cell.end() - 1);
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["reverse"] = reverse;
    ctx->set_materialize_grads(false);
    return {stacked(steps.hidden, reverse), steps.hidden.back(), steps.cell.back()};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor& bias = saved[4];
    const Start start{saved[0],
                      saved[1],
                      saved[2],
                      saved[3],
                      bias.defined() ? std::optional<Tensor>(bias) : std::nullopt,
                      ctx->saved_data["reverse"].toBool()};
    // With create_graph the steps are computed again, from operators that differentiate.
    const bool again = at::GradMode::is_enabled();
    std::optional<at::AutoDispatchBelowADInplaceOrView> below_autograd;
    if (!again) below_autograd.emplace();
    return gradients(start, again ? computed(start) : saved_steps(saved, start.count()), grads);
  }

 private:
  static Steps saved_steps(const variable_list& saved, int64_t count) {
    auto at = saved.begin() + 5;
    const auto take = [&](int64_t n) { return variable_list(std::exchange(at, at + n), at + n); };
    Steps steps;
    steps.gates = take(4 * count);
    steps.tangent = take(count);
    steps.hidden = take(count - 1);
    steps.cell = take(count - 1);
    return steps;
  }

  static variable_list gradients(const Start& start, const Steps& steps,
                                 const variable_list& grads) {
    const int64_t count = start.count();
    Backward pass{start, steps};
    if (grads[1].defined()) pass.of_hidden = grads[1].to(pass.wide);
    if (grads[2].defined()) pass.of_cell = grads[2].to(pass.wide);
    if (!grads[0].defined() && !grads[1].defined()) {
      // The last cell alone has a gradient.
      pass.of_hidden = at::zeros_like(start.hidden, start.hidden.options().dtype(pass.wide));
    }
    variable_list of_sums(count), before(count);
    for (int64_t step = count - 1; step >= 0; --step) {
      const Tensor of_output =
          grads[0].defined() ? grads[0].select(0, start.place(step)) : Tensor();
      of_sums[step] = pass.of_step(step, of_output);
      before[step] = step == 0 ? start.hidden : steps.hidden[step - 1];
    }
    const Tensor of_products = stacked(of_sums, start.reverse);
    const Tensor of_weight = dot_general(rows(of_products), rows(stacked(before, start.reverse)),
                                         {0}, {0}, {}, pass.wide);
    Tensor of_bias;
    if (start.bias) of_bias = rows(of_products).sum(0, /*keepdim=*/false, pass.wide);
    return {of_products, pass.of_hidden, pass.of_cell, of_weight, of_bias, Tensor()};
  }
};

// ---- which calls

struct Call {
  Tensor input;  // [steps, batch, features]
  at::TensorList state, parameters;
  bool has_biases;
  int64_t layers;
  double dropout;
  bool train, bidirectional;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t each() const { return has_biases ? 4 : 2; }
};

// An XLA tensor that nothing but autograd or functionalization looks at.
bool is_plain(const Tensor& t, ScalarType dtype) {
  static const DispatchKeySet transforms =
      DispatchKeySet({DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper,
                      DispatchKey::Batched, DispatchKey::Python});
  return t.defined() && t.is_xla() && t.scalar_type() == dtype && !t.is_nested() &&
         !t.key_set().has_any(transforms) &&
         !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
         !torch::autograd::isFwGradDefined(t);
}

// Under SPMD the batch can be sharded, of which the steps' rows are parts.
bool is_spmd() {
  const char* asked = std::getenv("XLA_USE_SPMD");  // torch_xla's use_spmd() sets it
  return asked != nullptr && std::string_view(asked) != "0";
}

// Sizes that torch takes, of several steps; for others it says what is wrong.
bool fits(const Call& call) {
  const Tensor& input = call.input;
  const int64_t count = call.layers * call.directions();
  if (call.layers < 1 || input.size(0) < 2 || input.numel() == 0 || call.state.size() != 2 ||
      static_cast<int64_t>(call.parameters.size()) != count * call.each()) {
    return false;
  }
  const int64_t hidden = call.parameters[1].size(-1);
  for (const Tensor& state : call.state) {
    if (state.sizes() != at::IntArrayRef({count, input.size(1), hidden})) return false;
  }
  for (int64_t at = 0; at < count; ++at) {
    const at::TensorList own = call.parameters.slice(at * call.each(), call.each());
    const int64_t width = at < call.directions() ? input.size(2) : hidden * call.directions();
    if (own[0].sizes() != at::IntArrayRef({4 * hidden, width}) ||
        own[1].sizes() != at::IntArrayRef({4 * hidden, hidden})) {
      return false;
    }
  }
  return hidden > 0;
}

bool is_taken(const Call& call) {
  const ScalarType dtype = call.input.scalar_type();
  const auto plain = [&](const Tensor& t) { return is_plain(t, dtype); };
  return at::isFloatingType(dtype) && plain(call.input) && call.input.dim() == 3 &&
         std::all_of(call.state.begin(), call.state.end(), plain) &&
         std::all_of(call.parameters.begin(), call.parameters.end(), plain) &&
         !autocast_enabled() && !is_spmd() && fits(call);
}

// The output of one layer, of all directions; the states of each are added.
Tensor layer(const Call& call, const Tensor& input, int64_t at, variable_list& hidden,
             variable_list& cell) {
  variable_list outputs;
  for (int64_t direction = 0; direction < call.directions(); ++direction) {
    const int64_t n = at * call.directions() + direction;
    const at::TensorList own = call.parameters.slice(n * call.each(), call.each());
    const auto bias = [&](int64_t which) {
      return call.has_biases ? std::optional<Tensor>(own[which]) : std::nullopt;
    };
    const Tensor products =
        at::linear(rows(input), own[0], bias(2)).view({input.size(0), input.size(1), -1});
    const variable_list found =
        Layer::apply(products, call.state[0].select(0, n), call.state[1].select(0, n), own[1],
                     bias(3), direction == 1);
    outputs.push_back(found[0]);
    hidden.push_back(found[1]);
    cell.push_back(found[2]);
  }
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
}

std::tuple<Tensor, Tensor, Tensor> all_layers(const Call& call) {
  Tensor result = call.input;
  variable_list hidden, cell;
  for (int64_t at = 0; at < call.layers; ++at) {
    result = layer(call, result, at, hidden, cell);
    if (call.train && call.dropout != 0 && at + 1 < call.layers) {
      result = at::dropout(result, call.dropout, /*train=*/true);
    }
  }
  return {result, at::stack(hidden, 0), at::stack(cell, 0)};
}

// ---- registration

struct RecurrentLayers;

template <DispatchKey dispatch_key>
std::tuple<Tensor, Tensor, Tensor> kernel(DispatchKeySet keys, const Tensor& input,
                                          at::TensorList state, at::TensorList parameters,
                                          bool has_biases, int64_t layers, double dropout,
                                          bool train, bool bidirectional, bool batch_first) {
  Call call{input, state, parameters, has_biases, layers, dropout, train, bidirectional};
  if (batch_first && input.dim() == 3) call.input = input.transpose(0, 1);
  if (is_taken(call)) {
    auto [output, hidden, cell] = all_layers(call);
    return {batch_first ? output.transpose(0, 1) : output, hidden, cell};
  }
  using Op = at::_ops::lstm_input;
  return Overridden<RecurrentLayers, Op, dispatch_key>::call(keys, input, state, parameters,
                                                             has_biases, layers, dropout, train,
                                                             bidirectional, batch_first);
}

// AutogradXLA is what most calls meet; in inference mode it is Functionalize, or XLA where
// functionalization is off.
template <DispatchKey dispatch_key>
void install_on() {
  torch::Library& aten = library(torch::Library::IMPL, "aten", dispatch_key);
  Overridden<RecurrentLayers, at::_ops::lstm_input, dispatch_key>::by(
      aten, TORCH_FN(kernel<dispatch_key>));
}

void install() {
  const QuietOverride quiet;
  install_on<DispatchKey::AutogradXLA>();
  install_on<DispatchKey::Functionalize>();
  install_on<DispatchKey::XLA>();
}

}  // namespace
}  // namespace castoff

// Puts the kernels in place; nullptr, or what went wrong. Call it once.
extern "C" __attribute__((visibility("default"))) const char* castoff_recurrent_layers_install() {
  return castoff::put_in_place(castoff::install);
}
