// Kernels that mend one kind of call of torch_xla's own: they change its arguments, its results, or
// answer it themselves, and hand on every other call untouched.

#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/native/CPUFallback.h>

#include <utility>

#include "torch_xla/csrc/castoff/kernels.h"

namespace castoff {

// For what a kernel asks of other operators, which are below autograd as it is.
using Below = at::AutoDispatchBelowADInplaceOrView;

inline bool is_tensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined();
}

// A call of an operator, its arguments in place on the stack.
class Call {
 public:
  Call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack,
       size_t size, const PresentKernel& overridden)
      : op_(op),
        keys_(keys),
        stack_(stack),
        size_(size),
        first_(stack.size() - size),
        overridden_(overridden) {}

  const c10::OperatorHandle& op() const { return op_; }

  size_t size() const { return size_; }
  c10::IValue& operator[](size_t i) { return stack_[first_ + i]; }
  const at::Tensor& tensor(size_t i) { return (*this)[i].toTensor(); }
  c10::IValue* begin() { return stack_.data() + first_; }
  c10::IValue* end() { return begin() + size(); }

  // Lets the overridden kernel answer, with the arguments as they are now.
  void proceed() { overridden_.callBoxed(op_, keys_, &stack_); }

  // Lets torch's CPU kernel answer, with copies of the arguments.
  void on_the_cpu() { at::native::cpu_fallback(op_, &stack_); }

  // Answers in its stead, with as many results as the operator has.
  template <class... Results>
  void answer(Results&&... results) {
    torch::jit::drop(stack_, size());
    torch::jit::push(stack_, std::forward<Results>(results)...);
  }

  // The results, once the call has been answered.
  size_t results() const { return op_.schema().returns().size(); }
  c10::IValue& result(size_t i = 0) { return stack_[first_ + i]; }

 private:
  const c10::OperatorHandle& op_;
  const c10::DispatchKeySet keys_;
  torch::jit::Stack& stack_;
  const size_t size_, first_;
  const PresentKernel& overridden_;
};

// Sees to it that the call is answered.
using Remedy = void (*)(Call&);

class Remedied final : public c10::OperatorKernel {
 public:
  Remedied(const c10::OperatorHandle& op, c10::DispatchKey key, Remedy remedy)
      : overridden_(present_kernel(op, key)),
        arguments_(op.schema().arguments().size()),
        remedy_(remedy) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    Call call(op, keys, *stack, arguments_, overridden_);
    remedy_(call);
  }

 private:
  const PresentKernel overridden_;
  const size_t arguments_;
  const Remedy remedy_;
};

// Puts the remedy before the present kernel of each operator of a list like "add.Tensor mm".
inline void remedy(torch::Library& library, Remedy remedy, const char* operators,
                   c10::DispatchKey key = c10::DispatchKey::XLA) {
  each_operator(operators, [&](const char* name, const char* overload) {
    override_kernel<Remedied>(library, key, name, overload, remedy);
  });
}

}  // namespace castoff
