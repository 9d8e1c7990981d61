// Functionalization's kernels of in-place operators: `in_place<mul__Tensor, mul_Tensor>` puts one
// in the place of torch's, which answers every call that this one does not.

#pragma once

#include <ATen/ExpandUtils.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/result_type_ops.h>
#include <c10/core/DefaultDtype.h>

#include <optional>
#include <string>

#include "torch_xla/csrc/castoff/kernels.h"
#include "torch_xla/csrc/castoff/overlap.h"

namespace castoff {

namespace functionalization = at::functionalization::impl;

// What an operator makes of dtypes. The first four promote them, as torch.result_type does, and
// cannot write a result of a higher category, such as float to int; those from kOther on check
// dtypes and shapes themselves.
enum class Kind {
  kArithmetic,  // of integers, the result is an integer
  kDivision,    // of integers, the result is a float
  kBitwise,     // of integers and bools
  kPromoting,
  kComparison,  // the result is bool, which every dtype takes
  kOther,
  // The result has self's dtype, and the CPU writes to expanded tensors, too.
  kKeeping,
  kMatrix,  // the same of two dimensions or more
};

// A tensor of torch_xla's as functionalization alone has wrapped it; null: anything else.
inline at::FunctionalTensorWrapper* xla_wrapper(const at::Tensor& t) {
  if (!t.is_xla() || !functionalization::isFunctionalTensor(t)) return nullptr;
  auto* wrapper = functionalization::unsafeGetFunctionalWrapper(t);
  if (wrapper->has_symbolic_sizes_strides() || !is_bare_xla(wrapper->value())) return nullptr;
  return wrapper;
}

inline bool is_number(at::ScalarType dtype) {
  return at::isFloatingType(dtype) ||
         (at::isIntegralType(dtype, /*includeBool=*/false) && dtype != at::ScalarType::UInt16 &&
          dtype != at::ScalarType::UInt32 && dtype != at::ScalarType::UInt64);
}

// Whether the result of operands of self's dtype has it, too.
inline bool keeps_dtype(Kind kind, const at::Tensor& self) {
  const at::ScalarType dtype = self.scalar_type();
  const bool is_bool = dtype == at::ScalarType::Bool;
  switch (kind) {
    case Kind::kArithmetic:
      return is_number(dtype);
    case Kind::kBitwise:
      return is_bool || (is_number(dtype) && !at::isFloatingType(dtype));
    case Kind::kComparison:
    case Kind::kKeeping:
      return is_bool || is_number(dtype);
    case Kind::kMatrix:
      return self.dim() >= 2 && (is_bool || is_number(dtype));
    default:
      return at::isFloatingType(dtype);
  }
}

// ---- results that cannot be written

inline int category(at::ScalarType dtype) {
  if (at::isComplexType(dtype)) return 3;
  if (at::isFloatingType(dtype)) return 2;
  return dtype == at::ScalarType::Bool ? 0 : 1;
}

inline void refuse_dtype(const at::Tensor& self, at::ScalarType result) {
  TORCH_CHECK(category(result) <= category(self.scalar_type()), "result type ", result,
              " can't be cast to the desired output type ", self.scalar_type());
}

inline void refuse_result(Kind kind, const at::Tensor& self, const at::Tensor& other) {
  if (!other.defined() || kind >= Kind::kOther) return;
  const auto sizes = at::infer_size_dimvector(self.sizes(), other.sizes());
  TORCH_CHECK(self.sizes() == c10::IntArrayRef(sizes), "output with shape ", self.sizes(),
              " doesn't match the broadcast shape ", c10::IntArrayRef(sizes));
  if (kind == Kind::kComparison) return;
  refuse_dtype(self, at::_ops::result_type_Tensor::call(self, other));
}

// A quotient of integers.
inline void refuse_quotient(const at::Tensor& self) {
  if (category(self.scalar_type()) < 2) {
    refuse_dtype(self, c10::get_default_dtype_as_scalartype());
  }
}

inline void refuse_result(Kind kind, const at::Tensor& self,
                          const std::optional<at::Tensor>& other) {
  if (other) refuse_result(kind, self, *other);
}

template <class Other>
void refuse_result(Kind, const at::Tensor&, const Other&) {}

// ---- whether the result of an operator of `self` and this argument has self's shape and dtype

inline bool broadcasts_to(c10::IntArrayRef sizes, c10::IntArrayRef result) {
  if (sizes.size() > result.size()) return false;
  const size_t more = result.size() - sizes.size();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != result[i + more] && sizes[i] != 1) return false;
  }
  return true;
}

inline bool fits(Kind kind, const at::Tensor& self, const at::Tensor& other) {
  if (!other.defined()) return false;
  const auto& impl = *other.unsafeGetTensorImpl();
  if (impl.is_wrapped_number()) {  // a number of Python's
    return !functionalization::isFunctionalTensor(other) && other.is_cpu() &&
           (at::isIntegralType(other.scalar_type(), /*includeBool=*/false) ||
            (at::isFloatingType(other.scalar_type()) && at::isFloatingType(self.scalar_type())));
  }
  const bool is_mask = kind == Kind::kKeeping && other.scalar_type() == at::ScalarType::Bool;
  return (is_mask || other.scalar_type() == self.scalar_type()) && xla_wrapper(other) != nullptr &&
         broadcasts_to(other.sizes(), self.sizes());
}

inline bool fits(Kind, const at::Tensor& self, const at::Scalar& number) {
  return number.isIntegral(/*includeBool=*/self.scalar_type() == at::ScalarType::Bool) ||
         (number.isFloatingPoint() && at::isFloatingType(self.scalar_type()));
}

// An option that is not given fits, but clamp needs one of its bounds.
inline bool is_none(const std::optional<at::Tensor>& bound) {
  return !bound.has_value();
}

inline bool is_none(const std::optional<at::Scalar>& bound) {
  return !bound.has_value();
}

template <class Other>
bool is_none(const Other&) {
  return false;
}

// No argument at all is none that is missing.
template <class... Arguments>
bool are_none(const Arguments&... arguments) {
  return sizeof...(Arguments) != 0 && (is_none(arguments) && ...);
}

template <class Option>
bool fits(Kind kind, const at::Tensor& self, const std::optional<Option>& option) {
  return !option || fits(kind, self, *option);
}

// A string, an axis or the like.
template <class Other>
bool fits(Kind, const at::Tensor&, const Other&) {
  return true;
}

// ---- what the functional form gets

inline at::Tensor unwrapped(const at::Tensor& t) {
  if (!functionalization::isFunctionalTensor(t)) return t;
  functionalization::sync(t);
  return functionalization::from_functional_tensor(t);
}

inline std::optional<at::Tensor> unwrapped(const std::optional<at::Tensor>& t) {
  return t ? std::optional(unwrapped(*t)) : t;
}

template <class Other>
const Other& unwrapped(const Other& other) {
  return other;
}

// ---- the kernel

// The calls of an elementwise operator whose result has self's shape and dtype.
template <Kind kind>
struct Elementwise {
  static constexpr bool kRefusesOverlap = kind < Kind::kKeeping;
  static constexpr bool kCasts = kind == Kind::kComparison;

  template <class... Arguments>
  static bool fit(const at::Tensor& self, const Arguments&... arguments) {
    return keeps_dtype(kind, self) && (fits(kind, self, arguments) && ...) &&
           !are_none(arguments...);
  }

  template <class... Arguments>
  static void refuse(const at::Tensor& self, const Arguments&... arguments) {
    (refuse_result(kind, self, arguments), ...);
    if (kind == Kind::kDivision) refuse_quotient(self);
  }
};

template <class InPlace, class Functional, class Calls, class Schema>
class InPlaceKernel;

template <class InPlace, class Functional, class Calls, class... Arguments>
class InPlaceKernel<InPlace, Functional, Calls, at::Tensor&(at::Tensor&, Arguments...)> {
 public:
  static at::Tensor& call(c10::DispatchKeySet keys, at::Tensor& self, Arguments... arguments) {
    const auto* wrapper = xla_wrapper(self);
    if (wrapper == nullptr) return Stock::call(keys, self, arguments...);
    if (Calls::kRefusesOverlap) refuse_overlap(*wrapper);
    if (!Calls::fit(self, arguments...)) {
      Calls::refuse(self, arguments...);
      return Stock::call(keys, self, arguments...);
    }
    const at::Tensor before = unwrapped(self);
    const at::Tensor after = [&] {
      const at::AutoDispatchSkipFunctionalize no_wrappers;
      return Functional::call(before, unwrapped(arguments)...);
    }();
    const bool is_of_dtype = Calls::kCasts || after.scalar_type() == self.scalar_type();
    if (!is_of_dtype || after.sizes() != self.sizes()) {
      return Stock::call(keys, self, arguments...);
    }
    functionalization::replace_(self, after);
    functionalization::commit_update(self);
    functionalization::sync(self);
    functionalization::propagate_xla_data_direct(before,
                                                 functionalization::from_functional_tensor(self));
    return self;
  }

  static void put_in_place(torch::Library& lib) { Stock::by(lib, &call); }

 private:
  using Stock = Overridden<InPlaceKernel, InPlace, c10::DispatchKey::Functionalize>;
};

template <class InPlace, class Functional, class Calls>
void in_place_for(torch::Library& lib) {
  InPlaceKernel<InPlace, Functional, Calls, typename InPlace::schema>::put_in_place(lib);
}

template <class InPlace, class Functional, Kind kind = Kind::kOther>
void in_place(torch::Library& lib) {
  in_place_for<InPlace, Functional, Elementwise<kind>>(lib);
}

}  // namespace castoff
