#pragma once

#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace torch::castoff {

// The definition that `ours`, an exported symbol of the overlay, takes the place of: the next one
// of the same name in symbol lookup order. The name is asked of the loader, so that it is right for
// either C++ ABI. Throws c10::Error if the library that should define it does not.
template <class Function>
Function* stock(Function* ours) {
  Dl_info info{};
  TORCH_CHECK(dladdr(reinterpret_cast<const void*>(ours), &info) != 0 && info.dli_sname != nullptr,
              "castoff: an interposed function is not an exported symbol of the overlay");
  void* next = dlsym(RTLD_NEXT, info.dli_sname);
  TORCH_CHECK(next != nullptr, "castoff: libtorch_cpu.so does not define ", info.dli_sname);
  return reinterpret_cast<Function*>(next);
}

}  // namespace torch::castoff
