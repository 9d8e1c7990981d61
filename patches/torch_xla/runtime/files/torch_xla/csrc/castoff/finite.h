// Maxima and minima by torch_xla's kernels, which begin at the least and the greatest finite
// number.

#pragma once

namespace castoff {

// Whether the maxima that this thread asks for are of a finite number at least, each, or may be
// that number in place of -inf: topic on-device leaves them to torch_xla.
inline thread_local bool has_finite_extremes = false;

class FiniteExtremes {
 public:
  FiniteExtremes() : before_(has_finite_extremes) { has_finite_extremes = true; }
  ~FiniteExtremes() { has_finite_extremes = before_; }
  FiniteExtremes(const FiniteExtremes&) = delete;
  FiniteExtremes& operator=(const FiniteExtremes&) = delete;

 private:
  const bool before_;
};

}  // namespace castoff
