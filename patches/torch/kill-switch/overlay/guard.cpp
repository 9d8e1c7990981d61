// The overlay was compiled against the headers of one torch; in any other it must not act.
// torch/_castoff.py turns the same comparison into an ImportError. This half protects a torch whose
// Python files do not ask.
#include <dlfcn.h>

#include <cstdio>
#include <fstream>
#include <string>

#ifndef CASTOFF_TORCH_GIT_VERSION
#error "CASTOFF_TORCH_GIT_VERSION must name the torch commit whose headers are used"
#endif

extern "C" [[gnu::visibility("default")]] const char* castoff_torch_git_version() {
  return CASTOFF_TORCH_GIT_VERSION;
}

namespace torch::castoff {
namespace {

// torch/lib/libcastoff_torch.so -> torch/version.py
std::string version_file() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&castoff_torch_git_version), &self) == 0) {
    return {};
  }
  const std::string library = self.dli_fname;
  const auto lib = library.rfind('/');
  const auto package = lib == std::string::npos || lib == 0 ? lib : library.rfind('/', lib - 1);
  return package == std::string::npos ? "../version.py"
                                      : library.substr(0, package) + "/version.py";
}

// The value of `git_version = '...'`, or "unknown".
std::string git_version_in(const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("git_version", 0) == 0) {
      const auto open = line.find('\'');
      const auto close = line.find('\'', open + 1);
      if (open != std::string::npos && close != std::string::npos) {
        return line.substr(open + 1, close - open - 1);
      }
    }
  }
  return "unknown";
}

bool compare() {
  const auto path = version_file();
  const auto found = git_version_in(path);
  if (found == CASTOFF_TORCH_GIT_VERSION) {
    return true;
  }
  std::fprintf(stderr,
               "castoff: the overlay in this torch was built for torch commit %s, but %s says %s. "
               "It stays off. Reinstall the torch wheel that castoff built, or stock torch.\n",
               CASTOFF_TORCH_GIT_VERSION, path.c_str(), found.c_str());
  return false;
}

}  // namespace

// Also the declaration that kill_switch.cpp has as a weak one.
bool overlay_matches_torch();
bool overlay_matches_torch() {
  static const bool matches = compare();
  return matches;
}

}  // namespace torch::castoff

// At load, so that the message is there even if no topic ever acts.
namespace {
[[gnu::constructor]] void check_at_load() {
  torch::castoff::overlay_matches_torch();
}
}  // namespace
