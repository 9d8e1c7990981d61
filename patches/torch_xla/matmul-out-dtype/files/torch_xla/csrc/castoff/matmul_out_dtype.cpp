// Matrix products on XLA whose result is wider than their operands.
//
// mm, bmm, addmm and baddbmm with out_dtype=, and these, mv, dot and linear with a wider out=,
// become one castoff::dot_general that accumulates and returns in the wide dtype; matmul decomposes
// into them. addmm and baddbmm of dtypes that torch refuses elsewhere, and that XLA refuses much
// later, are refused here. Everything else goes to the kernel that they override.
//
// An out= call meets one of two dispatch keys: Functionalize, where XLA's tensors are wrapped in
// functional ones (the default), or XLA (XLA_DISABLE_FUNCTIONALIZATION=1). The kernels that
// override others are boxed (see kernels.h); the hot one, addmm, is called in boxed form anyway, by
// the functionalization fallback.

#include <ATen/ExpandUtils.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_copy_from_and_resize_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/full_like_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/view_copy_ops.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/dot_general.h"
#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using at::IntArrayRef;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

// ---- which calls

// Whether out_dtype= takes the pair, as torch's CUDA kernels do, or as s8 units do.
bool is_out_dtype_of(ScalarType operand, ScalarType out_dtype) {
  return (out_dtype == ScalarType::Float && is_half(operand)) ||
         (out_dtype == ScalarType::Int && operand == ScalarType::Char);
}

// Whether a result of dtype `to` is wider than its factors of dtype `from`: wide enough for what
// a product in `from` would round, or let wrap.
bool is_wider(ScalarType from, ScalarType to) {
  const bool integers = c10::isIntegralType(from, /*includeBool=*/false);
  if (!integers && !c10::isFloatingType(from)) return false;
  if (c10::isFloatingType(to)) return integers || c10::elementSize(to) > c10::elementSize(from);
  return integers && c10::isIntegralType(to, /*includeBool=*/false) &&
         c10::elementSize(to) > c10::elementSize(from);
}

// The XLA tensor in a functional tensor that torch_xla made; not in one that
// torch.func.functionalize (which has levels) or AOTAutograd (which holds fake tensors) made.
bool is_functional_xla(const Tensor& t) {
  if (!t.is_xla() || !at::functionalization::impl::isFunctionalTensor(t)) return false;
  const auto* wrapper = at::functionalization::impl::unsafeGetFunctionalWrapper(t);
  return wrapper->level() == -1 && is_bare_xla(wrapper->value());
}

// ---- the product

constexpr const char* kDotGeneralSchema =
    "dot_general(Tensor lhs, Tensor rhs, int[] lhs_contracting, int[] rhs_contracting, "
    "int[] lhs_batch, int[] rhs_batch, ScalarType preferred_element_type) -> Tensor";

constexpr const char* kWidenSchema = "widen(Tensor self, ScalarType dtype) -> Tensor";

// self in a wider dtype. Its gradient, unlike that of Tensor.to, stays in that dtype: the engine
// narrows it unless self is a leaf whose grad_dtype is the wide one.
Tensor widen(const Tensor& self, ScalarType dtype) {
  using Signature = Tensor(const Tensor&, ScalarType);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("castoff::widen", "").typed<Signature>();
  return op.call(self, dtype);
}

Tensor widen_kernel(const Tensor& self, ScalarType dtype) {
  return self.to(dtype, /*non_blocking=*/false, /*copy=*/true);
}

// The product in a wider dtype. XLA has none of integers in a float dtype: it is exact in an
// integer one, and then rounded once.
Tensor wide_dot(const Tensor& lhs, const Tensor& rhs, IntArrayRef lhs_contracting,
                IntArrayRef rhs_contracting, IntArrayRef batch, ScalarType dtype) {
  const bool rounds =
      c10::isIntegralType(lhs.scalar_type(), /*includeBool=*/false) && c10::isFloatingType(dtype);
  if (!rounds) return dot_general(lhs, rhs, lhs_contracting, rhs_contracting, batch, dtype);
  const ScalarType exact = lhs.element_size() < 4 ? ScalarType::Int : ScalarType::Long;
  return dot_general(lhs, rhs, lhs_contracting, rhs_contracting, batch, exact).to(dtype);
}

Tensor view_as(const Tensor& t, std::vector<c10::SymInt> sizes) {
  return at::_ops::view_copy::redispatch(kXla, t, sizes);
}

// input @ weight.T, with the leading dimensions of input folded into one, as elsewhere.
Tensor linear_product(const Tensor& input, const Tensor& weight, ScalarType dtype) {
  if (input.dim() <= 2) return wide_dot(input, weight, {input.dim() - 1}, {1}, {}, dtype);
  const IntArrayRef lead = input.sizes().slice(0, input.dim() - 1);
  std::vector<c10::SymInt> sizes(lead.begin(), lead.end());
  sizes.emplace_back(weight.size(0));
  const Tensor rows = view_as(input, {c10::multiply_integers(lead), input.size(-1)});
  return view_as(wide_dot(rows, weight, {1}, {1}, {}, dtype), std::move(sizes));
}

// As torch's CPU and CUDA kernels read alpha and beta: in the dtype that they compute in.
Scalar in_dtype_of(const Scalar& s, ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/false) ? Scalar(s.to<int64_t>())
                                                           : Scalar(s.to<double>());
}

Tensor times(const Tensor& t, const Scalar& factor) {
  if (factor.equal(1)) return t;
  Tensor number = c10::scalar_to_tensor(factor);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return at::_ops::mul_Tensor::call(t, number);
}

// Zeros that have a gradient in self, which is zero: what torch's own addmm gives for beta == 0.
Tensor zeros_of(const Tensor& self, ScalarType dtype) {
  const Tensor all = at::_ops::full_like::call(self, true, at::kBool, std::nullopt, std::nullopt,
                                               std::nullopt, std::nullopt);
  return at::_ops::masked_fill_Scalar::call(widen(self, dtype), all, 0);
}

// beta * self + alpha * product. With beta == 0, self is not looked at: its nans do not spread.
Tensor add_scaled(const Tensor& self, const Tensor& product, const Scalar& beta,
                  const Scalar& alpha) {
  const ScalarType dtype = product.scalar_type();
  if (!at::is_expandable_to(self.sizes(), product.sizes())) {
    // Raises what expand raises.
    at::_ops::expand::call(at::empty(self.sizes(), self.options().device(at::kMeta)),
                           c10::fromIntArrayRefSlow(product.sizes()), /*implicit=*/false);
  }
  const Tensor scaled = times(product, in_dtype_of(alpha, dtype));
  const Scalar factor = in_dtype_of(beta, dtype);
  if (factor.equal(0)) {
    const bool needs_gradient = at::GradMode::is_enabled() && self.requires_grad();
    return needs_gradient ? at::_ops::add_Tensor::call(scaled, zeros_of(self, dtype), 1) : scaled;
  }
  const Tensor wide = self.scalar_type() == dtype ? self : widen(self, dtype);
  return at::_ops::add_Tensor::call(scaled, times(wide, factor), 1);
}

// ---- the four operators, with the checks and messages of torch's CUDA kernels

void check_matrices(const char* first, const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() == 2, first, " must be a matrix, got ", a.dim(), "-D tensor");
  TORCH_CHECK(b.dim() == 2, "mat2 must be a matrix, got ", b.dim(), "-D tensor");
  TORCH_CHECK(a.size(1) == b.size(0), "mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x",
              a.size(1), " and ", b.size(0), "x", b.size(1), ")");
}

void check_batches(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(b.dim() == 3, "batch2 must be a 3D tensor");
  TORCH_CHECK(b.size(0) == a.size(0) && b.size(1) == a.size(2),
              "Expected size for first two dimensions of batch2 tensor to be: [", a.size(0), ", ",
              a.size(2), "] but got: [", b.size(0), ", ", b.size(1), "].");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "batch1 and batch2 must have the same dtype");
}

Tensor wide_mm(const Tensor& self, const Tensor& mat2, ScalarType dtype) {
  check_matrices("self", self, mat2);
  TORCH_CHECK(self.scalar_type() == mat2.scalar_type(), "input dtypes must be the same");
  if (dtype == self.scalar_type()) return at::_ops::mm::call(self, mat2);
  return wide_dot(self, mat2, {1}, {0}, {}, dtype);
}

Tensor wide_bmm(const Tensor& self, const Tensor& mat2, ScalarType dtype) {
  check_batches(self, mat2);
  if (dtype == self.scalar_type()) return at::_ops::bmm::call(self, mat2);
  return wide_dot(self, mat2, {2}, {1}, {0}, dtype);
}

// torch 2.9 wants self in the operands' dtype; from 2.10 on it may have the wide one as well.
Tensor wide_addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, ScalarType dtype,
                  const Scalar& beta, const Scalar& alpha) {
  TORCH_CHECK(self.scalar_type() == mat2.scalar_type() || self.scalar_type() == dtype,
              "self and mat2 must have the same dtype, but got ", self.scalar_type(), " and ",
              mat2.scalar_type());
  TORCH_CHECK(mat1.scalar_type() == mat2.scalar_type(),
              "mat1 and mat2 must have the same dtype, but got ", mat1.scalar_type(), " and ",
              mat2.scalar_type());
  check_matrices("mat1", mat1, mat2);
  if (dtype == mat1.scalar_type()) return at::_ops::addmm::call(self, mat1, mat2, beta, alpha);
  return add_scaled(self, wide_dot(mat1, mat2, {1}, {0}, {}, dtype), beta, alpha);
}

Tensor wide_baddbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2,
                    ScalarType dtype, const Scalar& beta, const Scalar& alpha) {
  check_batches(batch1, batch2);
  TORCH_CHECK(self.scalar_type() == batch1.scalar_type() || self.scalar_type() == dtype,
              "self dtype must match either out_dtype or batch1 dtype");
  if (dtype == batch1.scalar_type()) {
    return at::_ops::baddbmm::call(self, batch1, batch2, beta, alpha);
  }
  return add_scaled(self, wide_dot(batch1, batch2, {2}, {1}, {0}, dtype), beta, alpha);
}

// ---- out_dtype=, which torch has from 2.8 on

void check_out_dtype(ScalarType operand, ScalarType out_dtype) {
  TORCH_CHECK(out_dtype == operand || is_out_dtype_of(operand, out_dtype),
              "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
}

// Where a graph is to be recorded the product is made above the kernels of XLA, by operators that
// are differentiable themselves (castoff::dot_general and castoff::widen, see
// _matmul_out_dtype.py), so that it differentiates as often as one likes. So it is where a tensor
// subclass looks on (torch.compile and torch.export: fake tensors), as torch has no meta kernel for
// these overloads. Elsewhere the operator goes down to its XLA kernel as it is.
class OutDtypeAutograd final : public c10::OperatorKernel {
 public:
  explicit OutDtypeAutograd(const c10::KernelFunction& xla_kernel) : xla_kernel_(xla_kernel) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (is_to_be_decomposed(torch::jit::last(*stack, op.schema().arguments().size()))) {
      return xla_kernel_.callBoxed(op, keys, stack);
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }

 private:
  static bool is_to_be_decomposed(c10::ArrayRef<IValue> arguments) {
    bool decompose = false;
    for (const IValue& argument : arguments) {
      if (!argument.isTensor()) continue;
      const Tensor& t = argument.toTensor();
      TORCH_CHECK_NOT_IMPLEMENTED(!t._fw_grad(/*level=*/0).defined(),
                                  "matrix products with out_dtype= have no forward-mode derivative "
                                  "on XLA: expected operands without tangents. Convert the "
                                  "operands to out_dtype, or use reverse mode");
      decompose |=
          (at::GradMode::is_enabled() && t.requires_grad()) || t.key_set().has(DispatchKey::Python);
    }
    return decompose;
  }

  const c10::KernelFunction xla_kernel_;
};

// The kernel of an out_dtype= form: one of the four operators, behind the check of its dtypes.
// `first` is the place of the factor whose dtype counts.
class OutDtype final : public c10::OperatorKernel {
 public:
  OutDtype(const c10::KernelFunction& product, size_t first) : product_(product), first_(first) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    check_out_dtype(arguments[first_].toTensor().scalar_type(),
                    arguments[first_ + 2].toScalarType());
    product_.callBoxed(op, keys, stack);
  }

 private:
  const c10::KernelFunction product_;
  const size_t first_;
};

// ---- out=

enum class Product { kMm, kBmm, kAddmm, kBaddbmm, kMv, kDot, kLinear };

// An operator with out=, and where in its schema its arguments stand (-1: it has none). The addend
// is the self of addmm and baddbmm, or the bias of linear. out comes last.
struct OutOperator {
  const char* name;
  const char* overload;
  Product product;
  int addend, lhs, rhs, out_dtype, beta, alpha, out;
};

constexpr OutOperator kOutOperators[] = {
    {"aten::mm", "out", Product::kMm, -1, 0, 1, -1, -1, -1, 2},
    {"aten::mm", "dtype_out", Product::kMm, -1, 0, 1, 2, -1, -1, 3},
    {"aten::bmm", "out", Product::kBmm, -1, 0, 1, -1, -1, -1, 2},
    {"aten::bmm", "dtype_out", Product::kBmm, -1, 0, 1, 2, -1, -1, 3},
    {"aten::addmm", "out", Product::kAddmm, 0, 1, 2, -1, 3, 4, 5},
    {"aten::addmm", "dtype_out", Product::kAddmm, 0, 1, 2, 3, 4, 5, 6},
    {"aten::baddbmm", "out", Product::kBaddbmm, 0, 1, 2, -1, 3, 4, 5},
    {"aten::baddbmm", "dtype_out", Product::kBaddbmm, 0, 1, 2, 3, 4, 5, 6},
    {"aten::mv", "out", Product::kMv, -1, 0, 1, -1, -1, -1, 2},
    {"aten::dot", "out", Product::kDot, -1, 0, 1, -1, -1, -1, 2},
    {"aten::linear", "out", Product::kLinear, 2, 0, 1, -1, -1, -1, 3},
};

// The arguments of one call, in place on the stack.
class OutCall {
 public:
  OutCall(const OutOperator& op, const Stack& stack)
      : op_(op), arguments_(stack.data() + stack.size() - (op.out + 1)) {}

  const Tensor& out() const { return arguments_[op_.out].toTensor(); }
  const Tensor& lhs() const { return arguments_[op_.lhs].toTensor(); }
  const Tensor& rhs() const { return arguments_[op_.rhs].toTensor(); }
  bool has_addend() const { return op_.addend >= 0 && arguments_[op_.addend].isTensor(); }
  const Tensor& addend() const { return arguments_[op_.addend].toTensor(); }

  // All that most calls cost.
  bool may_be_ours() const { return op_.out_dtype >= 0 || out().dtype() != lhs().dtype(); }

  bool is_ours() const {
    if (op_.out_dtype >= 0) return true;  // stock has no kernel for these
    const ScalarType from = lhs().scalar_type(), to = out().scalar_type();
    if (!is_wider(from, to) || rhs().scalar_type() != from) return false;
    if (has_addend() && addend().scalar_type() != from && addend().scalar_type() != to)
      return false;
    switch (op_.product) {  // there is no out_dtype= form of these to check the sizes
      case Product::kMv:
        return lhs().dim() == 2 && rhs().dim() == 1 && lhs().size(1) == rhs().size(0);
      case Product::kDot:
        return lhs().dim() == 1 && rhs().dim() == 1 && lhs().size(0) == rhs().size(0);
      case Product::kLinear:
        return lhs().dim() >= 1 && rhs().dim() == 2 && lhs().size(-1) == rhs().size(1) &&
               (!has_addend() || at::is_expandable_to(addend().sizes(), {rhs().size(0)}));
      default:
        return true;
    }
  }

  template <class Predicate>
  bool all_tensors(Predicate&& is) const {
    return is(out()) && is(lhs()) && is(rhs()) && (!has_addend() || is(addend()));
  }

  // The result, of bare tensors that `bare` makes of the arguments.
  template <class Bare>
  Tensor evaluate(Bare&& bare) const {
    const ScalarType dtype =
        op_.out_dtype < 0 ? out().scalar_type() : arguments_[op_.out_dtype].toScalarType();
    TORCH_CHECK(dtype == out().scalar_type(),
                "out_dtype must be the same as the dtype of the provided out tensor");
    if (op_.out_dtype >= 0) check_out_dtype(lhs().scalar_type(), dtype);
    const Tensor a = bare(lhs()), b = bare(rhs());
    const Tensor c = has_addend() ? bare(addend()) : Tensor();
    switch (op_.product) {
      case Product::kMm:
        return wide_mm(a, b, dtype);
      case Product::kBmm:
        return wide_bmm(a, b, dtype);
      case Product::kAddmm:
        return wide_addmm(c, a, b, dtype, beta(), alpha());
      case Product::kBaddbmm:
        return wide_baddbmm(c, a, b, dtype, beta(), alpha());
      case Product::kMv:
        return wide_dot(a, b, {1}, {0}, {}, dtype);
      case Product::kDot:
        return wide_dot(a, b, {0}, {0}, {}, dtype);
      case Product::kLinear: {
        const Tensor product = linear_product(a, b, dtype);
        return c.defined() ? add_scaled(c, product, 1, 1) : product;
      }
    }
    TORCH_INTERNAL_ASSERT(false);
  }

 private:
  Scalar beta() const { return arguments_[op_.beta].toScalar(); }
  Scalar alpha() const { return arguments_[op_.alpha].toScalar(); }

  const OutOperator& op_;
  const IValue* arguments_;
};

void return_out(const OutCall& call, const OutOperator& op, Stack* stack) {
  Tensor out = call.out();
  torch::jit::drop(*stack, op.out + 1);
  stack->emplace_back(std::move(out));
}

// ---- addmm and baddbmm of dtypes that do not go together

// Refuses what both torch's CPU kernels and XLA's compiler refuse. Factors of two dtypes, which
// torch_xla can compile as long as their sum with self needs no conversion, stay as they are.
template <bool batched>
void check_dtypes(const Tensor& self, const Tensor& a, const Tensor& b) {
  if (C10_LIKELY(self.dtype() == a.dtype() && a.dtype() == b.dtype())) return;
  const ScalarType s = held_dtype(self), x = held_dtype(a), y = held_dtype(b);
  if (s == x && x == y) return;
  const ScalarType product = c10::promoteTypes(x, y);
  const bool one_of_them = product == x || product == y;
  if (batched ? s == x && (s == product || !one_of_them)
              : s == product || (!one_of_them && (s == x || s == y))) {
    return;
  }
  if (batched) {
    TORCH_CHECK(s == x, "Input dtypes must be the same, got: input ", self.dtype(),
                ", batch1: ", a.dtype(), ", batch2: ", b.dtype());
    TORCH_CHECK(false, "expected scalar type ", x, " but found ", y);
  }
  TORCH_CHECK(s == y, "self and mat2 must have the same dtype, but got ", s, " and ", y);
  TORCH_CHECK(false, "mat1 and mat2 must have the same dtype, but got ", x, " and ", y);
}

// ---- kernels that override another

class FunctionalOut final : public OverrideKernel {
 public:
  FunctionalOut(const OperatorHandle& op, DispatchKey key, const OutOperator& which)
      : OverrideKernel(op, key), op_(which) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const OutCall call(op_, *stack);
    if (C10_LIKELY(!call.may_be_ours()) || !call.all_tensors(is_functional_xla) ||
        !call.is_ours()) {
      return call_overridden(op, keys, stack);
    }
    namespace functional = at::functionalization::impl;
    const Tensor& out = call.out();
    Tensor value;
    {
      at::AutoDispatchSkipFunctionalize below_functionalize;
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      value = call.evaluate([](const Tensor& t) {
        functional::sync(t);
        return functional::from_functional_tensor(t);
      });
    }
    functional::propagate_xla_data(out, value);
    functional::replace_(out, value);
    functional::commit_update(out);
    functional::sync(out);
    return_out(call, op_, stack);
  }

 private:
  const OutOperator& op_;
};

class XlaOut final : public OverrideKernel {
 public:
  XlaOut(const OperatorHandle& op, DispatchKey key, const OutOperator& which)
      : OverrideKernel(op, key), op_(which) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const OutCall call(op_, *stack);
    if (C10_LIKELY(!call.may_be_ours()) || !call.all_tensors(is_bare_xla) || !call.is_ours()) {
      if (op_.product == Product::kAddmm) {
        check_dtypes<false>(call.addend(), call.lhs(), call.rhs());
      } else if (op_.product == Product::kBaddbmm) {
        check_dtypes<true>(call.addend(), call.lhs(), call.rhs());
      }
      return call_overridden(op, keys, stack);
    }
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Tensor value = call.evaluate([](const Tensor& t) { return t; });
    at::_ops::_copy_from_and_resize::call(value, call.out());
    return_out(call, op_, stack);
  }

 private:
  const OutOperator& op_;
};

// An out= form that autograd cannot differentiate and, having no kernel for it, would let through.
class RefuseGrad final : public c10::OperatorKernel {
 public:
  explicit RefuseGrad(const OutOperator& op) : op_(op) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const OutCall call(op_, *stack);
    const auto is_constant = [](const Tensor& t) { return !t.requires_grad(); };
    TORCH_CHECK(!at::GradMode::is_enabled() || call.all_tensors(is_constant), op_.name + 6,
                "(): functions with out=... arguments don't support automatic differentiation, "
                "but one of the arguments requires grad.");
    const at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }

 private:
  const OutOperator& op_;
};

// self, a, b, beta, alpha
template <bool batched>
void with_dtypes_checked(Call& call) {
  check_dtypes<batched>(call.tensor(0), call.tensor(1), call.tensor(2));
  call.proceed();
}

// ---- registration

bool exists(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchema({name, overload}).has_value();
}

template <class Function>
c10::KernelFunction kernel_of(Function* function) {
  return c10::KernelFunction::makeFromUnboxedRuntimeFunction(function);
}

// `product` is one of the four operators, `first` the place of its first factor.
void register_out_dtype(torch::Library& xla, torch::Library& autograd, const char* name,
                        const c10::KernelFunction& product, size_t first) {
  using c10::KernelFunction;
  using torch::CppFunction;
  const auto kernel = [&] { return std::make_unique<OutDtype>(product, first); };
  xla.impl(name, CppFunction::makeFromBoxedFunctor(kernel()));
  autograd.impl(name, CppFunction::makeFromBoxedFunctor(std::make_unique<OutDtypeAutograd>(
                          KernelFunction::makeFromBoxedFunctor(kernel()))));
}

void install() {
  torch::Library& own = library(torch::Library::FRAGMENT, "castoff", std::nullopt);
  own.def(kDotGeneralSchema);
  own.def(kWidenSchema);
  own.impl("widen", torch::dispatch(DispatchKey::CompositeExplicitAutograd, widen_kernel));

  torch::Library& functional = library(torch::Library::IMPL, "aten", DispatchKey::Functionalize);
  torch::Library& xla = library(torch::Library::IMPL, "aten", DispatchKey::XLA);
  torch::Library& autograd = library(torch::Library::IMPL, "aten", DispatchKey::AutogradXLA);
  if (exists("aten::mm", "dtype")) {
    register_out_dtype(xla, autograd, "mm.dtype", kernel_of(wide_mm), 0);
    register_out_dtype(xla, autograd, "bmm.dtype", kernel_of(wide_bmm), 0);
    register_out_dtype(xla, autograd, "addmm.dtype", kernel_of(wide_addmm), 1);
    register_out_dtype(xla, autograd, "baddbmm.dtype", kernel_of(wide_baddbmm), 1);
  }
  for (const OutOperator& op : kOutOperators) {
    if (!exists(op.name, op.overload)) continue;
    override_kernel<FunctionalOut>(functional, DispatchKey::Functionalize, op.name, op.overload,
                                   op);
    override_kernel<XlaOut>(xla, DispatchKey::XLA, op.name, op.overload, op);
    if (op.out_dtype >= 0) {
      const std::string name = std::string(op.name) + "." + op.overload;
      autograd.impl(name.c_str(),
                    torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RefuseGrad>(op)));
    }
  }
  remedy(xla, with_dtypes_checked<false>, "addmm addmm_");
  remedy(xla, with_dtypes_checked<true>, "baddbmm baddbmm_");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_matmul_out_dtype_install)
