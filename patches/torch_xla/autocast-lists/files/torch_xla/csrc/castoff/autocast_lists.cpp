// torch's lists of what autocast casts, for XLA: those of its operators that torch_xla's own lists
// leave out. The lists and the kernels are torch's (ATen/autocast_mode.h), as for CUDA.

#include <ATen/autocast_mode.h>

#include <string>

#include "torch_xla/csrc/castoff/kernels.h"

namespace castoff {
namespace {

constexpr c10::DeviceType kDevice = c10::DeviceType::XLA;

// What torch's macros take for the library: it passes over what torch_xla has registered.
class Unlisted {
 public:
  explicit Unlisted(torch::Library& library) : library_(library) {}

  template <class Kernel>
  void impl(const char* full, Kernel* kernel) {
    const std::string name(full);
    const size_t dot = name.find('.');
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.c_str() + dot + 1);
    if (!op.hasKernelForDispatchKey(c10::DispatchKey::AutocastXLA)) library_.impl(full, kernel);
  }

 private:
  torch::Library& library_;
};

#define CASTOFF_LOWER_PRECISION_FP(...) KERNEL(kDevice, __VA_ARGS__, lower_precision_fp)
#define CASTOFF_FP32(...) KERNEL(kDevice, __VA_ARGS__, fp32)
#define CASTOFF_FP32_SET_OPT_DTYPE(...) KERNEL(kDevice, __VA_ARGS__, fp32_set_opt_dtype)
#define CASTOFF_APPEND_DTYPE(...) KERNEL_DIFFERENT_REDISPATCH_SIGNATURE(kDevice, __VA_ARGS__)
#define CASTOFF_PROMOTE(...) KERNEL(kDevice, __VA_ARGS__, promote)

// Fourier transforms, which refuse bfloat16: in float32, as in the CPU's list. CUDA's has none.
#define CASTOFF_FORALL_FFT(_) \
  _(fft_fft)                  \
  _(fft_ifft)                 \
  _(fft_fft2)                 \
  _(fft_ifft2)                \
  _(fft_fftn)                 \
  _(fft_ifftn)                \
  _(fft_rfft)                 \
  _(fft_irfft)                \
  _(fft_rfft2)                \
  _(fft_irfft2)               \
  _(fft_rfftn)                \
  _(fft_irfftn)               \
  _(fft_hfft)                 \
  _(fft_ihfft)                \
  _(stft)

void install() {
  using at::DimnameList;
  using at::IntArrayRef;
  using at::Scalar;
  using at::ScalarType;
  using at::Tensor;
  Unlisted m(library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastXLA));
  AT_FORALL_LOWER_PRECISION_FP(CASTOFF_LOWER_PRECISION_FP)
  AT_FORALL_FP32(CASTOFF_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(CASTOFF_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(CASTOFF_APPEND_DTYPE)
  AT_FORALL_PROMOTE(CASTOFF_PROMOTE)
  CASTOFF_FORALL_FFT(CASTOFF_FP32)
  CASTOFF_FP32(stft, center)
}

}  // namespace
}  // namespace castoff

CASTOFF_ENTRY_POINT(castoff_autocast_lists_install)
