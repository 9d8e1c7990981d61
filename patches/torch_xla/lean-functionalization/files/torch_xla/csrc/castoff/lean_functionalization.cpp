// In-place operators of XLA tensors without a second run on meta tensors.
//
// Functionalization runs each in-place operator on meta tensors first, to find what its functional
// form accepts and it does not: a result of another shape or dtype. Here a comparison of shapes and
// dtypes answers that for elementwise operators, and those that write by an index. What it does not
// accept goes to torch's kernel, which runs the operator on meta tensors, as ever, and refuses it
// or not.
//
// And set_, after which torch's kernel lets nothing write to the memory that a tensor had.

#include <ATen/core/Tensor.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/acos_ops.h>
#include <ATen/ops/acosh_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/asin_ops.h>
#include <ATen/ops/asinh_ops.h>
#include <ATen/ops/atan2_ops.h>
#include <ATen/ops/atan_ops.h>
#include <ATen/ops/atanh_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bitwise_and_ops.h>
#include <ATen/ops/bitwise_left_shift_ops.h>
#include <ATen/ops/bitwise_not_ops.h>
#include <ATen/ops/bitwise_or_ops.h>
#include <ATen/ops/bitwise_right_shift_ops.h>
#include <ATen/ops/bitwise_xor_ops.h>
#include <ATen/ops/ceil_ops.h>
#include <ATen/ops/celu_ops.h>
#include <ATen/ops/clamp_max_ops.h>
#include <ATen/ops/clamp_min_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/copysign_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/cosh_ops.h>
#include <ATen/ops/cumprod_ops.h>
#include <ATen/ops/cumsum_ops.h>
#include <ATen/ops/deg2rad_ops.h>
#include <ATen/ops/digamma_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/elu_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/erf_ops.h>
#include <ATen/ops/erfc_ops.h>
#include <ATen/ops/erfinv_ops.h>
#include <ATen/ops/exp2_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expm1_ops.h>
#include <ATen/ops/exponential_ops.h>
#include <ATen/ops/floor_divide_ops.h>
#include <ATen/ops/floor_ops.h>
#include <ATen/ops/fmod_ops.h>
#include <ATen/ops/frac_ops.h>
#include <ATen/ops/gcd_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/hardsigmoid_ops.h>
#include <ATen/ops/hardswish_ops.h>
#include <ATen/ops/hardtanh_ops.h>
#include <ATen/ops/heaviside_ops.h>
#include <ATen/ops/hypot_ops.h>
#include <ATen/ops/i0_ops.h>
#include <ATen/ops/igamma_ops.h>
#include <ATen/ops/igammac_ops.h>
#include <ATen/ops/index_add_ops.h>
#include <ATen/ops/index_copy_ops.h>
#include <ATen/ops/index_fill_ops.h>
#include <ATen/ops/lcm_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/leaky_relu_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/lgamma_ops.h>
#include <ATen/ops/log10_ops.h>
#include <ATen/ops/log1p_ops.h>
#include <ATen/ops/log2_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/logical_and_ops.h>
#include <ATen/ops/logical_not_ops.h>
#include <ATen/ops/logical_or_ops.h>
#include <ATen/ops/logical_xor_ops.h>
#include <ATen/ops/logit_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/mish_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/nan_to_num_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/nextafter_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/rad2deg_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/remainder_ops.h>
#include <ATen/ops/round_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/scatter_add_ops.h>
#include <ATen/ops/scatter_ops.h>
#include <ATen/ops/sgn_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/sign_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/sinc_ops.h>
#include <ATen/ops/sinh_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/tan_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_ops.h>
#include <ATen/ops/tril_ops.h>
#include <ATen/ops/triu_ops.h>
#include <ATen/ops/trunc_ops.h>
#include <ATen/ops/xlogy_ops.h>

#include "torch_xla/csrc/castoff/in_place.h"
#include "torch_xla/csrc/castoff/in_place_by_index.h"
#include "torch_xla/csrc/castoff/out_dtype.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/without_gradients.h"

namespace castoff {
namespace {

namespace ops = at::_ops;

// self, source. As `self.data = source` has it: self becomes an alias of source, and what shares
// the memory that self had goes on to share it, source itself among it.
void set(Call& call) {
  const Tensor self = call.tensor(0), source = call.tensor(1);
  if (xla_wrapper(self) == nullptr || xla_wrapper(source) == nullptr ||
      self.scalar_type() != source.scalar_type()) {
    return call.proceed();
  }
  if (!self.is_same(source)) {
    self.unsafeGetTensorImpl()->shallow_copy_from(source.getIntrusivePtr());
  }
  call.answer(self);
}

void install() {
  torch::Library& lib = library(torch::Library::IMPL, "aten", c10::DispatchKey::Functionalize);
  in_place<ops::add__Tensor, ops::add_Tensor, Kind::kArithmetic>(lib);
  in_place<ops::sub__Tensor, ops::sub_Tensor, Kind::kArithmetic>(lib);
  in_place<ops::mul__Tensor, ops::mul_Tensor, Kind::kArithmetic>(lib);
  in_place<ops::div__Tensor, ops::div_Tensor, Kind::kDivision>(lib);
  in_place<ops::add__Scalar, ops::add_Scalar, Kind::kArithmetic>(lib);
  in_place<ops::sub__Scalar, ops::sub_Scalar, Kind::kArithmetic>(lib);
  in_place<ops::mul__Scalar, ops::mul_Scalar, Kind::kArithmetic>(lib);
  in_place<ops::div__Scalar, ops::div_Scalar, Kind::kDivision>(lib);
  in_place<ops::addcmul_, ops::addcmul, Kind::kArithmetic>(lib);
  in_place<ops::addcdiv_, ops::addcdiv, Kind::kPromoting>(lib);
  in_place<ops::pow__Scalar, ops::pow_Tensor_Scalar, Kind::kArithmetic>(lib);
  in_place<ops::pow__Tensor, ops::pow_Tensor_Tensor, Kind::kPromoting>(lib);
  in_place<ops::remainder__Tensor, ops::remainder_Tensor, Kind::kArithmetic>(lib);
  in_place<ops::remainder__Scalar, ops::remainder_Scalar, Kind::kArithmetic>(lib);
  in_place<ops::fmod__Tensor, ops::fmod_Tensor, Kind::kArithmetic>(lib);
  in_place<ops::fmod__Scalar, ops::fmod_Scalar, Kind::kArithmetic>(lib);
  in_place<ops::floor_divide__Tensor, ops::floor_divide, Kind::kArithmetic>(lib);
  in_place<ops::div__Tensor_mode, ops::div_Tensor_mode, Kind::kArithmetic>(lib);
  in_place<ops::div__Scalar_mode, ops::div_Scalar_mode, Kind::kArithmetic>(lib);
  in_place<ops::atan2_, ops::atan2, Kind::kDivision>(lib);
  in_place<ops::bitwise_and__Tensor, ops::bitwise_and_Tensor, Kind::kBitwise>(lib);
  in_place<ops::bitwise_or__Tensor, ops::bitwise_or_Tensor, Kind::kBitwise>(lib);
  in_place<ops::bitwise_xor__Tensor, ops::bitwise_xor_Tensor, Kind::kBitwise>(lib);
  in_place<ops::bitwise_not_, ops::bitwise_not, Kind::kBitwise>(lib);
  in_place<ops::clamp__Tensor, ops::clamp_Tensor, Kind::kArithmetic>(lib);
  in_place<ops::clamp_min__Tensor, ops::clamp_min_Tensor, Kind::kArithmetic>(lib);
  in_place<ops::clamp_max__Tensor, ops::clamp_max_Tensor, Kind::kArithmetic>(lib);
  in_place<ops::masked_fill__Scalar, ops::masked_fill_Scalar, Kind::kKeeping>(lib);
  in_place<ops::threshold_, ops::threshold, Kind::kKeeping>(lib);
  in_place<ops::tril_, ops::tril, Kind::kMatrix>(lib);
  in_place<ops::triu_, ops::triu, Kind::kMatrix>(lib);
  in_place<ops::abs_, ops::abs, Kind::kArithmetic>(lib);
  in_place<ops::acos_, ops::acos>(lib);
  in_place<ops::asin_, ops::asin>(lib);
  in_place<ops::atan_, ops::atan>(lib);
  in_place<ops::ceil_, ops::ceil>(lib);
  in_place<ops::celu_, ops::celu>(lib);
  in_place<ops::clamp_, ops::clamp, Kind::kArithmetic>(lib);
  in_place<ops::clamp_max_, ops::clamp_max, Kind::kArithmetic>(lib);
  in_place<ops::clamp_min_, ops::clamp_min, Kind::kArithmetic>(lib);
  in_place<ops::cos_, ops::cos>(lib);
  in_place<ops::cosh_, ops::cosh>(lib);
  in_place<ops::elu_, ops::elu>(lib);
  in_place<ops::erf_, ops::erf>(lib);
  in_place<ops::erfc_, ops::erfc>(lib);
  in_place<ops::erfinv_, ops::erfinv>(lib);
  in_place<ops::exp_, ops::exp>(lib);
  in_place<ops::exp2_, ops::exp2>(lib);
  in_place<ops::expm1_, ops::expm1>(lib);
  in_place<ops::exponential_, ops::exponential>(lib);
  in_place<ops::floor_, ops::floor>(lib);
  in_place<ops::frac_, ops::frac>(lib);
  in_place<ops::gelu_, ops::gelu>(lib);
  in_place<ops::hardsigmoid_, ops::hardsigmoid>(lib);
  in_place<ops::hardswish_, ops::hardswish>(lib);
  in_place<ops::hardtanh_, ops::hardtanh>(lib);
  in_place<ops::leaky_relu_, ops::leaky_relu>(lib);
  in_place<ops::lerp__Scalar, ops::lerp_Scalar>(lib);
  in_place<ops::lerp__Tensor, ops::lerp_Tensor>(lib);
  in_place<ops::log_, ops::log>(lib);
  in_place<ops::log10_, ops::log10>(lib);
  in_place<ops::log1p_, ops::log1p>(lib);
  in_place<ops::log2_, ops::log2>(lib);
  in_place<ops::mish_, ops::mish>(lib);
  in_place<ops::nan_to_num_, ops::nan_to_num>(lib);
  in_place<ops::neg_, ops::neg, Kind::kArithmetic>(lib);
  in_place<ops::reciprocal_, ops::reciprocal>(lib);
  in_place<ops::relu_, ops::relu>(lib);
  in_place<ops::round_, ops::round>(lib);
  in_place<ops::rsqrt_, ops::rsqrt>(lib);
  in_place<ops::sigmoid_, ops::sigmoid>(lib);
  in_place<ops::sign_, ops::sign>(lib);
  in_place<ops::silu_, ops::silu>(lib);
  in_place<ops::sin_, ops::sin>(lib);
  in_place<ops::sinh_, ops::sinh>(lib);
  in_place<ops::sqrt_, ops::sqrt>(lib);
  in_place<ops::tan_, ops::tan>(lib);
  in_place<ops::tanh_, ops::tanh>(lib);
  in_place<ops::trunc_, ops::trunc>(lib);
  in_place<ops::eq__Scalar, ops::eq_Scalar, Kind::kComparison>(lib);
  in_place<ops::eq__Tensor, ops::eq_Tensor, Kind::kComparison>(lib);
  in_place<ops::ne__Scalar, ops::ne_Scalar, Kind::kComparison>(lib);
  in_place<ops::ne__Tensor, ops::ne_Tensor, Kind::kComparison>(lib);
  in_place<ops::lt__Scalar, ops::lt_Scalar, Kind::kComparison>(lib);
  in_place<ops::lt__Tensor, ops::lt_Tensor, Kind::kComparison>(lib);
  in_place<ops::le__Scalar, ops::le_Scalar, Kind::kComparison>(lib);
  in_place<ops::le__Tensor, ops::le_Tensor, Kind::kComparison>(lib);
  in_place<ops::gt__Scalar, ops::gt_Scalar, Kind::kComparison>(lib);
  in_place<ops::gt__Tensor, ops::gt_Tensor, Kind::kComparison>(lib);
  in_place<ops::ge__Scalar, ops::ge_Scalar, Kind::kComparison>(lib);
  in_place<ops::ge__Tensor, ops::ge_Tensor, Kind::kComparison>(lib);
  in_place<ops::logical_and_, ops::logical_and, Kind::kComparison>(lib);
  in_place<ops::logical_or_, ops::logical_or, Kind::kComparison>(lib);
  in_place<ops::logical_xor_, ops::logical_xor, Kind::kComparison>(lib);
  in_place<ops::logical_not_, ops::logical_not, Kind::kComparison>(lib);
  in_place<ops::bitwise_left_shift__Tensor, ops::bitwise_left_shift_Tensor, Kind::kBitwise>(lib);
  in_place<ops::bitwise_left_shift__Tensor_Scalar, ops::bitwise_left_shift_Tensor_Scalar,
           Kind::kBitwise>(lib);
  in_place<ops::bitwise_right_shift__Tensor, ops::bitwise_right_shift_Tensor, Kind::kBitwise>(lib);
  in_place<ops::bitwise_right_shift__Tensor_Scalar, ops::bitwise_right_shift_Tensor_Scalar,
           Kind::kBitwise>(lib);
  in_place<ops::gcd_, ops::gcd, Kind::kBitwise>(lib);
  in_place<ops::lcm_, ops::lcm, Kind::kBitwise>(lib);
  in_place<ops::cumsum_, ops::cumsum, Kind::kArithmetic>(lib);
  in_place<ops::cumprod_, ops::cumprod, Kind::kArithmetic>(lib);
  in_place<ops::sgn_, ops::sgn, Kind::kArithmetic>(lib);
  in_place<ops::copysign__Tensor, ops::copysign_Tensor, Kind::kDivision>(lib);
  in_place<ops::copysign__Scalar, ops::copysign_Scalar, Kind::kDivision>(lib);
  in_place<ops::xlogy__Tensor, ops::xlogy_Tensor, Kind::kDivision>(lib);
  in_place<ops::igamma_, ops::igamma, Kind::kPromoting>(lib);
  in_place<ops::igammac_, ops::igammac, Kind::kPromoting>(lib);
  in_place<ops::nextafter_, ops::nextafter, Kind::kPromoting>(lib);
  in_place<ops::heaviside_, ops::heaviside, Kind::kArithmetic>(lib);
  in_place<ops::hypot_, ops::hypot, Kind::kPromoting>(lib);
  in_place<ops::acosh_, ops::acosh>(lib);
  in_place<ops::asinh_, ops::asinh>(lib);
  in_place<ops::atanh_, ops::atanh>(lib);
  in_place<ops::deg2rad_, ops::deg2rad>(lib);
  in_place<ops::digamma_, ops::digamma>(lib);
  in_place<ops::i0_, ops::i0>(lib);
  in_place<ops::lgamma_, ops::lgamma>(lib);
  in_place<ops::logit_, ops::logit, Kind::kDivision>(lib);
  in_place<ops::rad2deg_, ops::rad2deg>(lib);
  in_place<ops::sinc_, ops::sinc>(lib);
  in_place<ops::round__decimals, ops::round_decimals>(lib);
  in_place_for<ops::index_fill__int_Scalar, ops::index_fill_int_Scalar, OfFilledSlices>(lib);
  in_place_for<ops::index_copy_, ops::index_copy, OfSlices>(lib);
  in_place_for<ops::index_add_, ops::index_add, OfSlices>(lib);
  in_place_for<ops::scatter__src, ops::scatter_src, OfElements>(lib);
  in_place_for<ops::scatter__value, ops::scatter_value, OfElements>(lib);
  in_place_for<ops::scatter_add_, ops::scatter_add, OfElements>(lib);
  in_place_for<ops::masked_fill__Tensor, ops::masked_fill_Tensor, OfMask>(lib);
  in_place_for<ops::addmm_, ops::addmm, OfProduct<2>>(lib);
  in_place_for<ops::baddbmm_, ops::baddbmm, OfProduct<3>>(lib);
  remedy(lib, set, "set_.source_Tensor", c10::DispatchKey::Functionalize);
  refuse_results_for_out(lib);
  install_kernels_without_gradients();
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_lean_functionalization_install)
