#include <torch/csrc/castoff/kill_switch.h>

#include <cstdlib>
#include <string>

namespace torch::castoff {

// Defined by the overlay's guard; a source build is one piece with its torch and has no guard.
[[gnu::weak]] bool overlay_matches_torch();

namespace {

constexpr std::string_view kSpace = " \t\r\n\f\v";

std::string_view trimmed(std::string_view name) {
  const auto first = name.find_first_not_of(kSpace);
  if (first == std::string_view::npos) {
    return {};
  }
  return name.substr(first, name.find_last_not_of(kSpace) - first + 1);
}

bool named_in(std::string_view list, std::string_view topic) {
  while (!list.empty()) {
    const auto comma = list.find(',');
    const auto name = trimmed(list.substr(0, comma));
    if (name == topic || name == "all") {
      return true;
    }
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return false;
}

}  // namespace

bool topic_enabled(std::string_view topic) {
  static const std::string disabled = [] {
    const char* list = std::getenv("CASTOFF_DISABLE");
    return std::string(list == nullptr ? "" : list);
  }();
  if (overlay_matches_torch != nullptr && !overlay_matches_torch()) {
    return false;
  }
  return !named_in(disabled, topic);
}

}  // namespace torch::castoff
