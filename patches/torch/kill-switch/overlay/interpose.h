#pragma once

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <atomic>
#include <utility>

namespace torch::castoff {

// The definition that `ours`, an exported symbol of the overlay, takes the place of: that of the
// same name in libtorch_cpu.so. The name is asked of the loader, so that it is right for either C++
// ABI. Throws c10::Error if that library does not define it.
template <class Function>
Function* find_stock(Function* ours) {
  Dl_info info{};
  TORCH_CHECK(dladdr(reinterpret_cast<const void*>(ours), &info) != 0 && info.dli_sname != nullptr,
              "castoff: an interposed function is not an exported symbol of the overlay");
  void* torch_cpu = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  void* stock = torch_cpu == nullptr ? nullptr : dlsym(torch_cpu, info.dli_sname);
  TORCH_CHECK(stock != nullptr, "castoff: libtorch_cpu.so does not define ", info.dli_sname);
  return reinterpret_cast<Function*>(stock);
}

// That definition, found at its first call. A later call is a jump: a static variable within the
// function that calls it would cost it the registers that it keeps.
template <auto ours>
class Stock;

template <class Result, class... Arguments, Result (*ours)(Arguments...)>
class Stock<ours> {
 public:
  // Throws what the stock definition throws, and what find_stock throws.
  static Result call(Arguments... arguments) {
    return stock_.load(std::memory_order_relaxed)(std::forward<Arguments>(arguments)...);
  }

 private:
  static Result first_call(Arguments... arguments) {
    stock_.store(find_stock(ours), std::memory_order_relaxed);
    return call(std::forward<Arguments>(arguments)...);
  }

  inline static std::atomic<Result (*)(Arguments...)> stock_{&first_call};
};

}  // namespace torch::castoff
