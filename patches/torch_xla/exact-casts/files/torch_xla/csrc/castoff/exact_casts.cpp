// A cast back to the dtype that a tensor was exactly widened from gives the value before the
// widening.
//
// The kernels here override torch_xla's own for casts and copies. They look at the IR that
// these left: where it is cast(views(cast(x))), every value of x is a value of the types between,
// and the outer cast leads back to x's type, it becomes views(x). IR is never changed, only made
// anew, so that what was written in place meanwhile stands between the casts as a node of its own.

#include "torch_xla/csrc/castoff/exact_casts.h"

#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/full_ops.h>
#include <ATen/ops/where_ops.h>
#include <torch/csrc/lazy/core/ir.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using lazy_ir::ElementType;
using lazy_ir::Node;
using lazy_ir::OpKind;
using lazy_ir::Output;
using lazy_ir::Value;

// ---- which casts are exact

enum class Kind { kOther, kPred, kSigned, kUnsigned, kFloat, kComplex };

// The values of a type. Integers: precision is the number of binary digits without the sign.
// Floats: all multiples of 2**smallest below 2**bound with at most that many binary digits.
struct Values {
  Kind kind;
  int precision, smallest, bound;
};

Values values_of(ElementType type) {
  switch (type) {
    case ElementType::kPred:
      return {Kind::kPred, 1, 0, 1};
    case ElementType::kS8:
      return {Kind::kSigned, 7, 0, 7};
    case ElementType::kS16:
      return {Kind::kSigned, 15, 0, 15};
    case ElementType::kS32:
      return {Kind::kSigned, 31, 0, 31};
    case ElementType::kS64:
      return {Kind::kSigned, 63, 0, 63};
    case ElementType::kU8:
      return {Kind::kUnsigned, 8, 0, 8};
    case ElementType::kU16:
      return {Kind::kUnsigned, 16, 0, 16};
    case ElementType::kU32:
      return {Kind::kUnsigned, 32, 0, 32};
    case ElementType::kU64:
      return {Kind::kUnsigned, 64, 0, 64};
    case ElementType::kF8E5M2:
      return {Kind::kFloat, 3, -16, 16};
    case ElementType::kF8E4M3FN:
      return {Kind::kFloat, 4, -9, 9};
    case ElementType::kF16:
      return {Kind::kFloat, 11, -24, 16};
    case ElementType::kBF16:
      return {Kind::kFloat, 8, -133, 128};
    case ElementType::kF32:
      return {Kind::kFloat, 24, -149, 128};
    case ElementType::kF64:
      return {Kind::kFloat, 53, -1074, 1024};
    case ElementType::kC64:
      return {Kind::kComplex, 24, -149, 128};
    case ElementType::kC128:
      return {Kind::kComplex, 53, -1074, 1024};
    case ElementType::kUnknown:
      break;
  }
  return {Kind::kOther, 0, 0, 0};
}

// Whether `wide` is another type than `narrow` and has all of its values. A kind is equal to itself
// or, of integers, part of the next; floats have no integer of 2**bound, which the extremes of
// signed integers are: hence the strict comparison.
bool is_exact_widening(ElementType narrow, ElementType wide) {
  const Values n = values_of(narrow), w = values_of(wide);
  if (narrow == wide || n.kind == Kind::kOther || w.precision < n.precision) return false;
  switch (w.kind) {
    case Kind::kSigned:
      return n.kind == Kind::kPred || n.kind == Kind::kSigned || n.kind == Kind::kUnsigned;
    case Kind::kUnsigned:
      return n.kind == Kind::kPred || n.kind == Kind::kUnsigned;
    case Kind::kFloat:
      if (n.kind == Kind::kComplex) return false;
      return w.smallest <= n.smallest &&
             (n.kind == Kind::kFloat ? w.bound >= n.bound : w.bound > n.bound);
    case Kind::kComplex:
      return n.kind == Kind::kComplex;
    default:
      return false;
  }
}

// ---- which IR this is about

struct Kinds {
  OpKind cast = OpKind::Get("xla::cast");
  OpKind view = OpKind::Get("aten::view");  // also squeeze and unsqueeze
  std::array<OpKind, 8> other_views = {
      OpKind::Get("aten::permute"),  OpKind::Get("aten::expand"),
      OpKind::Get("xla::select"),    OpKind::Get("xla::generic_slice"),
      OpKind::Get("aten::diagonal"), OpKind::Get("aten::split"),
      OpKind::Get("aten::flip"),     OpKind::Get("aten::as_strided"),
  };

  // Whether the result is elements of the one operand, whatever their type is.
  bool is_view(const OpKind& op) const {
    if (op == view) return true;
    for (const OpKind& other : other_views) {
      if (op == other) return true;
    }
    return false;
  }
};

const Kinds& kinds() {
  static const Kinds all;
  return all;
}

// Far more views than a program puts between two casts; a bound for loops that go on and on.
constexpr size_t kMostViews = 64;

// A chain of views and casts from a value down, as far as it goes.
struct Chain {
  std::vector<Output> nodes;
  bool has_casts = false;  // two, so that there may be something to fold

  explicit Chain(Output output) {
    int casts = 0;
    while (nodes.size() < kMostViews) {
      const bool cast = output.node->op() == kinds().cast;
      if (!cast && !kinds().is_view(output.node->op())) break;
      if (output.node->operands().size() != 1) break;  // a size that is itself a value
      casts += cast;
      nodes.push_back(output);
      output = output.node->operand(0);
    }
    has_casts = casts >= 2;
  }
};

bool is_cast(const Output& output) {
  return output.node->op() == kinds().cast;
}

// The same view of another value.
Value view_again(const Output& view, const Value& input, const at::Tensor& like) {
  if (view.node->op() == kinds().view) return lazy_ir::view_again(*view.node, input, like);
  return Value(lazy_ir::clone(*view.node, {input}), view.index);
}

// How many nodes of the chain lead from the outer cast back to a value of its type, through nothing
// but exact widenings and views; 0 if none.
size_t round_trip(const Chain& chain, const at::Tensor& like, bool spmd) {
  ElementType type = ElementType::kUnknown;  // the outer cast's
  size_t found = 0;
  for (size_t i = 0; i < chain.nodes.size(); ++i) {
    const Output& output = chain.nodes[i];
    if (is_cast(output) && type == ElementType::kUnknown) {
      type = lazy_ir::element_type(output);
    } else if (is_cast(output)) {
      if (!is_exact_widening(type, lazy_ir::element_type(output))) break;
      if (lazy_ir::element_type(output.node->operand(0)) == type) found = i + 1;
    }
    if (lazy_ir::is_annotated(*output.node, like, spmd)) break;
    if (found == i + 1) return found;
  }
  return 0;
}

// Set while torch.compile traces: see _exact_casts.keep_apart.
thread_local bool keep_apart = false;

// `out` has just been made by a cast or a copy; the value in it may have a shorter way.
Value shorter(const lazy_ir::Data& data, const at::Tensor& out) {
  const Chain chain(data.ir_value);
  if (!chain.has_casts || !lazy_ir::ready(out)) return {};
  const bool spmd = lazy_ir::is_spmd(data);
  const size_t length = round_trip(chain, out, spmd);
  if (length == 0) return {};
  Value value = lazy_ir::operand(*chain.nodes[length - 1].node, 0);
  bool viewed = false;
  for (size_t i = length; value && i-- > 0;) {
    if (is_cast(chain.nodes[i])) continue;
    value = view_again(chain.nodes[i], value, out);
    viewed = true;
  }
  if (!value || viewed) return value;
  // A sharding that the user gives to this tensor must not become that of the other one.
  const bool apart = spmd || (keep_apart && value.node->operands().empty());
  return apart ? lazy_ir::own_node(value, out) : value;
}

void fold(const at::Tensor& out) {
  lazy_ir::Data* data = lazy_ir::data_of(out);
  if (data == nullptr || !data->ir_value) return;
  Value value;
  try {
    value = shorter(*data, out);
  } catch (const std::exception&) {  // torch_xla cannot copy this node: the casts stay
    return;
  }
  if (value) data->ir_value = std::move(value);
}

// Whether a value is what a cast has just made of the other one.
bool is_cast_of(const Value& value, const Value& source) {
  return is_cast(value) && value.node->operand(0) == Output(source);
}

// ---- the kernels

// A memory format means nothing to XLA tensors, but torch_xla refuses some.
bool is_plain(std::optional<at::MemoryFormat> format) {
  const at::MemoryFormat given = format.value_or(at::MemoryFormat::Preserve);
  return given == at::MemoryFormat::Preserve || given == at::MemoryFormat::Contiguous;
}

struct ExactCasts;
using ToCopy = Overridden<ExactCasts, at::_ops::_to_copy, DispatchKey::XLA>;

at::Tensor to_copy(DispatchKeySet keys, const at::Tensor& self, std::optional<at::ScalarType> dtype,
                   std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> format) {
  const bool is_cast = dtype && *dtype != self.scalar_type() && self.is_xla() &&
                       (!device || *device == self.device()) &&
                       layout.value_or(at::kStrided) == at::kStrided &&
                       !pin_memory.value_or(false) && is_plain(format);
  at::Tensor out = is_cast ? lazy_ir::cast_of(self, *dtype) : at::Tensor();
  if (!out.defined()) {
    out = ToCopy::call(keys, self, dtype, layout, device, pin_memory, non_blocking, format);
  }
  if (out.dtype() != self.dtype()) fold(out);
  return out;
}

template <size_t source>
void fold_after(Call& call) {
  const caffe2::TypeMeta from = call.tensor(source).dtype();
  call.proceed();
  const at::Tensor& out = call.result().toTensor();
  if (out.dtype() != from) fold(out);
}

// A number of a narrow dtype, on the device and of no dimension.
at::Tensor number(float value, const at::Tensor& like) {
  const float rounded = like.scalar_type() == at::ScalarType::Half
                            ? static_cast<float>(c10::Half(value))
                            : static_cast<float>(c10::BFloat16(value));
  return at::_ops::full::redispatch(kXla, c10::SymIntArrayRef(), rounded, like.scalar_type(), {},
                                    like.device(), {});
}

// A number of Python, as it is or as a tensor.
bool is_real_number(const c10::IValue& value) {
  if (!value.isTensor()) return !value.toScalar().isComplex();
  const at::Tensor& t = value.toTensor();
  return t.device().is_cpu() && t.unsafeGetTensorImpl()->is_wrapped_number() && !t.is_complex();
}

// A mask divided by a number, as dropout scales it, is a choice between two numbers. torch_xla
// divides all elements in float32, between casts.
at::Tensor choice(const at::Tensor& dividend, const c10::IValue& divisor) {
  if (!is_half(dividend.scalar_type()) || !is_real_number(divisor) ||
      widened_from(dividend) != ElementType::kPred) {
    return {};
  }
  const at::Tensor mask = before_widening(dividend, at::ScalarType::Bool);
  if (!mask.defined()) return {};
  const c10::Scalar by = divisor.isTensor()
                             ? at::_ops::_local_scalar_dense::redispatch(
                                   DispatchKeySet(DispatchKey::CPU), divisor.toTensor())
                             : divisor.toScalar();
  // As torch's kernel on the CPU: in float32, then rounded.
  const auto wide = static_cast<float>(by.toDouble());
  return at::_ops::where_self::redispatch(kXla, mask, number(1 / wide, dividend),
                                          number(0 / wide, dividend));
}

void divide(Call& call) {
  const at::Tensor quotient = choice(call.tensor(0), call[1]);
  if (C10_LIKELY(!quotient.defined())) return call.proceed();
  call.answer(quotient);
}

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", DispatchKey::XLA);
  remedy(xla, divide, "div.Tensor div.Scalar");
  ToCopy::by(xla, to_copy);
  remedy(xla, fold_after<0>, "_copy_from");
  remedy(xla, fold_after<1>, "copy");
}

}  // namespace

ElementType widened_from(const at::Tensor& tensor) {
  const lazy_ir::Data* data = lazy_ir::data_of(tensor);
  if (data == nullptr || !data->ir_value) return ElementType::kUnknown;
  Output output = data->ir_value;
  for (size_t i = 0; i < kMostViews && output.node->operands().size() == 1; ++i) {
    const Output& source = output.node->operand(0);
    if (is_cast(output)) {
      if (!lazy_ir::ready(tensor)) return ElementType::kUnknown;
      const ElementType narrow = lazy_ir::element_type(source);
      return is_exact_widening(narrow, lazy_ir::element_type(output)) ? narrow
                                                                      : ElementType::kUnknown;
    }
    if (!kinds().is_view(output.node->op())) return ElementType::kUnknown;
    output = source;
  }
  return ElementType::kUnknown;
}

at::Tensor before_widening(const at::Tensor& tensor, at::ScalarType narrow) {
  const Value wide = lazy_ir::data_of(tensor)->ir_value;
  const at::Tensor out = cast(tensor, narrow);
  const lazy_ir::Data* data = lazy_ir::data_of(out);
  if (data == nullptr || !data->ir_value) return {};
  // The cast's kernel has folded it already, unless exact-casts is off.
  if (is_cast_of(data->ir_value, wide)) fold(out);
  return is_cast_of(data->ir_value, wide) ? at::Tensor() : out;
}

}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_exact_casts_install)

extern "C" {

// Whether, from now on, this thread's tensors have nodes other than those of device data; returns
// whether they had so far.
__attribute__((visibility("default"))) bool castoff_exact_casts_keep_apart(bool apart) {
  return std::exchange(castoff::keep_apart, apart);
}

}  // extern "C"
