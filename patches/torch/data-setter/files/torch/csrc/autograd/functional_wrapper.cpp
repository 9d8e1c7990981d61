#include <torch/csrc/autograd/functional_wrapper.h>

#if !CASTOFF_TORCH_AT_LEAST(2, 2)

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::autograd::data_setter {
namespace {

using at::FunctionalTensorWrapper;

// Members that upstream's later shallow_copy_from copies. They are private, and the class has no
// function that sets them: an explicit instantiation is where C++ lets their names be used.
#define CASTOFF_REVEAL(Name, Type, member)                                    \
  struct Name {                                                               \
    friend Type FunctionalTensorWrapper::* revealed(Name name);               \
  };                                                                          \
  template <Type FunctionalTensorWrapper::* pointer>                          \
  struct Reveal##Name {                                                       \
    friend Type FunctionalTensorWrapper::* revealed(Name) { return pointer; } \
  };                                                                          \
  template struct Reveal##Name<&FunctionalTensorWrapper::member>

CASTOFF_REVEAL(Value, at::Tensor, value_);
CASTOFF_REVEAL(Level, int64_t, level_);
CASTOFF_REVEAL(HasMetadataMutation, bool, has_metadata_mutation_);
CASTOFF_REVEAL(Generation, size_t, generation_);
CASTOFF_REVEAL(ViewMetas, std::vector<at::functionalization::ViewMeta>, view_metas_);

#undef CASTOFF_REVEAL

template <class... Names>
void copy(FunctionalTensorWrapper& to, const FunctionalTensorWrapper& from, Names... names) {
  ((to.*revealed(names) = from.*revealed(names)), ...);
}

FunctionalTensorWrapper* wrapper_of(const at::TensorBase& tensor) {
  return dynamic_cast<FunctionalTensorWrapper*>(tensor.unsafeGetTensorImpl());
}

}  // namespace

void adopt_wrapped(const at::TensorBase& self, const at::TensorBase& new_data) {
  auto* to = wrapper_of(self);
  const auto* from = wrapper_of(new_data);
  if (to == nullptr || from == nullptr || to == from || !self.is_alias_of(new_data)) {
    return;
  }
  copy(*to, *from, Value(), Level(), HasMetadataMutation(), Generation(), ViewMetas());
}

}  // namespace torch::autograd::data_setter

#endif
