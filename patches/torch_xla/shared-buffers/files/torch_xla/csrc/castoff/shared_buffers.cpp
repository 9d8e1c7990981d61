// Tells torch's half of graph-identity, which marks what a graph may overwrite, of buffers that a
// copy shares with its source: torch_xla gives a copy of a computed tensor the node of its buffer.

#include <ATen/core/Tensor.h>
#include <torch/csrc/lazy/backend/backend_interface.h>

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using AddSharedBuffer = void (*)(const torch::lazy::BackendDataPtr&);

AddSharedBuffer add_shared_buffer = nullptr;  // set before the kernels are

void share_buffer(const at::Tensor& copy) {
  static const lazy_ir::OpKind device_data = lazy_ir::OpKind::Get("xla::device_data");
  const lazy_ir::Data* data = lazy_ir::data_of(copy);
  if (data == nullptr || !data->ir_value || data->ir_value->op() != device_data) return;
  const auto* const backend = torch::lazy::getBackend();
  add_shared_buffer(backend->GetComputationDataFromNode(data->ir_value.node.get()));
}

template <size_t source>
void copy(Call& call) {
  const bool on_device = call.tensor(source).is_xla();
  call.proceed();
  if (on_device) share_buffer(call.result().toTensor());
}

}  // namespace
}  // namespace castoff

// The address of torch's castoff_graph_identity_add_shared_buffer.
extern "C" __attribute__((visibility("default"))) const char* castoff_shared_buffers_install(
    castoff::AddSharedBuffer add) {
  return castoff::put_in_place([&] {
    castoff::add_shared_buffer = add;
    torch::Library& xla = castoff::library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
    castoff::remedy(xla, castoff::copy<0>, "_to_copy _copy_from");
    castoff::remedy(xla, castoff::copy<1>, "copy copy_");
  });
}
