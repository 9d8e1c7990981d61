#include "torch_xla/csrc/castoff/overlap.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2_ops.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/view_as_complex_ops.h>
#include <ATen/ops/view_as_real_ops.h>
#include <ATen/ops/view_ops.h>

#include <torch/csrc/castoff/view_metas.h>

#include <string_view>
#include <tuple>

namespace castoff {
namespace {

bool may_overlap(const at::FunctionalTensorWrapper& view) {
  bool may = false;
  for (const auto& meta : torch::castoff::views_of(view)) {
    const std::string_view name = torch::castoff::operator_of(meta);
    if (name == "view_dtype") return false;  // of parts of elements, which have no numbers here
    may |= name == "expand" || name == "unfold" || name == "as_strided" || name == "as_strided_";
  }
  return may;
}

// As many different numbers, of a dtype that all views take: complex ones have two each.
at::Tensor numbered(const at::Tensor& base) {
  const bool is_complex = base.is_complex();
  const auto count = static_cast<double>(base.numel());
  const at::Tensor numbers = at::_ops::arange_start_step::call(
      0, count, is_complex ? 0.5 : 1, at::ScalarType::Double, {}, c10::Device(c10::kCPU), {});
  if (!is_complex) return at::_ops::view::call(numbers, c10::fromIntArrayRefSlow(base.sizes()));
  const at::Tensor pairs =
      at::_ops::view_as_complex::call(at::_ops::view::call(numbers, {base.numel(), 2}));
  return at::_ops::view::call(pairs, c10::fromIntArrayRefSlow(base.sizes()));
}

at::Tensor reals(const at::Tensor& t) {
  return t.is_complex() ? at::_ops::view_as_real::call(t.resolve_conj()) : t;
}

bool overlaps(const at::FunctionalTensorWrapper& view) {
  const at::AutoDispatchSkipFunctionalize no_wrappers;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor& base = torch::castoff::memory_of(view).base();
  if (view.numel() > base.numel()) return true;
  const at::Tensor seen = reals(torch::castoff::replayed_views(view, numbered(base)));
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
