#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace torch_xla::castoff {

// The dispatcher warns of the first kernel that takes another's place, once in a process. Where a
// topic registers its kernels that is meant, and the one warning is left for registrations that the
// user may not have meant. Lives around the registrations.
class QuietOverride final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("previously registered kernel") == std::string::npos) {
      outer_->process(warning);
    }
  }

 private:
  c10::WarningHandler* outer_ = c10::WarningUtils::get_warning_handler();
  c10::WarningUtils::WarnAlways always_;  // does not use up the "once"
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

}  // namespace torch_xla::castoff
