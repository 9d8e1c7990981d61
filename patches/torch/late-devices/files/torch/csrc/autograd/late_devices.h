#pragma once

// Threads of the autograd engine for devices that came after its first backward.

#include <torch/csrc/autograd/engine.h>

namespace torch::autograd::late_devices {

// For Engine::initialize_device_threads_pool, after the first start: starts a thread for each
// device if none was there then. Thread-safe. Costs a test once the engine has threads, and a look
// at the registered backends while there is none.
void start_threads(Engine& engine);

}  // namespace torch::autograd::late_devices
