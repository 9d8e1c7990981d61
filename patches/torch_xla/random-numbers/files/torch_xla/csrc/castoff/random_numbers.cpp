// Random numbers of dtypes that are too narrow to draw in: they are drawn in float32.
//
// torch_xla draws in the tensor's dtype. In bfloat16 there are 128 numbers from 0.5 to 1, so that a
// mask of probability 0.1 has 0.094, one of 0.005 nothing at all, and uniform numbers include the
// upper bound; in an integer dtype every probability below 1 is 0.

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/floor_ops.h>
#include <ATen/ops/log1p_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/uniform_ops.h>

#include <atomic>
#include <cmath>

#include "torch_xla/csrc/castoff/remedy.h"
#include "torch_xla/csrc/castoff/xla_generator.h"

namespace castoff {
namespace {

// ---- seeding

std::atomic<bool> seed_is_pending{false};
void (*set_pending_seed)() = nullptr;

void seed() {
  if (C10_UNLIKELY(seed_is_pending.load(std::memory_order_relaxed)) &&
      seed_is_pending.exchange(false)) {
    set_pending_seed();
  }
}

void seed_only(Call& call) {
  seed();
  call.proceed();
}

// ---- drawing

bool is_wide(ScalarType dtype) {
  return dtype == ScalarType::Float || dtype == ScalarType::Double || c10::isComplexType(dtype);
}

// Zeros and ones reach another dtype as truth values, without a cast between float dtypes.
Tensor truth(const Tensor& drawn) {
  return at::_ops::ne_Scalar::redispatch(kXla, drawn, 0);
}

// Arguments that are tensors of a narrow dtype are float32, and the results, zeros and ones or
// numbers, take the dtype of argument 0.
template <bool zeros_and_ones>
void draw_wide(Call& call) {
  seed();
  const ScalarType dtype = call.tensor(0).scalar_type();
  if (C10_LIKELY(is_wide(dtype))) return call.proceed();
  for (size_t i = 0; i < call.size(); ++i) {
    if (is_tensor(call[i]) && !is_wide(call.tensor(i).scalar_type())) {
      call[i] = cast(call.tensor(i), ScalarType::Float);
    }
  }
  const size_t results = call.results();
  call.proceed();
  for (size_t i = 0; i < results; ++i) {
    const Tensor& result = call.result(i).toTensor();
    if (result.scalar_type() != ScalarType::Float) continue;
    call.result(i) = cast(zeros_and_ones ? truth(result) : result, dtype);
  }
}

// input, p, train. torch_xla scales what is kept by 1 / p, in place of 1 / (1 - p), and its mask
// holds these numbers.
void native_dropout(Call& call) {
  const Tensor input = call.tensor(0);
  const double kept = 1 - call[1].toDouble();
  const Below below;
  if (!call[2].isNone() && !call[2].toBool()) {
    call.answer(at::_ops::clone::call(input, {}),
                truth(at::_ops::ones_like::call(input, ScalarType::Float, {}, {}, {}, {})));
    return;
  }
  const Tensor wide =
      input.scalar_type() == ScalarType::Float ? input : cast(input, ScalarType::Float);
  const Tensor mask = truth(at::_ops::bernoulli_p::call(wide, kept, {}));
  const Tensor chosen = at::_ops::mul_Tensor::call(input, mask);
  call.answer(at::_ops::mul_Scalar::call(chosen, kept == 0 ? 0 : 1 / kept), mask);
}

// mean, std: of one shape. torch_xla draws in the mean's.
void normal_of_tensors(Call& call) {
  const auto shape = at::infer_size(call.tensor(0).sizes(), call.tensor(1).sizes());
  {
    const Below below;
    for (size_t i : {0, 1}) {
      if (call.tensor(i).sizes() != shape) call[i] = call.tensor(i).expand(shape);
    }
  }
  draw_wide<false>(call);
}

void write(Tensor self, const Tensor& drawn) {
  at::_ops::copy_::redispatch(kXla, self, cast(drawn, self.scalar_type()), false);
}

// An operator that draws in place, zeros and ones or numbers.
template <bool zeros_and_ones>
void draw_wide_in_place(Call& call) {
  seed();
  const Tensor self = call.tensor(0);
  if (C10_LIKELY(is_wide(self.scalar_type()))) return call.proceed();
  call[0] = cast(self, ScalarType::Float);
  call.proceed();
  const Tensor drawn = call.result().toTensor();
  write(self, zeros_and_ones ? truth(drawn) : drawn);
  call.result() = self;
}

// self, lambd. The shape of torch_xla's own node is no part of its hash, by which the shapes of
// what is computed of it are looked up: after another draw of the same seed they are those of that
// one.
void exponential(Call& call) {
  const Tensor self = call.tensor(0);
  const double rate = call[1].toDouble();
  TORCH_CHECK(rate > 0, "exponential_ expects lambda > 0.0, but found lambda=", rate);
  Tensor drawn = is_wide(self.scalar_type()) ? self : cast(self, ScalarType::Float);
  at::_ops::uniform_::redispatch(kXla, drawn, 1e-5, 0.99999, {});  // torch_xla's bounds
  drawn = at::_ops::log1p::redispatch(kXla, at::_ops::neg::redispatch(kXla, drawn));
  write(self, at::_ops::mul_Scalar::redispatch(kXla, drawn, -1 / rate));
  call.answer(self);
}

// The binary digits of a dtype's numbers from 0.5 to 1, as torch draws them on the CPU.
int digits(ScalarType dtype) {
  return dtype == ScalarType::BFloat16 ? 8 : 11;
}

// Multiples of 2^-digits below 1, then scaled: no number is drawn more often for being rounded to.
void uniform(Call& call) {
  seed();
  const Tensor self = call.tensor(0);
  if (C10_LIKELY(!is_half(self.scalar_type()))) return call.proceed();
  const double from = call[1].toDouble(), to = call[2].toDouble();
  const double steps = std::ldexp(1.0, digits(self.scalar_type()));
  call[0] = cast(self, ScalarType::Float);
  call[1] = 0.0;
  call[2] = steps;
  call.proceed();
  Tensor drawn = at::_ops::floor::redispatch(kXla, call.result().toTensor());
  drawn = at::_ops::mul_Scalar::redispatch(kXla, drawn, (to - from) / steps);
  if (from != 0) drawn = at::_ops::add_Scalar::redispatch(kXla, drawn, from, 1);
  write(self, drawn);
  call.result() = self;
}

// torch_xla's own has other numbers each time, whatever the seed is. `device` is an argument's
// place, which follows the dtype's by two; argument 0 is n.
template <size_t device>
void randperm(Call& call) {
  TORCH_CHECK(call[device].isDevice() && call[device].toDevice().is_xla(),
              "expected device=\"xla\" with a generator of XLA, found ",
              call[device].isDevice() ? call[device].toDevice().str() : "cpu");
  const c10::IValue& dtype = call[device - 2];
  const Below below;
  const Tensor keys = at::rand({call[0].toInt()}, at::TensorOptions(call[device].toDevice()));
  const Tensor order = std::get<1>(at::sort(keys, /*stable=*/true, 0, false));
  call.answer(dtype.isNone() ? order : order.to(dtype.toScalarType()));
}

void proceed(Call& call) {
  call.proceed();
}

// ---- registration

void install() {
  torch::Library& xla = library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA);
  remedy(xla, from_generator<uniform>, "uniform_");
  remedy(xla, from_generator<draw_wide<true>>, "bernoulli bernoulli.p");
  remedy(xla, native_dropout, "native_dropout");
  remedy(xla, from_generator<draw_wide<false>>, "normal.Tensor_float rrelu_with_noise");
  remedy(xla, from_generator<normal_of_tensors>, "normal.Tensor_Tensor");
  remedy(xla, from_generator<draw_wide_in_place<true>>, "bernoulli_.Tensor bernoulli_.float");
  remedy(xla, from_generator<draw_wide_in_place<false>>, "normal_");
  remedy(xla, from_generator<exponential>, "exponential_");
  remedy(xla, from_generator<seed_only>, "normal.float_Tensor random_ random_.from random_.to");
  remedy(xla, randperm<3>, "randperm");
  remedy(xla, from_generator<randperm<4>>, "randperm.generator");
  remedy(xla, draw_on_the_cpu, "_sample_dirichlet _standard_gamma binomial multinomial poisson");
  // Functionalization runs it on a meta tensor, where it takes no generator.
  torch::Library& functionalize =
      library(torch::Library::IMPL, "aten", c10::DispatchKey::Functionalize);
  remedy(functionalize, from_generator<proceed>, "exponential_", c10::DispatchKey::Functionalize);
}

}  // namespace
}  // namespace castoff

extern "C" {

// Puts the kernels in place; nullptr, or what went wrong. Call it once. `set_seed` is called by the
// first draw after castoff_random_numbers_seed_is_pending(). `generator` is the type
// torch.Generator.
__attribute__((visibility("default"))) const char* castoff_random_numbers_install(
    void (*set_seed)(), PyObject* generator, uint64_t (*exchange_seed)(int, uint64_t),
    PyObject* (*wrap_generator)(const at::Generator&)) {
  castoff::set_pending_seed = set_seed;
  const char* error = castoff::put_in_place(castoff::install);
  if (error != nullptr) return error;
  castoff::take_generators(generator, {exchange_seed, wrap_generator});
  return nullptr;
}

__attribute__((visibility("default"))) void castoff_random_numbers_seed_is_pending() {
  castoff::seed_is_pending = true;
}

}  // extern "C"
