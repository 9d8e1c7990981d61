#pragma once

// What the engine's two validate_outputs do besides what torch has them do. `stock` is that: the
// engine's own implementation in a source build, torch's function in an overlay build.

#include <torch/csrc/autograd/grad_dtype.h>
#include <torch/csrc/autograd/grad_dtype_versions.h>

// Of the topic record-implicit-casts, where it is in the build.
#if __has_include(<torch/csrc/autograd/implicit_casts.h>)
#include <torch/csrc/autograd/implicit_casts.h>
#endif

namespace torch::autograd::grad_dtype {

// The rest of validate() below, out of line: a backward that uses none of this pays for one test.
template <class Stock>
[[gnu::noinline]] void validate_as_wanted(const Stock& stock, const edge_list& edges,
                                          variable_list& grads, const FormatError& format_error) {
  if (stands_for_metadata(edges)) {
    return stock(edges, grads, format_error);
  }
#if __has_include(<torch/csrc/autograd/implicit_casts.h>)
  const implicit_casts::Validation validation(edges, grads);
#endif
  LeafGradients leaves(edges, grads, format_error);
  stock(edges, grads, format_error);
  leaves.put_back(grads, format_error);
#if __has_include(<torch/csrc/autograd/implicit_casts.h>)
  validation.finish(grads);
#endif
}

template <class Stock>
[[gnu::noinline]] void validate_as_wanted(const Stock& stock, const OptionalMetadata& metadata,
                                          variable_list& grads, const FormatError& format_error) {
  widen_before_reducing(metadata, grads);
  if (const auto resolved = resolve_any(metadata, grads, format_error)) {
    return stock(*resolved, grads, format_error);
  }
  stock(metadata, grads, format_error);
}

// `wanted` is the edges that the gradients travel, or metadata, as a compiled backward has it.
// Throws what `stock` and resolve_any throw.
template <class Stock, class Wanted>
void validate(const Stock& stock, const Wanted& wanted, variable_list& grads,
              const FormatError& format_error) {
  if (C10_LIKELY(!engine_in_use())) {
    return stock(wanted, grads, format_error);
  }
  validate_as_wanted(stock, wanted, grads, format_error);
}

}  // namespace torch::autograd::grad_dtype
