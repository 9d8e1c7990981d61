// An overlay build takes the place of the constructor of DifferentiableViewMeta.
#include <torch/csrc/autograd/normal_views.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <type_traits>

#include "interpose.h"

namespace {
using torch::autograd::CreationMeta;
using torch::autograd::DifferentiableViewMeta;
using View = std::optional<torch::autograd::ViewInfo>;

// Such an argument is passed by its address, and belongs to the caller. So it is handed on as that.
static_assert(!std::is_trivially_copy_constructible_v<View>);
}  // namespace

extern "C++" {
[[gnu::visibility("default")]] void
construct_view_meta(DifferentiableViewMeta* self, c10::TensorImpl* view, View* backward, View* forward, bool shared, CreationMeta creation) __asm__(
    "_ZN5torch8autograd22DifferentiableViewMetaC1EPN3c1010TensorImp"
    "lESt8optionalINS0_8ViewInfoEES7_bNS0_12CreationMetaE");
}

void construct_view_meta(DifferentiableViewMeta* self, c10::TensorImpl* view, View* backward,
                         View* forward, bool shared, CreationMeta creation) {
  torch::autograd::make_normal_view(*view);
  torch::castoff::Stock<&construct_view_meta>::call(self, view, backward, forward, shared,
                                                    creation);
}
