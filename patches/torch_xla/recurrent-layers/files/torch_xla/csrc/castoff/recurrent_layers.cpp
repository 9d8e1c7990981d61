// aten::lstm, gru, rnn_tanh and rnn_relu with the products of all steps in one, where a step does
// not wait for another.
//
// torch's formulas, which are all that XLA has, multiply the input of each step by its weights and,
// in the backward pass, have two products for the weights' gradients in each, whose sums they
// round. Here the input's product is one for all steps, and so is each gradient of a weight, as on
// the CPU and as in cuDNN. What a step computes from the state before it is as in torch's formulas.
// Calls of other forms go to the kernel that is overridden: torch's formula.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru_ops.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm_ops.h>
#include <ATen/ops/rnn_relu_ops.h>
#include <ATen/ops/rnn_tanh_ops.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/above_autograd.h"
#include "torch_xla/csrc/castoff/dot_general.h"

namespace castoff {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- the cells

// What a step leaves: the states, the hidden one first, and what its backward pass needs.
struct Step {
  variable_list states, kept;
};

// The gradients of a step, those of the products rounded.
struct Gradients {
  Tensor of_input;       // of the input's product
  Tensor of_hidden;      // of the hidden state's; undefined if it is the same
  variable_list before;  // of the states before, but for the product's part; may be undefined
};

Tensor one_less(const Tensor& t) {
  return t.neg().add(1);
}

Tensor of_tanh(const Tensor& grad, const Tensor& result) {
  return grad.mul(one_less(result.mul(result)));
}

Tensor of_sigmoid(const Tensor& grad, const Tensor& result) {
  return grad.mul(one_less(result)).mul(result);
}

// Each cell computes a step from the products of its input and of the hidden state, [batch, gates *
// hidden], and the states before; and their gradients from those of the states after, in `wide`.

struct Lstm {
  static constexpr int64_t gates = 4, states = 2, kept = 5;

  static Step forward(const Tensor& of_input, const Tensor& of_hidden,
                      const variable_list& before) {
    const variable_list parts = of_hidden.add(of_input).chunk(4, 1);
    const Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid();
    const Tensor candidate = parts[2].tanh(), out = parts[3].sigmoid();
    const Tensor cell = forget.mul(before[1]).add(in.mul(candidate));
    const Tensor tangent = cell.tanh();
    return {{out.mul(tangent), cell}, {in, forget, candidate, out, tangent}};
  }

  static Gradients backward(const Step& step, const variable_list& before,
                            const variable_list& after, ScalarType wide) {
    const auto kept_one = [&](int64_t n) { return step.kept[n].to(wide); };
    const Tensor in = kept_one(0), forget = kept_one(1), candidate = kept_one(2);
    const Tensor out = kept_one(3), tangent = kept_one(4);
    const Tensor from_hidden = of_tanh(after[0].mul(out), tangent);
    const Tensor cell = after[1].defined() ? from_hidden.add(after[1]) : from_hidden;
    const Tensor of_sum = at::cat(
        {of_sigmoid(cell.mul(candidate), in), of_sigmoid(cell.mul(before[1].to(wide)), forget),
         of_tanh(cell.mul(in), candidate), of_sigmoid(after[0].mul(tangent), out)},
        1);
    return {of_sum.to(step.kept[0].scalar_type()), Tensor(), {Tensor(), cell.mul(forget)}};
  }
};

struct Gru {
  static constexpr int64_t gates = 3, states = 1, kept = 4;

  static Step forward(const Tensor& of_input, const Tensor& of_hidden,
                      const variable_list& before) {
    const variable_list given = of_input.chunk(3, 1), own = of_hidden.chunk(3, 1);
    const Tensor reset = own[0].add(given[0]).sigmoid(), update = own[1].add(given[1]).sigmoid();
    const Tensor candidate = given[2].add(own[2].mul(reset)).tanh();
    return {{before[0].sub(candidate).mul(update).add(candidate)},
            {reset, update, candidate, own[2]}};
  }

  static Gradients backward(const Step& step, const variable_list& before,
                            const variable_list& after, ScalarType wide) {
    const auto kept_one = [&](int64_t n) { return step.kept[n].to(wide); };
    const Tensor reset = kept_one(0), update = kept_one(1), candidate = kept_one(2);
    const Tensor of_update = of_sigmoid(after[0].mul(before[0].to(wide).sub(candidate)), update);
    const Tensor of_candidate = of_tanh(after[0].mul(one_less(update)), candidate);
    const Tensor of_reset = of_sigmoid(of_candidate.mul(kept_one(3)), reset);
    const auto product = [&](const Tensor& last) {
      return at::cat({of_reset, of_update, last}, 1).to(step.kept[0].scalar_type());
    };
    return {product(of_candidate), product(of_candidate.mul(reset)), {after[0].mul(update)}};
  }
};

template <bool is_relu>
struct Plain {
  static constexpr int64_t gates = 1, states = 1, kept = 1;

  static Step forward(const Tensor& of_input, const Tensor& of_hidden, const variable_list&) {
    const Tensor sum = of_hidden.add(of_input), hidden = is_relu ? sum.relu() : sum.tanh();
    return {{hidden}, {hidden}};
  }

  static Gradients backward(const Step& step, const variable_list&, const variable_list& after,
                            ScalarType wide) {
    const Tensor hidden = step.kept[0].to(wide);
    const Tensor grad =
        is_relu ? at::threshold_backward(after[0], hidden, 0) : of_tanh(after[0], hidden);
    return {grad.to(step.kept[0].scalar_type()), Tensor(), {Tensor()}};
  }
};

// ---- the steps of one layer in one direction

// What the steps start from. `products` are those of the input: [steps, batch, gates * hidden].
struct Start {
  Tensor products;
  variable_list states;
  Tensor weight;
  std::optional<Tensor> bias;
  bool reverse;

  int64_t count() const { return products.size(0); }
  // The steps in the order in which they are computed.
  int64_t place(int64_t step) const { return reverse ? count() - 1 - step : step; }
};

using Steps = std::vector<Step>;

const variable_list& states_before(int64_t step, const Start& start, const Steps& steps) {
  return step == 0 ? start.states : steps[step - 1].states;
}

template <class Cell>
Steps computed(const Start& start) {
  Steps steps;
  for (int64_t step = 0; step < start.count(); ++step) {
    const variable_list& before = states_before(step, start, steps);
    steps.push_back(Cell::forward(start.products.select(0, start.place(step)),
                                  at::linear(before[0], start.weight, start.bias), before));
  }
  return steps;
}

// In the order of time.
Tensor stacked(variable_list steps, bool reverse) {
  if (reverse) std::reverse(steps.begin(), steps.end());
  return at::stack(steps, 0);
}

// The hidden state after each step, in the order of time.
Tensor hidden_after(const Steps& steps, bool reverse) {
  variable_list hiddens;
  for (const Step& step : steps) hiddens.push_back(step.states[0]);
  return stacked(std::move(hiddens), reverse);
}

Tensor sum_of(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  return a.add(b);
}

// Of [steps, batch, …], a row for each step and element of the batch.
Tensor rows(const Tensor& t) {
  return t.reshape({t.size(0) * t.size(1), t.size(2)});
}

// ---- autograd

// Gradients of a start, in the order of its tensors, from those of the outputs and the last states.
// They are float32 for narrower tensors, but in products.
template <class Cell>
variable_list gradients(const Start& start, const Steps& steps, const variable_list& grads) {
  const int64_t count = start.count();
  const ScalarType dtype = start.products.scalar_type();
  const ScalarType wide = is_half(dtype) ? ScalarType::Float : dtype;
  variable_list after(Cell::states), of_inputs(count), of_hiddens;
  for (int64_t n = 0; n < Cell::states; ++n) {
    if (grads[1 + n].defined()) after[n] = grads[1 + n].to(wide);
  }
  if (!grads[0].defined() && !grads[1].defined()) {
    // The last cell alone has a gradient.
    after[0] = at::zeros_like(start.states[0], start.states[0].options().dtype(wide));
  }
  for (int64_t step = count - 1; step >= 0; --step) {
    if (grads[0].defined()) {
      after[0] = sum_of(grads[0].select(0, start.place(step)).to(wide), after[0]);
    }
    const variable_list& from = states_before(step, start, steps);
    Gradients found = Cell::backward(steps[step], from, after, wide);
    of_inputs[step] = found.of_input;
    if (found.of_hidden.defined()) of_hiddens.insert(of_hiddens.begin(), found.of_hidden);
    const Tensor& of_product = found.of_hidden.defined() ? found.of_hidden : found.of_input;
    after = std::move(found.before);
    after[0] = sum_of(dot_general(of_product, start.weight, {1}, {0}, {}, wide), after[0]);
  }
  const Tensor of_products = stacked(of_inputs, start.reverse);
  const Tensor own = rows(of_hiddens.empty() ? of_products : stacked(of_hiddens, start.reverse));
  const Tensor all = hidden_after(steps, start.reverse), first = start.states[0].unsqueeze(0);
  const Tensor states = start.reverse ? at::cat({all.narrow(0, 1, count - 1), first}, 0)
                                      : at::cat({first, all.narrow(0, 0, count - 1)}, 0);
  const Tensor of_weight = dot_general(own, rows(states), {0}, {0}, {}, wide);
  variable_list found{of_products, after[0], Cell::states > 1 ? after[1] : Tensor(), of_weight};
  found.push_back(start.bias ? own.sum(0, /*keepdim=*/false, wide) : Tensor());
  return found;
}

// What is saved of a tensor that is a result, too: the same value and version, and none of
// autograd. A pack hook may raise, as that of a checkpoint does which has computed enough: torch's
// AutogradContext then keeps the tensors that it was to save, and a result among them its node,
// which keeps the context.
Tensor without_node(const Tensor& result) {
  c10::TensorImpl* const impl = result.unsafeGetTensorImpl();
  return Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                              /*allow_tensor_metadata_change=*/false));
}

// The products are those of at::linear, which autograd knows. `cell` is that of Lstm.
template <class Cell>
class Layer final : public torch::autograd::Function<Layer<Cell>> {
 public:
  static constexpr bool is_traceable = true;  // by compiled autograd

  static variable_list forward(AutogradContext* ctx, const Tensor& products, const Tensor& hidden,
                               const std::optional<Tensor>& cell, const Tensor& weight,
                               const std::optional<Tensor>& bias, bool reverse) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    variable_list saved{products, hidden, cell.value_or(Tensor()), weight, bias.value_or(Tensor())};
    const Start start = started(saved, reverse);
    const Steps steps = computed<Cell>(start);
    for (const Step& step : steps) {
      saved.insert(saved.end(), step.kept.begin(), step.kept.end());
      saved.insert(saved.end(), step.states.begin(), step.states.end());
    }
    const auto last_step = saved.end() - (Cell::kept + Cell::states);
    std::transform(last_step, saved.end(), last_step, without_node);
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["reverse"] = reverse;
    ctx->set_materialize_grads(false);
    variable_list results{hidden_after(steps, reverse)};
    const variable_list& last = steps.back().states;
    results.insert(results.end(), last.begin(), last.end());
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Start start = started(saved, ctx->saved_data["reverse"].toBool());
    // With create_graph the steps are computed again, from operators that differentiate.
    const bool again = at::GradMode::is_enabled();
    std::optional<at::AutoDispatchBelowADInplaceOrView> below_autograd;
    if (!again) below_autograd.emplace();
    variable_list found =
        gradients<Cell>(start, again ? computed<Cell>(start) : saved_steps(saved), grads);
    found.emplace_back();  // of `reverse`
    return found;
  }

 private:
  static constexpr size_t operands = 5;

  static Start started(const variable_list& saved, bool reverse) {
    Start start{saved[0], {saved[1]}, saved[3], std::nullopt, reverse};
    if (Cell::states > 1) start.states.push_back(saved[2]);
    if (saved[4].defined()) start.bias = saved[4];
    return start;
  }

  static Steps saved_steps(const variable_list& saved) {
    Steps steps;
    for (auto at = saved.begin() + operands; at != saved.end();) {
      const auto states = at + Cell::kept, end = states + Cell::states;
      steps.push_back({variable_list(states, end), variable_list(at, states)});
      at = end;
    }
    return steps;
  }
};

// ---- which calls

struct Layers {
  Tensor input;  // [steps, batch, features]
  at::TensorList states, parameters;
  bool has_biases;
  int64_t layers;
  double dropout;
  bool train, bidirectional, batch_first;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t each() const { return has_biases ? 4 : 2; }
};

// Under SPMD the batch can be sharded, of which the steps' rows are parts.
bool is_spmd() {
  const char* asked = std::getenv("XLA_USE_SPMD");  // torch_xla's use_spmd() sets it
  return asked != nullptr && std::string_view(asked) != "0";
}

// Sizes that torch takes, of several steps; for others it says what is wrong.
template <class Cell>
bool fits(const Layers& of) {
  const Tensor& input = of.input;
  const int64_t count = of.layers * of.directions();
  if (of.layers < 1 || input.size(0) < 2 || input.numel() == 0 ||
      of.states.size() != Cell::states ||
      static_cast<int64_t>(of.parameters.size()) != count * of.each()) {
    return false;
  }
  const int64_t hidden = of.parameters[1].size(-1);
  for (const Tensor& state : of.states) {
    if (state.sizes() != at::IntArrayRef({count, input.size(1), hidden})) return false;
  }
  for (int64_t at = 0; at < count; ++at) {
    const at::TensorList own = of.parameters.slice(at * of.each(), of.each());
    const int64_t width = at < of.directions() ? input.size(2) : hidden * of.directions();
    if (own[0].sizes() != at::IntArrayRef({Cell::gates * hidden, width}) ||
        own[1].sizes() != at::IntArrayRef({Cell::gates * hidden, hidden})) {
      return false;
    }
  }
  return hidden > 0;
}

template <class Cell>
bool is_taken(const Layers& of) {
  const ScalarType dtype = of.input.scalar_type();
  const auto plain = [&](const Tensor& t) { return is_plain(t) && t.scalar_type() == dtype; };
  return at::isFloatingType(dtype) && plain(of.input) && of.input.dim() == 3 &&
         std::all_of(of.states.begin(), of.states.end(), plain) &&
         std::all_of(of.parameters.begin(), of.parameters.end(), plain) && !autocast_enabled() &&
         !is_spmd() && fits<Cell>(of);
}

// The output of one layer, of all directions; the states of each are added.
template <class Cell>
Tensor layer(const Layers& of, const Tensor& input, int64_t at, std::vector<variable_list>& last) {
  variable_list outputs;
  for (int64_t direction = 0; direction < of.directions(); ++direction) {
    const int64_t n = at * of.directions() + direction;
    const at::TensorList own = of.parameters.slice(n * of.each(), of.each());
    const auto bias = [&](int64_t which) {
      return of.has_biases ? std::optional<Tensor>(own[which]) : std::nullopt;
    };
    std::optional<Tensor> cell;
    if (Cell::states > 1) cell = of.states[1].select(0, n);
    const Tensor products =
        at::linear(rows(input), own[0], bias(2)).view({input.size(0), input.size(1), -1});
    const variable_list found = Layer<Cell>::apply(products, of.states[0].select(0, n), cell,
                                                   own[1], bias(3), direction == 1);
    outputs.push_back(found[0]);
    for (int64_t state = 0; state < Cell::states; ++state) {
      last[state].push_back(found[1 + state]);
    }
  }
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
}

// The output, and the last states.
template <class Cell>
variable_list all_layers(const Layers& of) {
  Tensor result = of.input;
  std::vector<variable_list> last(Cell::states);
  for (int64_t at = 0; at < of.layers; ++at) {
    result = layer<Cell>(of, result, at, last);
    if (of.train && of.dropout != 0 && at + 1 < of.layers) {
      result = at::dropout(result, of.dropout, /*train=*/true);
    }
  }
  variable_list results{of.batch_first ? result.transpose(0, 1) : result};
  for (const variable_list& states : last) results.push_back(at::stack(states, 0));
  return results;
}

// ---- registration

struct RecurrentLayers;

std::tuple<Tensor, Tensor> as_tuple(const variable_list& results, const Tensor&) {
  return {results[0], results[1]};
}

std::tuple<Tensor, Tensor, Tensor> as_tuple(const variable_list& results, at::TensorList) {
  return {results[0], results[1], results[2]};
}

// Op takes its states as a tensor or as several.
template <class Cell, class Op, class States>
struct Kernels {
  template <c10::DispatchKey key>
  static auto call(c10::DispatchKeySet keys, const Tensor& input, States states,
                   at::TensorList parameters, bool has_biases, int64_t layers, double dropout,
                   bool train, bool bidirectional, bool batch_first) {
    Layers of{input,   states, parameters,    has_biases, layers,
              dropout, train,  bidirectional, batch_first};
    if (batch_first && input.dim() == 3) of.input = input.transpose(0, 1);
    if (is_taken<Cell>(of)) return as_tuple(all_layers<Cell>(of), states);
    return Overridden<RecurrentLayers, Op, key>::call(keys, input, states, parameters, has_biases,
                                                      layers, dropout, train, bidirectional,
                                                      batch_first);
  }
};

template <class Cell, class Op, class States = const Tensor&>
void install_cell() {
  override_above_autograd<RecurrentLayers, Op, Kernels<Cell, Op, States>>();
}

void install() {
  install_cell<Lstm, at::_ops::lstm_input, at::TensorList>();
  install_cell<Gru, at::_ops::gru_input>();
  install_cell<Plain</*is_relu=*/false>, at::_ops::rnn_tanh_input>();
  install_cell<Plain</*is_relu=*/true>, at::_ops::rnn_relu_input>();
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_recurrent_layers_install)
