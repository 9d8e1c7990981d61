#ifndef XLA_TORCH_XLA_CSRC_WIDE_H_
#define XLA_TORCH_XLA_CSRC_WIDE_H_

#include <initializer_list>

#include "torch_xla/csrc/helpers.h"

// Operators of bfloat16 and float16 that are computed in float32 and rounded
// once, as torch's CPU and CUDA kernels do.

namespace torch_xla {

// Whether all operands are of one 16-bit floating point type.
inline bool IsHalf(std::initializer_list<xla::XlaOp> operands) {
  xla::PrimitiveType type = XlaHelpers::TypeOfXlaOp(*operands.begin());
  if (type != xla::PrimitiveType::BF16 && type != xla::PrimitiveType::F16) {
    return false;
  }
  for (xla::XlaOp operand : operands) {
    if (XlaHelpers::TypeOfXlaOp(operand) != type) return false;
  }
  return true;
}

inline xla::XlaOp Widen(xla::XlaOp operand) {
  return xla::ConvertElementType(operand, xla::PrimitiveType::F32);
}

// A result that was computed of widened operands, in the type of one of them.
inline xla::XlaOp RoundLike(xla::XlaOp result, xla::XlaOp operand) {
  return xla::ConvertElementType(result, XlaHelpers::TypeOfXlaOp(operand));
}

}  // namespace torch_xla

#endif  // XLA_TORCH_XLA_CSRC_WIDE_H_
