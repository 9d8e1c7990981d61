// Operands without elements, or of shapes that torch_xla does not take together.

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "torch_xla/csrc/castoff/dtypes.h"
#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/values.h"

namespace castoff {
namespace {

void clone_if_empty(Call& call) {
  if (C10_LIKELY(call.tensor(0).numel() > 0)) return call.proceed();
  const Below below;
  call.answer(at::clone(call.tensor(0)));
}

void on_the_cpu_if_empty(Call& call) {
  if (C10_LIKELY(call.tensor(0).numel() > 0)) return call.proceed();
  call.on_the_cpu();
}

// self, repeats: torch_xla joins the copies, of which there are none.
void repeat(Call& call) {
  const Tensor self = call.tensor(0);
  auto shape = call[1].toIntVector();
  const auto least = std::min_element(shape.begin(), shape.end());
  const auto more = static_cast<int64_t>(shape.size()) - self.dim();
  if (C10_LIKELY(least == shape.end() || *least != 0 || more < 0)) return call.proceed();
  for (int64_t i = 0; i < self.dim(); ++i) shape[more + i] *= self.size(i);
  const Below below;
  call.answer(at::empty(shape, self.options()));
}

// self, src: torch copies self's elements before it finds that src has none.
void copy_of_nothing(Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(!call.tensor(0).is_xla() || !call.tensor(1).is_meta(),
                              "Cannot copy out of meta tensor; no data!");
  call.proceed();
}

// Two operands of different ranks, of which none is 0.
void broadcast(Call& call) {
  const Tensor self = call.tensor(0), other = call.tensor(1);
  if (C10_LIKELY(self.dim() == other.dim() || self.dim() == 0 || other.dim() == 0)) {
    return call.proceed();
  }
  const auto shape = at::infer_size(self.sizes(), other.sizes());
  const Below below;
  call[0] = self.expand(shape);
  call[1] = other.expand(shape);
  call.proceed();
}

// self, dim: torch_xla leaves the last element of an odd number out.
void glu(Call& call) {
  const Tensor self = call.tensor(0);
  const int64_t dim = call[1].toInt();
  check_floats(call);
  TORCH_CHECK(self.dim() == 0 || self.size(dim) % 2 == 0,
              "glu: expected an even size to halve, but found ", self.sizes(), " and dimension ",
              dim, ".");
  call.proceed();
}

}  // namespace

void mend_shapes(torch::Library& xla) {
  remedy(xla, clone_if_empty, "roll");
  remedy(xla, on_the_cpu_if_empty, "cumprod");
  remedy(xla, repeat, "repeat");
  remedy(xla, broadcast, "clamp_max.Tensor clamp_min.Tensor");
  remedy(xla, glu, "glu");
  constexpr c10::DispatchKey kMeta = c10::DispatchKey::Meta;
  remedy(library(torch::Library::IMPL, "aten", kMeta), copy_of_nothing, "copy", kMeta);
}

}  // namespace castoff
