// torch_xla's gradient of einsum for an operand is one product with the other operand as it is. Of
// complex numbers it lacks the conjugate, and of an operand whose one element of a label is spread
// over the other's, the extent. There einsum is what torch makes of it, as torch_xla itself has it
// for equations that it does not lower.

#include <ATen/core/Tensor.h>
#include <ATen/ops/einsum_native.h>

#include <algorithm>
#include <array>
#include <vector>

#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/values.h"

namespace castoff {
namespace {

using at::Tensor;

// Whether a label has two extents. An ellipsis is torch's in any case.
bool is_spread(c10::string_view equation, const std::vector<Tensor>& operands) {
  std::array<int64_t, 'z' - 'A' + 1> extents;
  extents.fill(-1);
  size_t operand = 0;
  int64_t dim = 0;
  for (const char c : equation) {
    if (c == '-') break;
    if (c == ' ') continue;
    if (c == ',') {
      ++operand;
      dim = 0;
      continue;
    }
    if (c < 'A' || c > 'z' || operand >= operands.size() || dim >= operands[operand].dim()) {
      return false;
    }
    const int64_t extent = operands[operand].size(dim++);
    int64_t& known = extents[c - 'A'];
    if (known >= 0 && known != extent) return true;
    known = extent;
  }
  return false;
}

}  // namespace

bool einsum_answered_by_torch(Call& call, const std::vector<Tensor>& operands) {
  const c10::string_view equation = call[0].toStringView();
  const bool complex =
      std::any_of(operands.begin(), operands.end(), [](const Tensor& t) { return t.is_complex(); });
  if (!complex && !is_spread(equation, operands)) return false;
  const auto path = call[2].toOptional<std::vector<int64_t>>();
  call.answer(at::native::einsum(
      equation, operands, path ? at::OptionalIntArrayRef(*path) : at::OptionalIntArrayRef()));
  return true;
}

}  // namespace castoff
