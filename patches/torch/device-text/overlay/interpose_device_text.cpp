// An overlay build takes the place of BackendDevice::toString().
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/castoff/kill_switch.h>
#include <torch/csrc/lazy/backend/backend_device.h>

#include <string>

std::string torch::lazy::BackendDevice::toString() const {
  static const bool enabled = castoff::topic_enabled("device-text");
  TORCH_INTERNAL_ASSERT(type_);
  return enabled ? type_->toString() + std::to_string(ordinal_)
                 : c10::str(type_->toString(), ordinal_);
}
