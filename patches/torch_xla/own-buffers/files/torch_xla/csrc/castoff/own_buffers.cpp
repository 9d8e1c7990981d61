// Copies of tensors that are computed. torch_xla gives the copy the node of the source's buffer,
// and a sync then gives it that buffer, which a later graph may overwrite for one of the two
// tensors.

#include <ATen/core/Tensor.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/view_copy_ops.h>
#include <torch/csrc/lazy/core/ir.h>

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

bool is_buffer(const lazy_ir::Value& value) {
  static const lazy_ir::OpKind device_data = lazy_ir::OpKind::Get("xla::device_data");
  return value && value.node->op() == device_data;
}

// Whether a copy has got the source's buffer. Under SPMD torch_xla's copies are copies.
bool shares_buffer(const at::Tensor& copy) {
  const lazy_ir::Data* data = lazy_ir::data_of(copy);
  return data != nullptr && is_buffer(data->ir_value) && lazy_ir::ready(copy) &&
         !lazy_ir::is_spmd(*data);
}

// A new tensor of the same node, which torch_xla knows it is to compute.
void answer_clone(Call& call) {
  call.result() = at::_ops::clone::redispatch(kXla, call.result().toTensor(), std::nullopt);
}

// The result gets a node of its own: a view of the whole. torch_xla would give a clone the
// destination's alias, also through detach(), and with it donate the source's buffer.
void view_whole(Call& call) {
  const at::Tensor& copy = call.result().toTensor();
  const at::Tensor whole = at::_ops::view_copy::redispatch(kXla, copy, copy.sym_sizes());
  if (const lazy_ir::Data* own = lazy_ir::data_of(whole)) {
    lazy_ir::data_of(copy)->ir_value = own->ir_value;
  }
}

template <size_t source, Remedy part>
void copy_apart(Call& call) {
  const bool on_device = call.tensor(source).is_xla();
  call.proceed();
  if (on_device && shares_buffer(call.result().toTensor())) part(call);
}

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, copy_apart<0, answer_clone>, "_to_copy");
  remedy(xla, copy_apart<1, view_whole>, "copy");
  remedy(xla, copy_apart<0, view_whole>, "_copy_from");
  remedy(xla, copy_apart<1, view_whole>, "copy_");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_own_buffers_install)
