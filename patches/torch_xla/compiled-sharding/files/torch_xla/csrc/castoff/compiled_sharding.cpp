// Under SPMD, to make a tensor of a buffer says that the buffer is that tensor's.

#include <torch/csrc/lazy/core/lazy_graph_executor.h>

#include "torch_xla/csrc/castoff/lazy_ir.h"

// Lets the buffers of tensors be, again, those of the tensors with these numbers.
extern "C" __attribute__((visibility("default"))) void castoff_compiled_sharding_name(
    c10::TensorImpl* const* tensors, const int64_t* numbers, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const castoff::lazy_ir::Data* data = castoff::lazy_ir::data_of(tensors[i]);
    if (data == nullptr || data->handle == nullptr || data->handle->info() == nullptr) continue;
    using Info = torch::lazy::LazyGraphExecutor::DeviceDataInfo;
    static_cast<Info*>(data->handle->info())->tensor_id = numbers[i];
  }
}
