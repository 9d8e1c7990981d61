#pragma once

// The views that make a functional tensor of its base, in which torch's releases differ.

#include <ATen/FunctionalStorageImpl.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <torch/csrc/castoff/torch_version.h>

#include <memory>
#include <string_view>
#include <typeinfo>
#include <vector>

namespace torch::castoff {

// The function or class of namespace at::functionalization in a mangled name: "transpose_int" of
// `transpose_int_ViewMeta`, and of a lambda in `transpose_int`. Empty: none.
inline std::string_view functionalized(std::string_view mangled) {
  constexpr std::string_view kNamespace = "17functionalization", kClass = "_ViewMeta";
  const size_t at = mangled.find(kNamespace);
  if (at == std::string_view::npos) return {};
  mangled.remove_prefix(at + kNamespace.size());
  size_t length = 0;
  while (!mangled.empty() && mangled.front() >= '0' && mangled.front() <= '9') {
    length = 10 * length + static_cast<size_t>(mangled.front() - '0');
    mangled.remove_prefix(1);
  }
  std::string_view name = mangled.substr(0, length);
  if (name.size() > kClass.size() && name.substr(name.size() - kClass.size()) == kClass) {
    name.remove_suffix(kClass.size());
  }
  return name;
}

// The memory of a tensor and of all that alias it: its base's value, and how often it was written.
inline at::functionalization::FunctionalStorageImpl& memory_of(
    const at::FunctionalTensorWrapper& wrapper) {
  return *static_cast<at::functionalization::FunctionalStorageImpl*>(
      wrapper.unsafe_storage().unsafeGetStorageImpl());
}

#if CASTOFF_TORCH_AT_LEAST(2, 9)

using Views = std::vector<std::shared_ptr<at::functionalization::ViewMeta>>;

inline const Views& views_of(const at::FunctionalTensorWrapper& wrapper) {
  return wrapper.view_metas();
}

// Whether both are the very same views. Releases before 2.9 copy them: there none are, nor are
// views the same as themselves.
inline bool are_same(const Views& views, const Views& others) {
  return views == others;
}

// The operator and overload that made a view: "expand", "transpose_int".
inline std::string_view operator_of(const Views::value_type& view) {
  const at::functionalization::ViewMeta& meta = *view;
  return functionalized(typeid(meta).name());
}

inline at::Tensor replayed_views(const at::FunctionalTensorWrapper& wrapper,
                                 const at::Tensor& base) {
  return at::functionalization::impl::apply_view_meta_sequence(base, wrapper.view_metas());
}

#else

using Views = std::vector<at::functionalization::ViewMeta>;

const Views& views_of(const at::FunctionalTensorWrapper& wrapper);

inline bool are_same(const Views&, const Views&) {
  return false;
}

// A wrapper before 2.9 does not give them away. An explicit instantiation may name a private
// member.
template <Views at::FunctionalTensorWrapper::* views>
struct PrivateViews {
  friend const Views& views_of(const at::FunctionalTensorWrapper& wrapper) {
    return wrapper.*views;
  }
};
template struct PrivateViews<&at::FunctionalTensorWrapper::view_metas_>;

inline std::string_view operator_of(const Views::value_type& view) {
  return functionalized(view.forward_fn.target_type().name());
}

inline at::Tensor replayed_views(const at::FunctionalTensorWrapper& wrapper,
                                 const at::Tensor& base) {
  // Not declared const, but it writes to nothing.
  return const_cast<at::FunctionalTensorWrapper&>(wrapper).apply_view_metas(base);
}

#endif

}  // namespace torch::castoff
