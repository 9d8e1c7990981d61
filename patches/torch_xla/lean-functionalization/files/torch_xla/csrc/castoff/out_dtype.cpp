// `out=` of a lower category than the result, such as int for float. Functionalization computes the
// functional form, and casts what that returns to the dtype of `out`.

#include "torch_xla/csrc/castoff/out_dtype.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <string>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

// A factor of another operand, which the result's dtype does not depend on.
bool is_factor(const std::string& name) {
  return name == "alpha" || name == "beta" || name == "value";
}

// The dtype that torch promotes the operands to, which are all arguments but the last.
ScalarType promoted_dtype(Call& call) {
  const auto& arguments = call.op().schema().arguments();
  at::native::ResultTypeState state{};
  for (size_t i = 0; i + 1 < call.size(); ++i) {
    if (is_tensor(call[i])) {
      state = at::native::update_result_type_state(call.tensor(i), state);
    } else if (call[i].isScalar() && !is_factor(arguments[i].name())) {
      state = at::native::update_result_type_state(call[i].toScalar(), state);
    }
  }
  return at::native::result_type(state);
}

enum class Result { kPromoted, kFloating };

// …, out
template <Result kind>
void check_out(Call& call) {
  const at::Tensor& out = call.tensor(call.size() - 1);
  if (C10_LIKELY(!out.is_xla() || c10::isComplexType(out.scalar_type()))) return call.proceed();
  ScalarType result = promoted_dtype(call);
  if (kind == Result::kFloating && c10::isIntegralType(result, /*includeBool=*/true)) {
    result = c10::get_default_dtype_as_scalartype();
  }
  TORCH_CHECK(c10::canCast(result, out.scalar_type()), "result type ", result,
              " can't be cast to the desired output type ", out.scalar_type());
  call.proceed();
}

}  // namespace

void refuse_results_for_out(torch::Library& functionalize) {
  constexpr auto kKey = c10::DispatchKey::Functionalize;
  remedy(functionalize, check_out<Result::kPromoted>,
         "add.out addcdiv.out addcmul.out addmm.out addmv.out baddbmm.out bmm.out ceil.out "
         "clamp.Tensor_out clamp.out clamp_max.Tensor_out clamp_max.out clamp_min.Tensor_out "
         "clamp_min.out dot.out floor.out floor_divide.out fmax.out fmin.out fmod.Scalar_out "
         "fmod.Tensor_out frac.out lerp.Scalar_out lerp.Tensor_out maximum.out minimum.out mm.out "
         "mul.out mv.out neg.out pow.Tensor_Scalar_out pow.Tensor_Tensor_out "
         "remainder.Scalar_out remainder.Tensor_out round.out sub.out trunc.out vdot.out",
         kKey);
  remedy(functionalize, check_out<Result::kFloating>,
         "acos.out acosh.out asin.out asinh.out atan.out atan2.out atanh.out cos.out cosh.out "
         "div.out erf.out erfc.out exp.out expm1.out log.out log10.out log1p.out log2.out "
         "reciprocal.out rsqrt.out sigmoid.out sin.out sinh.out sqrt.out tan.out tanh.out",
         kKey);
}

}  // namespace castoff
