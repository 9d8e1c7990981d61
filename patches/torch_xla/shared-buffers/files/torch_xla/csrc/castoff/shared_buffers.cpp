// Tells torch's half of graph-identity, which marks what a graph may overwrite, of buffers that a
// copy shares with its source: torch_xla gives a copy of a computed tensor the node of its buffer,
// and a tensor that is read the buffer of its node.

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/lazy/backend/backend_interface.h>

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using torch::lazy::BackendDataPtr;
using AddSharedBuffer = void (*)(const BackendDataPtr&);

AddSharedBuffer add_shared_buffer = nullptr;  // set before the kernels are

BackendDataPtr buffer_of_node(const lazy_ir::Data* data) {
  static const lazy_ir::OpKind device_data = lazy_ir::OpKind::Get("xla::device_data");
  if (data == nullptr || !data->ir_value || data->ir_value->op() != device_data) return nullptr;
  return torch::lazy::getBackend()->GetComputationDataFromNode(data->ir_value.node.get());
}

void share(const BackendDataPtr& buffer) {
  if (buffer != nullptr) add_shared_buffer(buffer);
}

// A tensor that has the node of a buffer, but not the buffer, as a clone has, takes it when it is
// read.
void share_if_taken(const lazy_ir::Data* data) {
  if (data != nullptr && data->handle == nullptr) share(buffer_of_node(data));
}

template <size_t source>
void copy(Call& call) {
  const bool on_device = call.tensor(source).is_xla();
  if (on_device) share_if_taken(lazy_ir::data_of(call.tensor(source)));
  call.proceed();
  if (on_device) share(buffer_of_node(lazy_ir::data_of(call.result().toTensor())));
}

// torch_xla answers with the argument itself. The same operator makes a view again, which is to be
// the argument: such calls do not meet functionalization.
void copy_as_it_is(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const bool is_copy = call.size() < 3 || at::maybe_wrap_dim(call[1].toInt(), self.dim()) ==
                                              at::maybe_wrap_dim(call[2].toInt(), self.dim());
  if (!self.is_xla() || !is_copy) return call.proceed();
  call.answer(self.clone());
}

// A tensor of one dimension, or of none.
void transposed_copy(Call& call) {
  if (call.tensor(0).dim() < 2) return copy_as_it_is(call);
  call.proceed();
}

}  // namespace
}  // namespace castoff

// Of the tensors that a compiled graph is about to take.
extern "C" __attribute__((visibility("default"))) void castoff_shared_buffers_taken(
    c10::TensorImpl* const* tensors, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    castoff::share_if_taken(castoff::lazy_ir::data_of(tensors[i]));
  }
}

// The address of torch's castoff_graph_identity_add_shared_buffer.
extern "C" __attribute__((visibility("default"))) const char* castoff_shared_buffers_install(
    castoff::AddSharedBuffer add) {
  return castoff::put_in_place([&] {
    castoff::add_shared_buffer = add;
    torch::Library& xla = castoff::library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
    castoff::remedy(xla, castoff::copy<0>, "_to_copy _copy_from");
    castoff::remedy(xla, castoff::copy<1>, "copy copy_");
    constexpr auto kFunctionalize = c10::DispatchKey::Functionalize;
    torch::Library& above = castoff::library(torch::Library::IMPL, "aten", kFunctionalize);
    castoff::remedy(above, castoff::copy_as_it_is, "alias_copy detach_copy transpose_copy.int",
                    kFunctionalize);
    castoff::remedy(above, castoff::transposed_copy, "t_copy", kFunctionalize);
  });
}
