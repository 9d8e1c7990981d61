// Products of tensors that were exactly widened, as products of what these were before.
//
// Where the IR of both factors is views(cast(x)) with an exact cast from the same narrow type, the
// kernels here multiply views(x) in one dot that accumulates and returns in the wide type. Each
// product of two numbers is the same number, and so is what is summed. All other calls go to the
// kernel that is overridden.

#include <ATen/ExpandUtils.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add_ops.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "torch_xla/csrc/castoff/dot_general.h"
#include "torch_xla/csrc/castoff/exact_casts.h"
#include "torch_xla/csrc/castoff/kernels.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using at::IntArrayRef;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using lazy_ir::ElementType;
using torch::jit::Stack;

// The dtype that a factor was widened from, where a product may take it as it was.
std::optional<ScalarType> narrow_dtype(const Tensor& t) {
  const ScalarType wide = t.scalar_type();
  if (wide != ScalarType::Float && wide != ScalarType::Int) return std::nullopt;
  const ElementType narrow = widened_from(t);
  if (wide == ScalarType::Int) {
    return narrow == ElementType::kS8 ? std::optional(ScalarType::Char) : std::nullopt;
  }
  switch (narrow) {
    case ElementType::kBF16:
      return ScalarType::BFloat16;
    case ElementType::kF16:
      return ScalarType::Half;
    default:
      return std::nullopt;
  }
}

// ---- matrix products

// An operator of two factors: their ranks, what is summed over, and whether it adds to another.
struct Product {
  const char* name;
  int64_t lhs_rank, rhs_rank, lhs_contracting, rhs_contracting, batch;
  bool adds = false;
};

constexpr Product kProducts[] = {
    {"aten::mm", 2, 2, 1, 0, 0},          {"aten::bmm", 3, 3, 2, 1, 1},
    {"aten::mv", 2, 1, 1, 0, 0},          {"aten::dot", 1, 1, 0, 0, 0},
    {"aten::addmm", 2, 2, 1, 0, 0, true}, {"aten::baddbmm", 3, 3, 2, 1, 1, true},
};

class ExactProduct final : public OverrideKernel {
 public:
  ExactProduct(const OperatorHandle& op, DispatchKey key, const Product& which)
      : OverrideKernel(op, key), op_(which), arguments_(op.schema().arguments().size()) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const IValue* arguments = stack->data() + stack->size() - arguments_;
    const Tensor &lhs = arguments[op_.adds].toTensor(), &rhs = arguments[op_.adds + 1].toTensor();
    const auto dtype = narrow_dtype(lhs);
    if (C10_LIKELY(!dtype) || narrow_dtype(rhs) != dtype || !have_sizes(lhs, rhs) ||
        (op_.adds && !is_plain_sum(arguments, lhs, rhs))) {
      return call_overridden(op, keys, stack);
    }
    const Tensor result = product(arguments, lhs, rhs, *dtype);
    if (!result.defined()) return call_overridden(op, keys, stack);
    torch::jit::drop(*stack, arguments_);
    stack->emplace_back(result);
  }

 private:
  // Whether the factors go together: what does not, the overridden kernel refuses.
  bool have_sizes(const Tensor& lhs, const Tensor& rhs) const {
    return lhs.dim() == op_.lhs_rank && rhs.dim() == op_.rhs_rank &&
           lhs.size(op_.lhs_contracting) == rhs.size(op_.rhs_contracting) &&
           (op_.batch == 0 || lhs.size(0) == rhs.size(0)) && lhs.numel() > 0 && rhs.numel() > 0;
  }

  // Whether the addend is added as it is, in the product's dtype.
  bool is_plain_sum(const IValue* arguments, const Tensor& lhs, const Tensor& rhs) const {
    const Tensor& addend = arguments[0].toTensor();
    std::vector<int64_t> sizes = lhs.sizes().vec();
    sizes.back() = rhs.size(-1);
    return addend.scalar_type() == lhs.scalar_type() && lazy_ir::data_of(addend) != nullptr &&
           arguments[3].toScalar().equal(1) && arguments[4].toScalar().equal(1) &&
           at::is_expandable_to(addend.sizes(), sizes);
  }

  Tensor product(const IValue* arguments, const Tensor& lhs, const Tensor& rhs,
                 ScalarType dtype) const {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Tensor a = before_widening(lhs, dtype);
    const Tensor b = a.defined() ? before_widening(rhs, dtype) : Tensor();
    if (!b.defined()) return {};
    const int64_t batch[] = {0};
    const Tensor dot = dot_general(a, b, {op_.lhs_contracting}, {op_.rhs_contracting},
                                   IntArrayRef(batch, op_.batch), lhs.scalar_type());
    return op_.adds ? at::_ops::add_Tensor::redispatch(kXla, dot, arguments[0].toTensor(), 1) : dot;
  }

  const Product& op_;
  const size_t arguments_;
};

// ---- einsum

// torch_xla computes an einsum of two operands by a node of its own, whose result has their dtype.
// torch's own formula is permutations, reshapes and bmm, whose kernel is above. Under SPMD a
// reshape may cost more than casts: sharded dimensions that it merges are gathered.
class ExactEinsum final : public OverrideKernel {
 public:
  using OverrideKernel::OverrideKernel;

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const IValue& operands = *(stack->end() - 2);  // equation, tensors, path
    const auto tensors = operands.toTensorVector();
    const auto dtype = tensors.size() == 2 ? narrow_dtype_of_wrapped(tensors[0]) : std::nullopt;
    if (C10_LIKELY(!dtype) || narrow_dtype_of_wrapped(tensors[1]) != dtype) {
      return call_overridden(op, keys, stack);
    }
    // Where torch keeps its composite kernel: the keys of the operands are not looked at.
    op.redispatchBoxed(DispatchKeySet(DispatchKey::AutogradCPU), stack);
  }

 private:
  static std::optional<ScalarType> narrow_dtype_of_wrapped(const Tensor& t) {
    namespace functional = at::functionalization::impl;
    Tensor bare = t;
    if (functional::isFunctionalTensor(t)) {
      functional::sync(t);
      bare = functional::from_functional_tensor(t);
    }
    const lazy_ir::Data* data = lazy_ir::data_of(bare);
    if (data == nullptr || lazy_ir::is_spmd(*data)) return std::nullopt;
    return narrow_dtype(bare);
  }
};

// ---- convolutions

using Convolution = Tensor(const Tensor&, const Tensor&, IntArrayRef, IntArrayRef, IntArrayRef,
                           bool, IntArrayRef, int64_t, ScalarType);
using WeightGradient = Tensor(const Tensor&, const Tensor&, IntArrayRef, IntArrayRef, IntArrayRef,
                              IntArrayRef, bool, int64_t, ScalarType);

// An operator of topic out-dtype-op; nothing where that is switched off.
template <typename Signature>
std::optional<c10::TypedOperatorHandle<Signature>> wide_operator(const char* name) {
  const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
  if (!op.has_value()) return std::nullopt;
  return op->typed<Signature>();
}

// What a convolution is besides its tensors, from argument `first` on, its stride.
struct Geometry {
  Geometry(Call& call, size_t first)
      : stride(call[first].toIntVector()),
        padding(call[first + 1].toIntVector()),
        dilation(call[first + 2].toIntVector()),
        output_padding(call[first + 4].toIntVector()),
        groups(call[first + 5].toInt()),
        transposed(call[first + 3].toBool()) {}

  std::vector<int64_t> stride, padding, dilation, output_padding;
  int64_t groups;
  bool transposed;
};

// Whether they are float32 tensors of the same rank, widened from the same dtype; which one.
std::optional<ScalarType> narrow_dtype_of_all(std::initializer_list<const Tensor*> tensors) {
  const Tensor& first = **tensors.begin();
  const auto dtype = first.scalar_type() == ScalarType::Float ? narrow_dtype(first) : std::nullopt;
  if (C10_LIKELY(!dtype) || first.dim() < 3) return std::nullopt;
  for (const Tensor* t : tensors) {
    if (t->dim() != first.dim() || t->numel() == 0 || narrow_dtype(*t) != dtype) {
      return std::nullopt;
    }
  }
  return dtype;
}

// Of a transposed convolution, whose padding may take away all that there is.
bool is_result_empty(const Tensor& input, const Tensor& weight, const Geometry& at) {
  for (size_t i = 0; i < at.padding.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    const int64_t reach = at.dilation[i] * (weight.size(dim) - 1) + at.output_padding[i];
    if ((input.size(dim) - 1) * at.stride[i] + reach < 2 * at.padding[i]) return true;
  }
  return false;
}

// input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
void convolution(Call& call) {
  static const auto wide = wide_operator<Convolution>("castoff::convolution");
  const Tensor input = call.tensor(0), weight = call.tensor(1);
  const auto dtype = wide ? narrow_dtype_of_all({&input, &weight}) : std::nullopt;
  if (C10_LIKELY(!dtype)) return call.proceed();
  const bool has_bias = is_tensor(call[2]);
  if (has_bias && (call.tensor(2).scalar_type() != ScalarType::Float ||
                   lazy_ir::data_of(call.tensor(2)) == nullptr)) {
    return call.proceed();
  }
  const Geometry at(call, 3);
  if (at.transposed && is_result_empty(input, weight, at)) return call.proceed();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Tensor a = before_widening(input, *dtype);
  const Tensor b = a.defined() ? before_widening(weight, *dtype) : Tensor();
  if (!b.defined()) return call.proceed();
  const Tensor result = wide->call(a, b, at.stride, at.padding, at.dilation, at.transposed,
                                   at.output_padding, at.groups, ScalarType::Float);
  if (!has_bias) return call.answer(result);
  std::vector<int64_t> channels(result.dim(), 1);
  channels[1] = result.size(1);
  call.answer(result.add(call.tensor(2).view(channels)));
}

// The convolution with the weight that goes the other way.
Tensor input_gradient(const c10::TypedOperatorHandle<Convolution>& wide, const Tensor& g,
                      const Tensor& w, const Geometry& at, IntArrayRef sizes) {
  std::vector<int64_t> output_padding(sizes.size() - 2, 0);
  for (size_t i = 0; i < output_padding.size() && !at.transposed; ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    output_padding[i] = sizes[dim] - ((g.size(dim) - 1) * at.stride[i] - 2 * at.padding[i] +
                                      at.dilation[i] * (w.size(dim) - 1) + 1);
  }
  Tensor result = wide.call(g, w, at.stride, at.padding, at.dilation, !at.transposed,
                            output_padding, at.groups, ScalarType::Float);
  // A transposed convolution with an output_padding of its stride, or more, has more windows.
  for (int64_t dim = 2; dim < result.dim(); ++dim) {
    if (result.size(dim) > sizes[dim]) result = result.narrow_copy(dim, 0, sizes[dim]);
  }
  return result;
}

// grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups,
// output_mask
void convolution_backward(Call& call) {
  static const auto wide = wide_operator<Convolution>("castoff::convolution");
  static const auto of_weight = wide_operator<WeightGradient>("castoff::convolution_weight_grad");
  const Tensor grad = call.tensor(0), input = call.tensor(1), weight = call.tensor(2);
  const auto dtype =
      wide && of_weight ? narrow_dtype_of_all({&grad, &input, &weight}) : std::nullopt;
  if (C10_LIKELY(!dtype)) return call.proceed();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Tensor g = before_widening(grad, *dtype), x = before_widening(input, *dtype),
               w = before_widening(weight, *dtype);
  if (!g.defined() || !x.defined() || !w.defined()) return call.proceed();
  const Geometry at(call, 3);
  const auto mask = call[9].toBoolList();
  Tensor of_input, of_its_weight, of_bias;
  if (mask[0]) of_input = input_gradient(*wide, g, w, at, x.sizes());
  if (mask[1]) {
    of_its_weight = of_weight->call(g, x, w.sizes(), at.stride, at.padding, at.dilation,
                                    at.transposed, at.groups, ScalarType::Float);
  }
  if (mask[2]) {
    std::vector<int64_t> dims(grad.dim() - 1);
    for (size_t i = 1; i < dims.size(); ++i) dims[i] = static_cast<int64_t>(i) + 1;
    of_bias = grad.sum(dims);
  }
  call.answer(of_input, of_its_weight, of_bias);
}

// ---- registration

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", DispatchKey::XLA);
  for (const Product& product : kProducts) {
    override_kernel<ExactProduct>(xla, DispatchKey::XLA, product.name, "", product);
  }
  remedy(xla, convolution, "convolution_overrideable");
  remedy(xla, convolution_backward, "convolution_backward_overrideable");
  torch::Library& autograd = library(torch::Library::IMPL, "aten", DispatchKey::AutogradXLA);
  override_kernel<ExactEinsum>(autograd, DispatchKey::AutogradXLA, "aten::einsum", "");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_exact_dots_install)
