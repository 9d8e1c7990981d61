// Where the hunks of a source build call grad_dtype.h, an overlay build takes the place of the
// functions that those hunks change, and calls the stock ones for the rest.
#include <ATen/core/VariableHooksInterface.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/expanded_gradients.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/grad_dtype_versions.h>
#include <torch/csrc/autograd/validate_gradients.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <utility>

#include "forwarding_variable_hooks.h"
#include "interpose.h"

namespace torch::autograd {

void validate_outputs(const edge_list& edges, variable_list& grads,
                      const grad_dtype::FormatError& format_error) {
  using Function = void(const edge_list&, variable_list&, const grad_dtype::FormatError&);
  using Stock = castoff::Stock<static_cast<Function*>(&validate_outputs)>;
  grad_dtype::validate(Stock::call, edges, grads, format_error);
}

#if CASTOFF_TORCH_AT_LEAST(2, 7)
void validate_outputs(const grad_dtype::OptionalMetadata& input_metadata, variable_list& grads,
                      const grad_dtype::FormatError& format_error) {
  using Function =
      void(const grad_dtype::OptionalMetadata&, variable_list&, const grad_dtype::FormatError&);
  using Stock = castoff::Stock<static_cast<Function*>(&validate_outputs)>;
  grad_dtype::validate(Stock::call, input_metadata, grads, format_error);
}
#endif

}  // namespace torch::autograd

#if CASTOFF_TORCH_AT_LEAST(2, 7)
namespace torch::dynamo::autograd {

std::vector<std::optional<InputMetadata>> get_input_metadata(const edge_list& edges) {
  auto metadata = castoff::Stock<&get_input_metadata>::call(edges);
  torch::autograd::grad_dtype::describe_leaves(edges, metadata);
  return metadata;
}

}  // namespace torch::dynamo::autograd
#endif

// A constructor of InputMetadata, and two members of AccumulateGrad, as free functions under the
// members' symbols: to define the members would emit a second vtable of the class, because apply is
// its key function.
#if CASTOFF_TORCH_AT_LEAST(2, 7)
#define CASTOFF_COMPILED_ARGS \
  "_ZNK5torch8autograd14AccumulateGrad13compiled_argsERNS_6dynamo8autograd16CompiledNodeArgsE"
#else
#define CASTOFF_COMPILED_ARGS \
  "_ZN5torch8autograd14AccumulateGrad13compiled_argsERNS_6dynamo8autograd16CompiledNodeArgsE"
#endif

namespace {
using torch::autograd::AccumulateGrad;
using torch::autograd::InputMetadata;
using torch::autograd::variable_list;
using torch::castoff::Stock;
using torch::dynamo::autograd::CompiledNodeArgs;

struct NodeMutex : torch::autograd::Node {
  static std::mutex& of(Node& node) { return node.*(&NodeMutex::mutex_); }
};
}  // namespace

extern "C++" {
[[gnu::visibility("default")]] variable_list
accumulate_grad_apply(AccumulateGrad* self, variable_list&& grads) __asm__(
    "_ZN5torch8autograd14AccumulateGrad5applyEOSt6vectorIN2at6TensorESaIS4_EE");
[[gnu::visibility("default")]] void accumulate_grad_compiled_args(
    const AccumulateGrad* self, CompiledNodeArgs& args) __asm__(CASTOFF_COMPILED_ARGS);
}

namespace {

// Out of line, so that an AccumulateGrad that is not concerned pays for one test.
[[gnu::noinline]] variable_list accumulate_as_wanted(AccumulateGrad* self, variable_list&& grads) {
  if (torch::autograd::grad_dtype::accumulate(*self, grads, NodeMutex::of(*self))) {
    return {};
  }
  return Stock<&accumulate_grad_apply>::call(self, std::move(grads));
}

}  // namespace

#if CASTOFF_TORCH_AT_LEAST(2, 6)  // before, it is inlined where it is called
extern "C++" [[gnu::visibility("default")]] void input_metadata(
    InputMetadata* self,
    const at::Tensor& tensor) __asm__("_ZN5torch8autograd13InputMetadataC1ERKN2at6TensorE");

namespace {

[[gnu::noinline]] void described_input_metadata(InputMetadata* self, const at::Tensor& tensor) {
  Stock<&input_metadata>::call(self, tensor);
  torch::autograd::grad_dtype::describe(*self, tensor);
}

}  // namespace

void input_metadata(InputMetadata* self, const at::Tensor& tensor) {
  if (C10_LIKELY(!torch::autograd::grad_dtype::in_use())) {
    return Stock<&input_metadata>::call(self, tensor);
  }
  described_input_metadata(self, tensor);
}
#endif

variable_list accumulate_grad_apply(AccumulateGrad* self, variable_list&& grads) {
  torch::autograd::grad_dtype::copy_expanded(grads);
  if (C10_LIKELY(!torch::autograd::grad_dtype::in_use())) {
    return Stock<&accumulate_grad_apply>::call(self, std::move(grads));
  }
  return accumulate_as_wanted(self, std::move(grads));
}

void accumulate_grad_compiled_args(const AccumulateGrad* self, CompiledNodeArgs& args) {
  Stock<&accumulate_grad_compiled_args>::call(self, args);
  torch::autograd::grad_dtype::specialize_on(self->variable, args);
}

namespace torch::autograd::grad_dtype {
namespace {

struct SetDataHooks final : castoff::ForwardingVariableHooks {
  using ForwardingVariableHooks::ForwardingVariableHooks;
  void set_data(const Base& self, const Base& new_data) const override {
    const KeepAcrossSetData keep(self);
    ForwardingVariableHooks::set_data(self, new_data);
  }
};

}  // namespace

// On the first use of grad_dtype, so that a process without any pays nothing. Never taken back:
// tensors that rely on it may live on.
void install_set_data();
void install_set_data() {
  static const bool installed = [] {
    static SetDataHooks hooks(at::impl::GetVariableHooks());
    at::impl::SetVariableHooks(&hooks);
    return true;
  }();
  (void)installed;
}

}  // namespace torch::autograd::grad_dtype
