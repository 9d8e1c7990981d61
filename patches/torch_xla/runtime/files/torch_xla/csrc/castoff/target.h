// The device that a process traces graphs for.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace castoff {

inline bool names_tpu(const char* variable) {
  const char* type = std::getenv(variable);
  return type != nullptr && std::string_view(type).substr(0, 3) == "TPU";
}

// Whether a tool compiles this process's graphs for a TPU, which it does not have.
inline std::atomic<bool> traced_for_tpu{names_tpu("CASTOFF_TRACE_FOR")};

// The type of the process's devices. torch_xla has settled it before there is a tensor on one.
inline bool runs_on_tpu() {
  static const bool tpu = names_tpu("PJRT_DEVICE");
  return tpu;
}

inline bool is_for_tpu() {
  return traced_for_tpu || runs_on_tpu();
}

// The rows of a tile, in which a TPU keeps the last two dimensions of an array.
inline constexpr int64_t kTileRows = 8;

}  // namespace castoff
