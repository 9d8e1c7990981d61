#include <torch/csrc/castoff/kill_switch.h>
#include <torch/csrc/castoff/view_layout.h>
#include <torch/csrc/castoff/view_metas.h>

#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/view_copy_ops.h>
#include <ATen/ops/view_ops.h>
#include <torch/library.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch::castoff {
namespace {

using at::Tensor;
using c10::DispatchKey;

// A mode of this file's own: in it `permute_copy` and its like, by which functionalization replays
// the views of an XLA tensor, make views.
constexpr DispatchKey kReplay = DispatchKey::TESTING_ONLY_GenericMode;

// The operator whose view an operator copies: `permute` of `permute_copy`. nullopt: no such one.
std::optional<c10::OperatorHandle> view_of(const c10::OperatorHandle& copy) {
  static constexpr std::string_view kCopy = "_copy";
  const std::string& name = copy.schema().name();
  if (name.size() <= kCopy.size() ||
      name.compare(name.size() - kCopy.size(), kCopy.size(), kCopy) != 0) {
    return std::nullopt;
  }
  return c10::Dispatcher::singleton().findSchema(
      {name.substr(0, name.size() - kCopy.size()), copy.schema().overload_name()});
}

// Whether the view that an operator copies was made in its place.
bool made_view(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  thread_local std::unordered_map<c10::OperatorHandle, std::optional<c10::OperatorHandle>> views;
  auto found = views.find(op);
  if (found == views.end()) found = views.emplace(op, view_of(op)).first;
  const auto& view = found->second;
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
  return replayed_views(wrapper, base);
}

// Whether a view of something contiguous is contiguous whatever its arguments are.
bool keeps_layout(std::string_view name) {
  for (const char* keeps : {"alias", "detach", "lift_fresh", "_fw_primal", "view", "_unsafe_view",
                            "unsqueeze", "squeeze", "squeeze_dim", "squeeze_dims"}) {
    if (name == keeps) return true;
  }
  return false;
}

bool all_keep_layout(const Views& views) {
  for (const auto& view : views) {
    if (!keeps_layout(operator_of(view))) return false;
  }
  return true;
}

bool enabled() {
  static const bool on = topic_enabled("no-hidden-alias");
  return on;
}

// The last layout that this thread asked for: contiguous() asks three times for the same one. It
// keeps the views, so that no others get their addresses.
struct KnownLayout {
  Views views;
  std::vector<int64_t> base_sizes;
  c10::ScalarType dtype;
  Tensor layout;
};

KnownLayout& known_layout() {
  thread_local auto& known = *new KnownLayout();  // its thread may end after torch has
  return known;
}

// A meta tensor with the sizes, strides and offset that the view's operators give to a contiguous
// base. Undefined: not a view of torch_xla's, or one of symbolic sizes, or known to be contiguous.
Tensor layout_of_view(const at::FunctionalTensorWrapper& wrapper) {
  if (wrapper.isBaseTensor() || wrapper.is_symbolic() || !wrapper.value().is_xla()) return {};
  const Views& views = views_of(wrapper);
  if (all_keep_layout(views)) return {};
  auto* storage = static_cast<at::functionalization::FunctionalStorageImpl*>(
      wrapper.unsafe_storage().unsafeGetStorageImpl());
  const Tensor& base = storage->base();
  KnownLayout& known = known_layout();
  if (known.layout.defined() && are_same(known.views, views) && base.sizes() == known.base_sizes &&
      base.scalar_type() == known.dtype) {
    return known.layout;
  }
  const at::AutoDispatchSkipFunctionalize no_wrappers;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Tensor layout = replayed(wrapper, contiguous_meta(base.sizes(), base.scalar_type()));
  if (are_same(views, views)) known = {views, base.sizes().vec(), base.scalar_type(), layout};
  return layout;
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
  if (!layout.defined() || layout.numel() == 0) return {};
  const at::DimVector inferred = at::infer_size_dv(*sizes, layout.numel());
  if (at::detail::computeStride(layout.sizes(), layout.strides(), inferred).has_value()) {
    return at::_ops::view::call(self,
                                shape);  // as stock does, which would ask for the layout again
  }
  // One operator, whose node in the autograd graph stands for a view like that of stock's reshape.
  return at::_ops::view_copy::call(self, c10::fromIntArrayRefSlow(inferred));
}

}  // namespace torch::castoff
