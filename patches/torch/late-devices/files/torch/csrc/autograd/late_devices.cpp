#include <torch/csrc/autograd/late_devices.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#ifndef _WIN32
#include <pthread.h>
#endif

namespace torch::autograd::late_devices {
namespace {

// Protected members of the engine.
struct Members : Engine {
  static auto& queues(Engine& engine) { return engine.*(&Members::device_ready_queues_); }
  static void count_thread(Engine& engine) {
    (engine.*(&Members::increment_non_reentrant_thread_count))();
  }
  static void forget_thread(Engine& engine) {
    (engine.*(&Members::decrement_non_reentrant_thread_count))();
  }
};

// Whether all threads that a device needs have been started, by torch or here.
std::atomic<bool> started{false};
std::atomic<bool> forked_with_threads{false};

// 0 before the first use of XLA, and where torch_xla is not imported.
c10::DeviceIndex number_of_devices() {
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::kXLA)].load();
  return guard == nullptr ? c10::DeviceIndex(0) : guard->deviceCount();
}

void start(Engine& engine, c10::DeviceIndex number) {
#ifndef _WIN32
  pthread_atfork(nullptr, nullptr, [] { forked_with_threads = true; });
#endif
  std::vector<std::shared_ptr<ReadyQueue>> queues(number);
  for (auto& queue : queues) {
    queue = std::make_shared<ReadyQueue>();
  }
  // No backward has read the queues yet: one that needs a device comes here first, and waits.
  Members::queues(engine) = std::move(queues);
  for (c10::DeviceIndex i = 0; i < number; ++i) {
    // Counted before it runs, so that the engine's destructor waits for its end.
    Members::count_thread(engine);
    std::thread([&engine, i] {
      engine.thread_init(i, Members::queues(engine)[i], /*should_increment=*/false);
      Members::forget_thread(engine);
    }).detach();
  }
}

}  // namespace

void start_threads(Engine& engine) {
  if (C10_LIKELY(started.load(std::memory_order_acquire))) {
    TORCH_CHECK(!forked_with_threads.load(std::memory_order_relaxed),
                "Unable to handle autograd's threading in combination with fork-based "
                "multiprocessing: this process was forked from one that had run a backward on a "
                "device. Use the start method spawn");
    return;
  }
  const auto number = number_of_devices();
  if (number == 0) {
    return;
  }
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (started.load(std::memory_order_relaxed)) {
    return;
  }
  if (Members::queues(engine).empty()) {
    start(engine, number);
  }
  started.store(true, std::memory_order_release);
}

}  // namespace torch::autograd::late_devices
