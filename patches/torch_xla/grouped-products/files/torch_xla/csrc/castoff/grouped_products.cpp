// _grouped_mm, whose one kernel reads its operands' memory: of XLA tensors that ends the process.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cstdint>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

// Which of `count` rows each group has, [groups, count]; `ends` are the ends of the groups.
Tensor members(const Tensor& ends, int64_t count) {
  const Tensor end = ends.to(ScalarType::Int);
  const Tensor start = at::cat({at::zeros({1}, end.options()), end.slice(0, 0, -1)});
  const Tensor row = at::arange(count, end.options());
  return (row >= start.unsqueeze(1)).logical_and(row < end.unsqueeze(1));
}

// Each group's product for all rows, of which the group's own are taken: the sizes of groups are
// not known where the graph is made. The sum is exact, as one of its elements is not zero.
Tensor of_own_group(const Tensor& products, const Tensor& is_member) {
  return at::where(is_member, products, 0).sum(0, false, products.scalar_type());
}

Tensor product(const Tensor& self, const Tensor& mat2, const Tensor& ends) {
  if (self.dim() == 3 && mat2.dim() == 3) return at::matmul(self, mat2);
  if (self.dim() == 2 && mat2.dim() == 3) {
    const Tensor is_member = members(ends, self.size(0)).unsqueeze(-1);
    return of_own_group(at::matmul(self, mat2), is_member);
  }
  if (self.dim() == 3) {
    const Tensor is_member = members(ends, mat2.size(1)).unsqueeze(1);
    return of_own_group(at::matmul(self, mat2), is_member);
  }
  // Both are masked: what is of another group may be infinite.
  const Tensor is_member = members(ends, self.size(1));
  return at::matmul(at::where(is_member.unsqueeze(1), self, 0),
                    at::where(is_member.unsqueeze(-1), mat2, 0));
}

// self, mat2, offs, bias, out_dtype
void grouped_mm(Call& call) {
  const Tensor self = call.tensor(0), mat2 = call.tensor(1);
  const bool has_ends = is_tensor(call[2]);
  const auto is_matrix = [](const Tensor& t) { return t.dim() == 2 || t.dim() == 3; };
  TORCH_CHECK(is_matrix(self) && is_matrix(mat2),
              "grouped_mm: expected operands of 2 or 3 dimensions, found ", self.dim(), " and ",
              mat2.dim());
  TORCH_CHECK(has_ends == (self.dim() == 2 || mat2.dim() == 2),
              "grouped_mm: expected offs if, and only if, an operand has 2 dimensions");
  TORCH_CHECK(!is_tensor(call[3]), "grouped_mm: bias is not supported yet, as on other devices");
  TORCH_CHECK(self.scalar_type() == mat2.scalar_type(), "grouped_mm: expected one dtype, found ",
              self.scalar_type(), " and ", mat2.scalar_type());
  const Below below;
  const ScalarType dtype = call[4].isNone() ? self.scalar_type() : call[4].toScalarType();
  const Tensor found = product(self, mat2, has_ends ? call.tensor(2) : Tensor());
  call.answer(found.to(dtype));
}

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, grouped_mm, "_grouped_mm");
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_grouped_products_install)
