#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/castoff/mutating_operators.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace torch::castoff {
namespace {

namespace functionalization = at::functionalization::impl;

// A tensor that the operator writes to, and the copy that its kernel gets.
struct Written {
  at::Tensor tensor;
  at::Tensor copy;
};

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_on_xla(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_xla();
}

// Calls `see` with each tensor of a value: of a tensor, a list of tensors, or one of optional ones.
template <class See>
void for_each_tensor(const c10::IValue& value, See see) {
  if (value.isTensor()) {
    see(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) {
        see(element.toTensor());
      }
    }
  }
}

// The value with each of its tensors replaced. A list is a new one of the same type.
template <class Replace>
c10::IValue replaced(const c10::IValue& value, Replace replace) {
  if (value.isTensor()) {
    return replace(value.toTensor());
  }
  if (!value.isTensorList() && !value.isOptionalTensorList()) {
    return value;
  }
  c10::impl::GenericList list(value.toList().elementType());
  for (const c10::IValue& element : value.toListRef()) {
    list.push_back(element.isTensor() ? c10::IValue(replace(element.toTensor())) : element);
  }
  return list;
}

bool is_for_xla(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  for (const auto key : {DispatchKey::XLA, DispatchKey::CompositeExplicitAutograd,
                         DispatchKey::CompositeExplicitAutogradNonFunctional,
                         DispatchKey::CompositeImplicitAutograd}) {
    if (op.hasKernelForDispatchKey(key)) {
      return true;
    }
  }
  return false;
}

// What torch_xla hands to the CPU: an XLA tensor below functionalization.
at::Tensor unwrapped(const at::Tensor& tensor) {
  if (!tensor.defined() || !functionalization::isFunctionalTensor(tensor)) {
    return tensor;
  }
  functionalization::sync(tensor);
  return functionalization::from_functional_tensor(tensor);
}

at::Tensor wrapped(const at::Tensor& tensor) {
  return is_on_xla(tensor) && !functionalization::isFunctionalTensor(tensor)
             ? functionalization::to_functional_tensor(tensor)
             : tensor;
}

// Copies do not share memory. Throws c10::Error where the operator writes to an argument that
// shares its memory with another one.
void refuse_shared_memory(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> values) {
  std::vector<std::pair<at::Tensor, bool>> seen;
  for (size_t i = 0; i < values.size(); ++i) {
    const bool writes = is_written(op.schema().arguments()[i]);
    for_each_tensor(values[i], [&](const at::Tensor& tensor) {
      if (!is_on_xla(tensor)) {
        return;
      }
      for (const auto& [other, written] : seen) {
        TORCH_CHECK((!writes && !written) || !tensor.is_alias_of(other), op.operator_name(),
                    " writes to an argument that shares memory with another argument. It has no "
                    "kernel for XLA, and the CPU gets a copy of each. Register a kernel for "
                    "\"CompositeExplicitAutograd\" or \"XLA\", or pass a clone");
      }
      seen.emplace_back(tensor, writes);
    });
  }
}

// Replaces the operator's arguments by XLA tensors, those that it writes to by copies.
std::vector<Written> unwrap_arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::vector<Written> written;
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  refuse_shared_memory(op, values);
  const auto begin = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto& value = (*stack)[begin + i];
    value = replaced(value, [&](const at::Tensor& tensor) {
      if (!is_written(arguments[i]) || !is_on_xla(tensor)) {
        return unwrapped(tensor);
      }
      written.push_back({tensor, unwrapped(tensor.clone())});
      return written.back().copy;
    });
  }
  return written;
}

// The functional tensor of a result: the argument, where the operator returned that.
at::Tensor result(const at::Tensor& tensor, const std::vector<Written>& written) {
  for (const auto& argument : written) {
    if (tensor.is_same(argument.copy)) {
      return argument.tensor;
    }
  }
  return wrapped(tensor);
}

void run_on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto written = unwrap_arguments(op, stack);
  {
    const at::AutoDispatchSkipFunctionalize below;
    op.callBoxed(stack);
  }
  for (const auto& argument : written) {
    argument.tensor.copy_(wrapped(argument.copy));
  }
  const auto results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
  for (auto value = stack->end() - results; value != stack->end(); ++value) {
    *value = replaced(*value, [&](const at::Tensor& tensor) { return result(tensor, written); });
  }
}

}  // namespace

bool writes_on_xla(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  if (std::none_of(arguments.begin(), arguments.end(), is_written)) {
    return false;
  }
  bool found = false;
  for (const auto& value : torch::jit::last(stack, arguments.size())) {
    for_each_tensor(value, [&](const at::Tensor& tensor) { found |= is_on_xla(tensor); });
  }
  return found;
}

void run_mutating_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  if (!is_for_xla(op)) {
    run_on_copies(op, stack);
    return;
  }
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Functionalize);
  op.redispatchBoxed(keys & below, stack);
}

}  // namespace torch::castoff
