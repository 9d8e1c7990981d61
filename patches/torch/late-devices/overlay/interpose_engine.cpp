// An overlay build takes the place of the function that each backward calls to start the threads.
#include <torch/csrc/autograd/late_devices.h>
#include <torch/csrc/castoff/kill_switch.h>

#include "interpose.h"

namespace {
using torch::autograd::Engine;
}

extern "C++" {
[[gnu::visibility("default")]] void initialize_device_threads_pool(Engine* self) __asm__(
    "_ZN5torch8autograd6Engine30initialize_device_threads_poolEv");
}

void initialize_device_threads_pool(Engine* self) {
  static const bool enabled = torch::castoff::topic_enabled("late-devices");
  torch::castoff::Stock<&initialize_device_threads_pool>::call(self);
  if (enabled) {
    torch::autograd::late_devices::start_threads(*self);
  }
}
