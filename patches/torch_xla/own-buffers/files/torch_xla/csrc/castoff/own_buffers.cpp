// Copies of tensors that are computed. torch_xla gives the copy the node of the source's buffer,
// and a sync then gives it that buffer, which a later graph may overwrite for one of the two
// tensors.

#include <ATen/core/Tensor.h>
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

template <size_t source>
void copy_apart(Call& call) {
  const bool on_device = call.tensor(source).is_xla();
  call.proceed();
  if (!on_device) return;
  const at::Tensor& copy = call.result().toTensor();
  lazy_ir::Data* data = lazy_ir::data_of(copy);
  if (data == nullptr || !is_buffer(data->ir_value) || !lazy_ir::ready(copy)) return;
  if (lazy_ir::is_spmd(*data)) return;  // there torch_xla's copies are copies
  // A view of the whole is a node of its own, which costs nothing but the copy.
  const at::Tensor whole = at::_ops::view_copy::redispatch(kXla, copy, copy.sym_sizes());
  if (const lazy_ir::Data* own = lazy_ir::data_of(whole)) data->ir_value = own->ir_value;
}

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, copy_apart<0>, "_copy_from _to_copy");
  remedy(xla, copy_apart<1>, "copy copy_");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_own_buffers_install)
