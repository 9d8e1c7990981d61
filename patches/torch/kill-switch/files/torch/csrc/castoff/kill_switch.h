#pragma once

#include <string_view>

namespace torch::castoff {

// Whether `topic` may act in this process: false if CASTOFF_DISABLE, a comma-separated list read
// once per process, names it or says "all", and in an overlay that met another torch than the one
// it was built for. Thread-safe; the first call reads the environment.
bool topic_enabled(std::string_view topic);

}  // namespace torch::castoff
