// Puts functionalization's fallback, which libtorch_cpu.so registers as it is loaded, behind one
// that runs custom operators that write to XLA tensors.
#include <torch/csrc/castoff/kill_switch.h>
#include <torch/csrc/castoff/mutating_operators.h>

#include <utility>

namespace {

using c10::Dispatcher;
using c10::DispatchKey;
using c10::KernelFunction;

// Private members of the dispatcher: it has no public function to replace a fallback. An explicit
// instantiation may name them.
template <auto kernels, auto deregister>
struct Members {
  friend auto& fallbacks(Dispatcher& dispatcher) { return dispatcher.*kernels; }
  friend void deregister_fallback(Dispatcher& dispatcher, DispatchKey key) {
    (dispatcher.*deregister)(key);
  }
};
auto& fallbacks(Dispatcher& dispatcher);
void deregister_fallback(Dispatcher& dispatcher, DispatchKey key);
template struct Members<&Dispatcher::backendFallbackKernels_, &Dispatcher::deregisterFallback_>;

// Neither is freed: operators may run while the process ends.
const KernelFunction* stock_fallback = nullptr;
const c10::RegistrationHandleRAII* registration = nullptr;

void functionalize(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  if (torch::castoff::writes_on_xla(op, *stack)) {
    torch::castoff::run_mutating_operator(op, keys, stack);
  } else {
    stock_fallback->callBoxed(op, keys, stack);
  }
}

const bool replaced = [] {
  if (!torch::castoff::topic_enabled("mutating-operators")) {
    return false;
  }
  constexpr auto key = DispatchKey::Functionalize;
  auto& dispatcher = Dispatcher::singleton();
  stock_fallback = new KernelFunction(
      fallbacks(dispatcher)[c10::getDispatchTableIndexForDispatchKey(key)].kernel);
  deregister_fallback(dispatcher, key);
  registration = new c10::RegistrationHandleRAII(dispatcher.registerFallback(
      key, KernelFunction::makeFromBoxedFunction<&functionalize>(), "castoff: mutating-operators"));
  return true;
}();

}  // namespace
