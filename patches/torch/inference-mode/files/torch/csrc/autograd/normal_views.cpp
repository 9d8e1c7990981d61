#include <torch/csrc/autograd/normal_views.h>
#include <torch/csrc/castoff/kill_switch.h>

namespace torch::autograd {
namespace {

struct Keys : c10::TensorImpl {
  static auto& of(c10::TensorImpl& impl) { return impl.*(&Keys::key_set_); }
};

}  // namespace

void make_normal_xla_view(c10::TensorImpl& view) {
  static const bool enabled = castoff::topic_enabled("inference-mode");
  if (enabled) {
    Keys::of(view) =
        view.key_set() | c10::getAutogradRelatedKeySetFromBackend(c10::BackendComponent::XLABit);
  }
}

}  // namespace torch::autograd
