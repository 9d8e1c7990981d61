#include <torch/csrc/castoff/kill_switch.h>
#include <torch/csrc/castoff/view_layout.h>
#include <torch/csrc/castoff/view_metas.h>

#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/view_copy_ops.h>
#include <ATen/ops/view_ops.h>
#include <torch/library.h>

#include <numeric>
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

// The views of a matrix product and of attention, which a step makes most of, in a tenth of the
// instructions. A layout is used once: it is changed in place.
using at::DimVector;

Tensor with_layout(const Tensor& layout, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  layout.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return layout;
}

Tensor permuted(const Tensor& layout, c10::IntArrayRef dims) {
  DimVector sizes, strides;
  for (const int64_t dim : dims) {
    sizes.push_back(layout.size(dim));
    strides.push_back(layout.stride(dim));
  }
  return with_layout(layout, sizes, strides);
}

Tensor transposed(const Tensor& layout, int64_t first, int64_t second) {
  if (layout.dim() == 0) return layout;
  DimVector dims(layout.dim());
  std::iota(dims.begin(), dims.end(), 0);
  std::swap(dims[at::maybe_wrap_dim(first, layout.dim())],
            dims[at::maybe_wrap_dim(second, layout.dim())]);
  return permuted(layout, dims);
}

Tensor transposed_matrix(const Tensor& layout) {
  return layout.dim() < 2 ? layout : transposed(layout, 0, 1);
}

Tensor expanded(const Tensor& layout, c10::SymIntArrayRef sizes, bool /*implicit*/) {
  const auto geometry = at::inferExpandGeometry_dimvector(layout.sizes(), layout.strides(),
                                                          C10_AS_INTARRAYREF_SLOW(sizes));
  return with_layout(layout, geometry.sizes, geometry.strides);
}

Tensor viewed(const Tensor& layout, c10::SymIntArrayRef shape) {
  const DimVector sizes = at::infer_size_dv(C10_AS_INTARRAYREF_SLOW(shape), layout.numel());
  const auto strides = at::detail::computeStride(layout.sizes(), layout.strides(), sizes);
  if (strides.has_value()) return with_layout(layout, sizes, *strides);
  layout.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);  // a copy: torch_xla can
  return layout;
}

Tensor selected(const Tensor& layout, int64_t dim, c10::SymInt /*index*/) {
  DimVector sizes(layout.sizes()), strides(layout.strides());
  dim = at::maybe_wrap_dim(dim, layout.dim());
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  return with_layout(layout, sizes, strides);
}

// They differ in their offset alone, which nothing asks for.
std::vector<Tensor> unbound(const Tensor& layout, int64_t dim) {
  const int64_t count = layout.size(dim);
  return std::vector<Tensor>(count, selected(layout, dim, 0));
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m) {
  m.impl("permute_copy", permuted);
  m.impl("transpose_copy.int", transposed);
  m.impl("t_copy", transposed_matrix);
  m.impl("expand_copy", expanded);
  m.impl("view_copy", viewed);
  m.impl("_unsafe_view", viewed);
  m.impl("select_copy.int", selected);
  m.impl("unbind_copy.int", unbound);
}

Tensor contiguous_meta(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  // Larger than any layout needs: of a meta tensor it takes no memory.
  static const auto& storage = *new c10::Storage(
      at::_ops::empty_memory_format::call({c10::SymInt(int64_t{1} << 60)}, c10::kByte,
                                          c10::kStrided, c10::Device(c10::kMeta), {}, {})
          .storage());
  Tensor layout = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                           c10::DispatchKeySet(DispatchKey::Meta),
                                                           c10::scalarTypeToTypeMeta(dtype));
  layout.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return layout;
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

// A meta tensor with the sizes and strides that the view's operators give to a contiguous base.
// Undefined: not a view of torch_xla's, or one of symbolic sizes, or known to be contiguous.
Tensor layout_of_view(const at::FunctionalTensorWrapper& wrapper) {
  if (wrapper.isBaseTensor() || wrapper.is_symbolic() || !wrapper.value().is_xla()) return {};
  const Views& views = views_of(wrapper);
  if (all_keep_layout(views)) return {};
  const Tensor& base = memory_of(wrapper).base();
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
