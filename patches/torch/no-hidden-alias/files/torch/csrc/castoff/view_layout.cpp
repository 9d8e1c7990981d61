#include <torch/csrc/castoff/kill_switch.h>
#include <torch/csrc/castoff/torch_version.h>
#include <torch/csrc/castoff/view_layout.h>

#include <ATen/FunctionalStorageImpl.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/view_copy_ops.h>
#include <torch/library.h>

#include <string>
#include <string_view>
#include <utility>

namespace torch::castoff {
namespace {

using at::Tensor;
using c10::DispatchKey;

// A mode of this file's own: in it `permute_copy` and its like, by which functionalization replays
// the views of an XLA tensor, make views.
constexpr DispatchKey kReplay = DispatchKey::TESTING_ONLY_GenericMode;

// Whether the view that an operator copies was made in its place.
bool made_view(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static constexpr std::string_view kCopy = "_copy";
  const std::string& name = op.schema().name();
  if (name.size() <= kCopy.size() ||
      name.compare(name.size() - kCopy.size(), kCopy.size(), kCopy) != 0) {
    return false;
  }
  const auto view = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, name.size() - kCopy.size()), op.schema().overload_name()});
  if (!view.has_value()) return false;
  torch::jit::Stack made = *stack;
  try {
    view->callBoxed(&made);
  } catch (const c10::Error&) {  // `view` of what cannot be viewed: torch_xla can
    return false;
  }
  *stack = std::move(made);
  return true;
}

void view_instead_of_copy(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kReplay);
  if (!made_view(op, stack)) op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&view_instead_of_copy>());
}

Tensor contiguous_meta(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  return at::_ops::empty_memory_format::call(c10::fromIntArrayRefSlow(sizes), dtype, c10::kStrided,
                                             c10::Device(c10::kMeta), {}, {});
}

Tensor replayed(const at::FunctionalTensorWrapper& wrapper, const Tensor& base) {
  const c10::impl::IncludeDispatchKeyGuard mode(kReplay);
#if CASTOFF_TORCH_AT_LEAST(2, 9)
  return at::functionalization::impl::apply_view_meta_sequence(base, wrapper.view_metas());
#else
  // Not declared const, but it writes to nothing.
  return const_cast<at::FunctionalTensorWrapper&>(wrapper).apply_view_metas(base);
#endif
}

bool enabled() {
  static const bool on = topic_enabled("no-hidden-alias");
  return on;
}

// A meta tensor with the sizes, strides and offset that the view's operators give to a contiguous
// base. Undefined: not a view of torch_xla's, or one of symbolic sizes.
Tensor layout_of_view(const at::FunctionalTensorWrapper& wrapper) {
  if (wrapper.isBaseTensor() || wrapper.is_symbolic() || !wrapper.value().is_xla()) return {};
  const at::AutoDispatchSkipFunctionalize no_wrappers;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  auto* storage = static_cast<at::functionalization::FunctionalStorageImpl*>(
      wrapper.unsafe_storage().unsafeGetStorageImpl());
  const Tensor& base = storage->base();
  return replayed(wrapper, contiguous_meta(base.sizes(), base.scalar_type()));
}

}  // namespace

std::optional<bool> view_is_contiguous(const at::FunctionalTensorWrapper& wrapper,
                                       c10::MemoryFormat format) {
  if (!enabled() || format != c10::MemoryFormat::Contiguous) return std::nullopt;
  const Tensor layout = layout_of_view(wrapper);
  return layout.defined() ? std::optional(layout.is_contiguous()) : std::nullopt;
}

Tensor reshape_of_view(const Tensor& self, c10::SymIntArrayRef shape) {
  if (!enabled() || !self.is_xla() || !at::functionalization::impl::isFunctionalTensor(self))
    return {};
  const auto sizes = c10::asIntArrayRefSlowOpt(shape);
  if (!sizes.has_value()) return {};
  const auto* wrapper = at::functionalization::impl::unsafeGetFunctionalWrapper(self);
  const Tensor layout = layout_of_view(*wrapper);
  if (!layout.defined() || layout.is_contiguous() || layout.numel() == 0) return {};
  const at::DimVector inferred = at::infer_size_dv(*sizes, layout.numel());
  if (at::detail::computeStride(layout.sizes(), layout.strides(), inferred).has_value()) return {};
  // One operator, whose node in the autograd graph stands for a view like that of stock's reshape.
  return at::_ops::view_copy::call(self, c10::fromIntArrayRefSlow(inferred));
}

}  // namespace torch::castoff
