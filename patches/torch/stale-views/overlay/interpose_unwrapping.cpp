// An overlay build takes the place of two functions: that by which functionalization's kernels get
// the value of an argument, which all of them but those of views have brought up to date; and the
// constructor of a view, which begins as out of date once its base was written, and is computed
// twice. From torch 2.9 on it takes the place of a third: what brings a write to a view by expand()
// to its base. Before, that is a function that each view has.
#include <ATen/FunctionalTensorWrapper.h>
#include <torch/csrc/castoff/kill_switch.h>
#include <torch/csrc/castoff/torch_version.h>
#include <torch/csrc/castoff/view_metas.h>

#include <utility>

#include "expanded_writes.h"
#include "interpose.h"

#define FROM_FUNCTIONAL_TENSOR \
  "_ZN2at17functionalization4impl22from_functional_tensorERKNS_6TensorEb"
#if CASTOFF_TORCH_AT_LEAST(2, 9)
using Meta = std::shared_ptr<at::functionalization::ViewMeta>;
#define VIEW_CONSTRUCTOR                                          \
  "_ZN2at23FunctionalTensorWrapperC1ERKNS_6TensorEPKS0_RKSt10sha" \
  "red_ptrINS_17functionalization8ViewMetaEE"
#define REVERSED_EXPANSION "_ZN2at17functionalization15expand_ViewMeta7reverseERKNS_6TensorES4_"
#else
using Meta = at::functionalization::ViewMeta;
#define VIEW_CONSTRUCTOR \
  "_ZN2at23FunctionalTensorWrapperC1ERKNS_6TensorEPKS0_RKNS_17functionalization8ViewMetaE"
#endif

namespace {

using at::FunctionalTensorWrapper;

// A wrapper's value, and which of the writes to its memory it has: private members, which an
// explicit instantiation may name.
at::Tensor& value_of(FunctionalTensorWrapper& wrapper);
size_t& generation_of(FunctionalTensorWrapper& wrapper);
template <auto value, auto generation>
struct Members {
  friend at::Tensor& value_of(FunctionalTensorWrapper& wrapper) { return wrapper.*value; }
  friend size_t& generation_of(FunctionalTensorWrapper& wrapper) { return wrapper.*generation; }
};
template struct Members<&FunctionalTensorWrapper::value_, &FunctionalTensorWrapper::generation_>;

bool is_enabled() {
  static const bool enabled = torch::castoff::topic_enabled("stale-views");
  return enabled;
}

// A FakeTensor of device xla has torch.compile's own functionalization.
bool is_of_xla(const FunctionalTensorWrapper& wrapper) {
  const c10::DispatchKeySet keys = wrapper.value().key_set();
  return keys.has(c10::DispatchKey::XLA) && !keys.has(c10::DispatchKey::Python) && is_enabled();
}

// The value that a wrapper would have if it were brought up to date. It keeps the one that it has:
// what view_as() and expand_as() ask for are sizes that lie in that.
at::Tensor present_value(FunctionalTensorWrapper& wrapper) {
  const at::Tensor former = wrapper.value();
  const size_t generation = generation_of(wrapper);
  wrapper.sync_();
  generation_of(wrapper) = generation;
  return std::exchange(value_of(wrapper), former);
}

}  // namespace

extern "C++" {
[[gnu::visibility("default")]] at::Tensor unwrap(const at::Tensor& tensor,
                                                 bool expected) __asm__(FROM_FUNCTIONAL_TENSOR);
[[gnu::visibility("default")]] void construct_view(FunctionalTensorWrapper* self,
                                                   const at::Tensor& value,
                                                   const FunctionalTensorWrapper* base,
                                                   const Meta& meta) __asm__(VIEW_CONSTRUCTOR);
}

at::Tensor unwrap(const at::Tensor& tensor, bool expected) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  // What a wrapped number is to kernels is for stock to say, and whether it may be no wrapper.
  if (!impl->key_set().has(c10::DispatchKey::Functionalize) || impl->is_wrapped_number()) {
    return torch::castoff::Stock<&unwrap>::call(tensor, expected);
  }
  auto* const wrapper = static_cast<FunctionalTensorWrapper*>(impl);
  const bool is_stale = !wrapper->is_up_to_date() && is_of_xla(*wrapper);
  return is_stale ? present_value(*wrapper) : wrapper->value();
}

#if CASTOFF_TORCH_AT_LEAST(2, 9)

extern "C++" {
[[gnu::visibility("default")]] at::Tensor reversed_expansion(
    at::functionalization::ViewMeta* self, const at::Tensor& base,
    const at::Tensor& written) __asm__(REVERSED_EXPANSION);
}

at::Tensor reversed_expansion(at::functionalization::ViewMeta* self, const at::Tensor& base,
                              const at::Tensor& written) {
  if (base.device().is_xla() && is_enabled()) {
    return torch::castoff::expanded_base(base, written);
  }
  return torch::castoff::Stock<&reversed_expansion>::call(self, base, written);
}

namespace {
void reverse_expansion(FunctionalTensorWrapper&) {}
}  // namespace

#else

namespace {

void reverse_expansion(FunctionalTensorWrapper& view) {
  auto& metas = const_cast<torch::castoff::Views&>(torch::castoff::views_of(view));
  if (metas.empty() || torch::castoff::operator_of(metas.back()) != "expand") return;
  if (!view.value().device().is_xla() || !is_enabled()) return;
  metas.back().reverse_fn = [](const at::Tensor& base, const at::Tensor& written, int64_t) {
    return torch::castoff::expanded_base(base, written);
  };
}

}  // namespace

#endif

void construct_view(FunctionalTensorWrapper* self, const at::Tensor& value,
                    const FunctionalTensorWrapper* base, const Meta& meta) {
  torch::castoff::Stock<&construct_view>::call(self, value, base, meta);
  reverse_expansion(*self);
  // The value was computed of the base's present one, by unwrap().
  if (!self->is_up_to_date() && is_of_xla(*self)) {
    generation_of(*self) = torch::castoff::memory_of(*self).generation();
  }
}
