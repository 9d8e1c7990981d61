// Which calls of in-place operators that write by an index or a mask, or that add a product of
// matrices, have a result of self's shape and dtype: what torch's checks of them take for sure.

#pragma once

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>

#include "torch_xla/csrc/castoff/in_place.h"

namespace castoff {

inline bool is_of_dtype(const at::Tensor& t, at::ScalarType dtype) {
  return t.defined() && t.scalar_type() == dtype && xla_wrapper(t) != nullptr;
}

// Whether `dim` is one of self's, whose index has int64.
inline bool has_index(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  return is_number(self.scalar_type()) && is_of_dtype(index, at::ScalarType::Long) &&
         -self.dim() <= dim && dim < self.dim();
}

struct OfAnyCall {
  static constexpr bool kRefusesOverlap = true;
  static constexpr bool kCasts = false;

  template <class... Arguments>
  static void refuse(const Arguments&...) {}
};

// index_copy_ and index_add_: source has a slice of self for each index.
struct OfSlices : OfAnyCall {
  static bool fit(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                  const at::Tensor& source) {
    if (!has_index(self, dim, index) || !is_of_dtype(source, self.scalar_type()) ||
        index.dim() != 1 || source.dim() != self.dim()) {
      return false;
    }
    dim = at::maybe_wrap_dim(dim, self.dim());
    for (int64_t i = 0; i < self.dim(); ++i) {
      if (source.size(i) != (i == dim ? index.numel() : self.size(i))) return false;
    }
    return true;
  }

  static bool fit(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                  const at::Tensor& source, const at::Scalar& alpha) {
    return fits(Kind::kOther, self, alpha) && fit(self, dim, index, source);
  }
};

// index_fill_. The CPU writes to expanded tensors, too.
struct OfFilledSlices : OfAnyCall {
  static constexpr bool kRefusesOverlap = false;

  static bool fit(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                  const at::Scalar& value) {
    return has_index(self, dim, index) && index.dim() <= 1 && fits(Kind::kOther, self, value);
  }
};

// scatter_ and scatter_add_: the index is no larger than self and the source, but along `dim`.
struct OfElements : OfAnyCall {
  static bool fit(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                  const at::Scalar& value) {
    return fits(Kind::kOther, self, value) && is_within(self, dim, index);
  }

  static bool fit(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                  const at::Tensor& source) {
    if (!is_of_dtype(source, self.scalar_type()) || !is_within(self, dim, index) ||
        source.dim() != index.dim()) {
      return false;
    }
    for (int64_t i = 0; i < index.dim(); ++i) {
      if (index.size(i) > source.size(i)) return false;
    }
    return true;
  }

 private:
  static bool is_within(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
    if (!has_index(self, dim, index) || index.dim() != self.dim() || index.numel() == 0) {
      return false;
    }
    dim = at::maybe_wrap_dim(dim, self.dim());
    for (int64_t i = 0; i < index.dim(); ++i) {
      if (i != dim && index.size(i) > self.size(i)) return false;
    }
    return true;
  }
};

// masked_fill_ with a tensor of no dimension. The CPU writes to expanded tensors, too.
struct OfMask : OfAnyCall {
  static constexpr bool kRefusesOverlap = false;

  static bool fit(const at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
    return is_of_dtype(mask, at::ScalarType::Bool) && is_of_dtype(value, self.scalar_type()) &&
           value.dim() == 0 && broadcasts_to(mask.sizes(), self.sizes());
  }
};

// addmm_ and baddbmm_, of floats, which have 2 and 3 dimensions.
template <int64_t rank>
struct OfProduct : OfAnyCall {
  static constexpr bool kRefusesOverlap = false;

  static bool fit(const at::Tensor& self, const at::Tensor& left, const at::Tensor& right,
                  const at::Scalar& beta, const at::Scalar& alpha) {
    const at::ScalarType dtype = self.scalar_type();
    if (!at::isFloatingType(dtype) || !is_of_dtype(left, dtype) || !is_of_dtype(right, dtype) ||
        !fits(Kind::kOther, self, beta) || !fits(Kind::kOther, self, alpha) || self.dim() != rank ||
        left.dim() != rank || right.dim() != rank) {
      return false;
    }
    constexpr int64_t rows = rank - 2, columns = rank - 1;
    for (int64_t i = 0; i < rows; ++i) {
      if (left.size(i) != self.size(i) || right.size(i) != self.size(i)) return false;
    }
    return left.size(rows) == self.size(rows) && right.size(columns) == self.size(columns) &&
           left.size(columns) == right.size(rows);
  }
};

}  // namespace castoff
