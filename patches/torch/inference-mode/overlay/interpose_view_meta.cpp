// An overlay build takes the place of the constructor of DifferentiableViewMeta.
#include <torch/csrc/autograd/normal_views.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <utility>

#include "interpose.h"

namespace {
using torch::autograd::CreationMeta;
using torch::autograd::DifferentiableViewMeta;
using torch::autograd::ViewInfo;
}  // namespace

extern "C++" {
[[gnu::visibility("default")]] void
construct_view_meta(DifferentiableViewMeta* self, c10::TensorImpl* view, std::optional<ViewInfo> backward, std::optional<ViewInfo> forward, bool shared, CreationMeta creation) __asm__(
    "_ZN5torch8autograd22DifferentiableViewMetaC1EPN3c1010TensorImp"
    "lESt8optionalINS0_8ViewInfoEES7_bNS0_12CreationMetaE");
}

void construct_view_meta(DifferentiableViewMeta* self, c10::TensorImpl* view,
                         std::optional<ViewInfo> backward, std::optional<ViewInfo> forward,
                         bool shared, CreationMeta creation) {
  torch::autograd::make_normal_view(*view);
  torch::castoff::Stock<&construct_view_meta>::call(self, view, std::move(backward),
                                                    std::move(forward), shared, creation);
}
