// torch.Generator(device="xla"): a seed for what it draws, apart from the device's own.

#pragma once

#include <ATen/core/Generator.h>
#include <c10/util/python_stub.h>

#include "torch_xla/csrc/castoff/remedy.h"

namespace castoff {

// What Python gives the kernels.
struct GeneratorHooks {
  // Sets the seed that a device draws with next, and returns the one that it had.
  uint64_t (*exchange_seed)(int device, uint64_t seed);
  // THPGenerator_Wrap.
  PyObject* (*wrap)(const at::Generator&);
};

// Lets `torch.Generator`, the type, make generators of XLA devices. Throws c10::Error.
void take_generators(PyObject* type, const GeneratorHooks& hooks);

// Answers the call by `draw`, with the seed of the generator among its arguments if that is one of
// XLA's.
void draw_from_generator(Call& call, Remedy draw);

// Answers the call by torch's CPU kernel, with a generator that has that seed.
void draw_on_the_cpu(Call& call);

template <Remedy draw>
void from_generator(Call& call) {
  draw_from_generator(call, draw);
}

}  // namespace castoff
