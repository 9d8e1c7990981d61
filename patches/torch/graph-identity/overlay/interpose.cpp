// A source build asks for the graph's identity at the end of LazyGraphExecutor::RunPostOrder; an
// overlay build takes the place of that function, and calls the stock one for the rest.
#include <dlfcn.h>
#include <torch/csrc/lazy/core/graph_identity.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>

#include "interpose.h"

#define RUN_POST_ORDER                                                                   \
  "_ZN5torch4lazy17LazyGraphExecutor12RunPostOrderERKSt6vectorINS0_5ValueESaIS3_EEPNS1_" \
  "20SyncTensorCollectionE"

namespace {

// The function and its types are protected. A free function under the member's symbol has an
// address that says where it is, and not where a vtable leads.
struct Executor : torch::lazy::LazyGraphExecutor {
  using LazyGraphExecutor::PostOrderData;
  using LazyGraphExecutor::SyncTensorCollection;
};
using PostOrderData = Executor::PostOrderData;

void* library_of(const void* address) {
  Dl_info info{};
  return address == nullptr || dladdr(address, &info) == 0 ? nullptr : info.dli_fbase;
}

}  // namespace

extern "C++" {
[[gnu::visibility("default")]] PostOrderData run_post_order(
    torch::lazy::LazyGraphExecutor* self, const std::vector<torch::lazy::Value>& ir_values,
    Executor::SyncTensorCollection* coll) __asm__(RUN_POST_ORDER);
}

PostOrderData run_post_order(torch::lazy::LazyGraphExecutor* self,
                             const std::vector<torch::lazy::Value>& ir_values,
                             Executor::SyncTensorCollection* coll) {
  PostOrderData data = torch::castoff::Stock<&run_post_order>::call(self, ir_values, coll);
  // The sequence is used for nothing but the key.
  torch::lazy::graph_identity::identify(ir_values, data.post_order, coll->device,
                                        data.parameters_data, data.parameter_sequence);
  return data;
}

extern "C" {

[[gnu::visibility("default")]] bool castoff_graph_identity_in_effect();

// Whether a library that is loaded now would find the jump to this function, and not one that came
// first.
bool castoff_graph_identity_in_effect() {
  void* jumps = library_of(dlsym(RTLD_DEFAULT, "castoff_interposed"));
  return jumps != nullptr && library_of(dlsym(RTLD_DEFAULT, RUN_POST_ORDER)) == jumps;
}

}  // extern "C"
