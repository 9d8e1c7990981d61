// What torch does for its profiler for each node of a backward pass, and for each sync.
#include <ATen/record_function.h>
#include <torch/csrc/castoff/kill_switch.h>
#include <torch/csrc/lazy/core/ir_metadata.h>

#include "interpose.h"

extern "C++" {
[[gnu::visibility("default")]] void set_callbacks(const at::RecordFunctionTLS& tls) __asm__(
    "_ZN2at24set_record_function_tls_ERKNS_17RecordFunctionTLSE");
[[gnu::visibility("default")]] void reset_scopes() __asm__(
    "_ZN5torch4lazy11ScopePusher11ResetScopesEv");
}

namespace {
using torch::castoff::Stock;

bool on() {
  static const bool enabled = torch::castoff::topic_enabled("profiler-state");
  return enabled;
}

}  // namespace

// The engine sets the state of a thread for each node, and torch makes its lists of callbacks anew
// each time. They stay as they are where the thread had no callbacks and has none: those of the
// process have a version, by which torch updates the lists before it uses them.
void set_callbacks(const at::RecordFunctionTLS& tls) {
  const at::RecordFunctionTLS& now = at::get_record_function_tls_();
  if (on() && tls.sorted_tls_callbacks_.empty() && now.sorted_tls_callbacks_.empty() &&
      tls.tls_record_function_enabled_ == now.tls_record_function_enabled_) {
    return;
  }
  Stock<&set_callbacks>::call(tls);
}

// Scopes are numbered anew from each sync, but for one within a scope, which torch refuses.
void reset_scopes() {
  try {
    Stock<&reset_scopes>::call();
  } catch (const c10::Error&) {
    if (!on()) throw;
  }
}
