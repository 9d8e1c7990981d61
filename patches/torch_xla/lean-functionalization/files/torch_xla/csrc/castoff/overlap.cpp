#include "torch_xla/csrc/castoff/overlap.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2_ops.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/view_ops.h>

#include <torch/csrc/castoff/view_metas.h>

#include <string_view>
#include <tuple>

namespace castoff {
namespace {

bool may_overlap(const at::FunctionalTensorWrapper& view) {
  for (const auto& meta : torch::castoff::views_of(view)) {
    const std::string_view name = torch::castoff::operator_of(meta);
    if (name == "expand" || name == "unfold" || name == "as_strided" || name == "as_strided_") {
      return true;
    }
  }
  return false;
}

// The view of a base whose elements are their own numbers.
bool overlaps(const at::FunctionalTensorWrapper& view) {
  const at::AutoDispatchSkipFunctionalize no_wrappers;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  auto* storage = static_cast<at::functionalization::FunctionalStorageImpl*>(
      view.unsafe_storage().unsafeGetStorageImpl());
  const at::Tensor& base = storage->base();
  if (view.numel() > base.numel()) return true;
  const at::Tensor numbers =
      at::_ops::arange::call(base.numel(), at::ScalarType::Long, {}, c10::Device(c10::kCPU), {});
  const at::Tensor seen = torch::castoff::replayed_views(
      view, at::_ops::view::call(numbers, c10::fromIntArrayRefSlow(base.sizes())));
  return std::get<0>(at::_ops::_unique2::call(seen, false, false, false)).numel() < seen.numel();
}

}  // namespace

void refuse_overlap_of_view(const at::FunctionalTensorWrapper& view) {
  if (view.is_symbolic() || !may_overlap(view)) return;
  TORCH_CHECK(!overlaps(view),
              "unsupported operation: more than one element of the written-to tensor refers to a "
              "single memory location. Please clone() the tensor before performing the operation.");
}

}  // namespace castoff
