// Views, writes to them, and formulas that write to one: a view is a copy below functionalization.

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/expand_copy.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/values.h"

namespace castoff {
namespace {

// What as_strided asks for: arguments size, stride and storage_offset, from argument `first` on.
struct Strided {
  Strided(Call& call, size_t first)
      : sizes(call[first].toIntVector()),
        strides(call[first + 1].toIntVector()),
        offset(call[first + 2].isNone() ? 0 : call[first + 2].toInt()) {
    is_empty = sizes.size() != strides.size();  // which the kernel refuses
    for (const int64_t size : sizes) is_empty = is_empty || size <= 0;
  }

  // XLA repeats the last element in the place of what is beyond it, or refuses when the graph runs.
  void check_bounds(const Tensor& self) const {
    int64_t last = offset;
    for (size_t i = 0; i < sizes.size() && !is_empty; ++i) last += (sizes[i] - 1) * strides[i];
    TORCH_CHECK(is_empty || last < self.numel(), "as_strided: sizes ", at::IntArrayRef(sizes),
                ", strides ", at::IntArrayRef(strides), " and storage offset ", offset,
                " need an element ", last, ", out of bounds for a tensor of ", self.numel(),
                " elements. On XLA the elements of a view are those of the view alone.");
  }

  // Whether the elements follow each other: those of a contiguous tensor, its dimensions permuted.
  bool is_dense() const {
    std::vector<std::pair<int64_t, int64_t>> dims;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] != 1) dims.emplace_back(strides[i], sizes[i]);
    }
    std::sort(dims.begin(), dims.end());
    int64_t expected = 1;
    for (const auto& [stride, size] : dims) {
      if (stride != expected) return false;
      expected *= size;
    }
    return true;
  }

  // The positions of the elements among those of the tensor, in one dimension.
  Tensor positions(const at::TensorOptions& options) const {
    Tensor all = at::full({}, offset, options);
    for (size_t i = 0; i < sizes.size(); ++i) {
      all = all.unsqueeze(-1).add(at::arange(sizes[i], options).mul(strides[i]));
    }
    return all.view({-1});
  }

  std::vector<int64_t> sizes, strides;
  int64_t offset;
  bool is_empty;
};

// self, size, stride, storage_offset
void as_strided(Call& call) {
  Strided(call, 1).check_bounds(call.tensor(0));
  call.proceed();
}

// self, src, size, stride, storage_offset: by which a write to as_strided reaches the tensor. Of
// elements that do not follow each other torch_xla writes some to other places.
void as_strided_scatter(Call& call) {
  const Tensor self = call.tensor(0);
  const Strided asked(call, 2);
  asked.check_bounds(self);
  if (call.tensor(1).scalar_type() != self.scalar_type()) {
    call[1] = cast(call.tensor(1), self.scalar_type());
  }
  const Tensor src = call.tensor(1);
  if (asked.is_empty || asked.is_dense() || src.sizes() != asked.sizes) return call.proceed();
  const Below below;
  const Tensor index = asked.positions(self.options().dtype(at::kLong));
  call.answer(self.view({-1}).scatter(0, index, src.view({-1})).view(self.sizes()));
}

// self, [src,] offset, dim1, dim2: dimensions 0 and 1, which are the default, torch_xla takes for
// the last two, whatever the rank. A diagonal is also that of the dimensions in the other order.
template <size_t offset>
void diagonal(Call& call) {
  const int64_t rank = call.tensor(0).dim();
  const int64_t first = c10::maybe_wrap_dim(call[offset + 1].toInt(), rank);
  const int64_t second = c10::maybe_wrap_dim(call[offset + 2].toInt(), rank);
  if (C10_UNLIKELY(first == 0 && second == 1 && rank > 2)) {
    call[offset] = -call[offset].toInt();
    std::swap(call[offset + 1], call[offset + 2]);
  }
  call.proceed();
}

// A write to a diagonal. Of one without elements torch_xla fails when the graph runs.
void diagonal_scatter(Call& call) {
  const Tensor self = call.tensor(0);
  const int64_t offset = call[2].toInt();
  if (C10_UNLIKELY(offset <= -self.size(call[3].toInt()) || offset >= self.size(call[4].toInt()))) {
    return call.answer(self.clone());
  }
  diagonal<2>(call);
}

// tensors, dim, num_chunks. torch's own kernel writes to a view of the padded tensor, which is a
// copy below functionalization.
void chunk_cat(Call& call) {
  const Below below;
  const auto tensors = call[0].toTensorVector();
  const int64_t chunks = call[2].toInt();
  TORCH_CHECK(!tensors.empty() && chunks > 0,
              "_chunk_cat: expected tensors, and a number of chunks of at least 1, but got ",
              tensors.size(), " tensors and ", chunks, " chunks.");
  const int64_t dim = at::maybe_wrap_dim(call[1].toInt(), tensors[0].dim());
  std::vector<Tensor> chunked;
  for (const Tensor& t : tensors) {
    TORCH_CHECK(t.dim() > dim && t.scalar_type() == tensors[0].scalar_type(),
                "_chunk_cat: expected tensors of one dtype with dimension ", dim, ", but got ",
                c10::toString(t.scalar_type()), " with ", t.dim(), " dimensions.");
    const int64_t padding = (chunks - t.size(dim) % chunks) % chunks;
    std::vector<int64_t> pad(2 * (t.dim() - dim), 0);
    pad.back() = padding;
    const Tensor padded = padding > 0 ? at::constant_pad_nd(t, pad, 0) : t;
    auto shape = padded.sizes().vec();
    int64_t length = 1;
    for (int64_t i = dim; i < t.dim(); ++i) length *= shape[i];
    shape.resize(dim);
    shape.insert(shape.end(), {chunks, length / chunks});
    chunked.push_back(padded.reshape(shape));
  }
  call.answer(at::cat(chunked, dim + 1));
}

// Sections, or the indices to split at, in a tensor: read here, as on the CPU.
void read_sections(Call& call) {
  call[1] = call.tensor(1).cpu();
  call.proceed();
}

// self: torch_xla declares a result with a layout of one dimension too few, which ends the process
// where an operator permutes it. Expanded to the sizes that it has, it gets a new one.
void parts_of_complex(Call& call) {
  call.proceed();
  const Tensor parts = call.result().toTensor();
  call.result() = at::expand_copy(parts, parts.sizes());
}

}  // namespace

void mend_views(torch::Library& xla, torch::Library& autograd) {
  remedy(xla, as_strided, "as_strided as_strided_copy");
  remedy(xla, as_strided_scatter, "as_strided_scatter");
  remedy(xla, diagonal<1>, "diagonal_copy");
  remedy(xla, diagonal_scatter, "diagonal_scatter");
  remedy(xla, chunk_cat, "_chunk_cat");
  remedy(xla, parts_of_complex, "view_as_real_copy");
  remedy(autograd, read_sections, "tensor_split.tensor_indices_or_sections", kAutograd);
}

}  // namespace castoff
