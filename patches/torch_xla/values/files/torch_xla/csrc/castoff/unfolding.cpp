// `unfold` of an XLA tensor, as a view that can be written to.
//
// Functionalization carries what was written to a view back to its base by an inverse of the view.
// torch's for unfold is the gradient of unfold, the sum over the windows: elements between windows
// become 0, and those that several windows share a multiple. Here they are written, not added.

#include "torch_xla/csrc/castoff/values.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/permute_copy.h>
#include <ATen/ops/unfold_copy_ops.h>
#include <ATen/ops/where.h>
#include <torch/csrc/castoff/torch_version.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {
namespace {

using at::functionalization::ViewMeta;
namespace functional = at::functionalization::impl;

struct Windows {
  int64_t dim, size, step;

  Tensor of(const Tensor& base) const { return at::_ops::unfold_copy::call(base, dim, size, step); }

  // The base with what was written to its windows: `written`, which may have been read before.
  Tensor put_back(const Tensor& base, const Tensor& written) const {
    const at::AutoDispatchSkipFunctionalize bare;
    const Below below;
    const Tensor values = flattened(written);
    const int64_t count = written.size(dim);
    const auto integers = base.options().dtype(at::kLong);
    const Tensor starts = at::arange(count, integers).mul(step).view({count, 1});
    const Tensor index = along(starts.add(at::arange(size, integers)), values.sizes());
    if (step >= size) return base.scatter(dim, index, values);
    return last_written(base, values, index, differ(values, flattened(of(base))));
  }

 private:
  // The elements of all windows in the place of the dimension that was unfolded.
  Tensor flattened(const Tensor& windows) const {
    std::vector<int64_t> order(windows.dim()),
        shape = windows.sizes().slice(0, order.size() - 1).vec();
    std::iota(order.begin(), order.end(), 0);
    std::rotate(order.begin() + dim + 1, order.end() - 1, order.end());
    shape[dim] *= size;
    return at::permute_copy(windows, order).view(shape);
  }

  // A number for each element of the windows, for all of a tensor of these sizes.
  Tensor along(const Tensor& numbers, at::IntArrayRef sizes) const {
    std::vector<int64_t> shape(sizes.size(), 1);
    shape[dim] = sizes[dim];
    return numbers.view(shape).expand(sizes);
  }

  // Where they are not the same number, or both NaN.
  static Tensor differ(const Tensor& values, const Tensor& before) {
    const Tensor unequal = values.ne(before);
    const bool can_be_nan = values.is_floating_point() || values.is_complex();
    if (!can_be_nan) return unequal;
    return unequal.logical_and(values.eq(values).logical_or(before.eq(before)));
  }

  // Of the windows that share an element, the last one that has another value counts.
  Tensor last_written(const Tensor& base, const Tensor& values, const Tensor& index,
                      const Tensor& is_changed) const {
    const Tensor order = along(at::arange(index.size(dim), index.options()), index.sizes());
    const Tensor none = at::full(base.sizes(), -1, index.options());
    const Tensor last = none.scatter_reduce(dim, index, at::where(is_changed, order, -1), "amax");
    return at::where(last.ge(0), values.gather(dim, last.clamp_min(0)), base);
  }
};

#if CASTOFF_TORCH_AT_LEAST(2, 9)
class UnfoldMeta final : public ViewMeta {
 public:
  explicit UnfoldMeta(const Windows& windows)
      : ViewMeta(/*has_symbolic_inputs=*/false), windows_(windows) {}

  Tensor forward(const Tensor& base) override { return windows_.of(base); }
  Tensor reverse(const Tensor& base, const Tensor& written) override {
    return windows_.put_back(base, written);
  }

 private:
  const Windows windows_;
};

std::shared_ptr<ViewMeta> view_of(const Windows& windows) {
  return std::make_shared<UnfoldMeta>(windows);
}
#else
ViewMeta view_of(const Windows& windows) {
  return ViewMeta([windows](const Tensor& base, int64_t) { return windows.of(base); },
                  [windows](const Tensor& base, const Tensor& written, int64_t) {
                    return windows.put_back(base, written);
                  },
                  /*has_symbolic_inputs=*/false);
}
#endif

// Not one that is traced for torch.compile, or by a transform.
bool is_wrapped_xla(const Tensor& t) {
  return t.is_xla() && functional::isFunctionalTensor(t) &&
         is_bare_xla(functional::from_functional_tensor(t));
}

// self, dimension, size, step
void unfold(Call& call) {
  const Tensor self = call.tensor(0);
  if (self.dim() == 0 || !is_wrapped_xla(self)) return call.proceed();
  const Windows windows{at::maybe_wrap_dim(call[1].toInt(), self.dim()), call[2].toInt(),
                        call[3].toInt()};
  call.proceed();
  const Tensor stocks = call.result().toTensor();
  const Tensor view = at::detail::make_tensor<at::FunctionalTensorWrapper>(
      functional::from_functional_tensor(stocks), functional::unsafeGetFunctionalWrapper(self),
      view_of(windows));
  view.unsafeGetTensorImpl()->set_sizes_and_strides(stocks.sym_sizes(), stocks.sym_strides(),
                                                    stocks.sym_storage_offset());
  call.result() = view;
}

}  // namespace

void mend_unfolding() {
  constexpr c10::DispatchKey kKey = c10::DispatchKey::Functionalize;
  remedy(library(torch::Library::IMPL, "aten", kKey), unfold, "unfold", kKey);
}

}  // namespace castoff
