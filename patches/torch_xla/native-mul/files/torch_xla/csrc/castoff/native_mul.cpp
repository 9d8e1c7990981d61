// Products of two bfloat16 or two float16 tensors as products in that type.
//
// torch_xla multiplies such tensors in float32, between casts, for compilers that want it so. Where
// the user asks for the native product, the kernel here hands torch_xla's own the operands' IR as
// it is, in tensors that say float32, which it multiplies without a cast.

#include <ATen/ThreadLocalPythonObjects.h>
#include <c10/core/SafePyObject.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using lazy_ir::ElementType;
using lazy_ir::Value;

// ---- whether the user asks for it

// What a block of code in a thread says. Python knows these numbers.
enum class Block : int { kNone = 0, kEnable = 1, kDisable = 2 };

std::atomic<bool> process_wide{false};
std::atomic<bool> blocks_exist{false};  // as long as none has been, no thread looks for one

// Blocks are in the thread-local state that autograd carries into the threads of a backward pass.
// The one part of that state that is open to others holds Python objects by name. These two are
// none, and never go: who they are says it all.
struct Marks {
  using Mark = std::shared_ptr<c10::SafePyObject>;
  using Objects = at::impl::ThreadLocalPythonObjects;

  static const Marks& get() {
    static const Marks& marks = *new Marks;
    return marks;
  }

  Block here() const {
    if (!Objects::contains(key_)) return Block::kNone;
    const Mark& mark = Objects::get(key_);
    return mark == enable_ ? Block::kEnable : mark == disable_ ? Block::kDisable : Block::kNone;
  }

  void set(Block block) const {
    Objects::set(key_, block == Block::kEnable    ? enable_
                       : block == Block::kDisable ? disable_
                                                  : nullptr);
  }

 private:
  Marks() : enable_(mark()), disable_(mark()) {}

  static Mark mark() { return std::make_shared<c10::SafePyObject>(nullptr, nullptr); }

  const std::string key_ = "castoff.native_mul";
  const Mark enable_, disable_;
};

bool enabled() {
  const bool process = process_wide.load(std::memory_order_relaxed);
  if (C10_LIKELY(!blocks_exist.load(std::memory_order_relaxed))) return process;
  const Block block = Marks::get().here();
  return block == Block::kNone ? process : block == Block::kEnable;
}

// ---- the product

// The operand of the cast that has just made this tensor; nothing if there is no such node.
Value before_cast(const Tensor& t) {
  static const lazy_ir::OpKind cast_kind = lazy_ir::OpKind::Get("xla::cast");
  const lazy_ir::Data* data = lazy_ir::data_of(t);
  if (data == nullptr || !data->ir_value || !(data->ir_value.node->op() == cast_kind)) return {};
  return lazy_ir::operand(*data->ir_value.node, 0);
}

// A tensor that says float32 and holds what this one holds in its own type; an undefined one if
// there is no IR to hold, as in eager mode, or if it is of another type than the tensor says.
Tensor relabel_as_float32(const Tensor& t, ElementType type) {
  const Tensor wide = cast(t, ScalarType::Float);
  Value value = before_cast(wide);
  if (!value || !lazy_ir::ready(wide) || lazy_ir::element_type(value) != type) return {};
  lazy_ir::data_of(wide)->ir_value = std::move(value);
  return wide;
}

// The other way round.
Tensor relabel_as(const Tensor& t, ScalarType dtype) {
  const Tensor narrow = cast(t, dtype);
  Value value = before_cast(narrow);
  if (value) lazy_ir::data_of(narrow)->ir_value = std::move(value);
  return narrow;
}

// A Python number is multiplied in float32 as in stock: as bfloat16 it would be another number.
bool is_ours(const Tensor& a, const Tensor& b) {
  const ScalarType type = a.scalar_type();
  return is_half(type) && b.scalar_type() == type &&
         !a.unsafeGetTensorImpl()->is_wrapped_number() &&
         !b.unsafeGetTensorImpl()->is_wrapped_number() && lazy_ir::data_of(a) != nullptr &&
         lazy_ir::data_of(b) != nullptr;
}

void mul(Call& call) {
  if (C10_LIKELY(!enabled())) return call.proceed();
  const Tensor &a = call.tensor(0), &b = call.tensor(1);
  if (!is_ours(a, b)) return call.proceed();
  const ScalarType dtype = a.scalar_type();
  const ElementType type = dtype == ScalarType::Half ? ElementType::kF16 : ElementType::kBF16;
  const Tensor wide_a = relabel_as_float32(a, type);
  const Tensor wide_b = wide_a.defined() ? relabel_as_float32(b, type) : Tensor();
  if (!wide_b.defined()) return call.proceed();
  call[0] = wide_a;
  call[1] = wide_b;
  call.proceed();
  call.result() = relabel_as(call.result().toTensor(), dtype);
}

void install() {
  remedy(library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA), mul, "mul.Tensor");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_native_mul_install)

extern "C" {

__attribute__((visibility("default"))) void castoff_native_mul_set(bool enable) {
  castoff::process_wide = enable;
}

__attribute__((visibility("default"))) bool castoff_native_mul_enabled() {
  return castoff::enabled();
}

// Makes this the block of the thread, a Block, and returns the one that it was in.
__attribute__((visibility("default"))) int castoff_native_mul_enter(int block) {
  castoff::blocks_exist = true;
  const castoff::Block outer = castoff::Marks::get().here();
  castoff::Marks::get().set(static_cast<castoff::Block>(block));
  return static_cast<int>(outer);
}

}  // extern "C"
