// Where torch has no grad_dtype of its own, the topic of that name takes the place of
// validate_outputs and calls Validation there. Otherwise it is done here.
#if !__has_include(<torch/csrc/autograd/grad_dtype.h>)

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/implicit_casts.h>

#include <functional>
#include <string>

#include "interpose.h"

namespace torch::autograd {
namespace {

using FormatError = std::function<std::string(const std::string&)>;
using Validate = void(const edge_list&, variable_list&, const FormatError&);
using Stock = castoff::Stock<static_cast<Validate*>(&validate_outputs)>;

// Out of line, so that a backward that nobody records pays for one test.
[[gnu::noinline]] void validate_recorded(const edge_list& edges, variable_list& grads,
                                         const FormatError& format_error) {
  const implicit_casts::Validation validation(edges, grads);
  Stock::call(edges, grads, format_error);
  validation.finish(grads);
}

}  // namespace

void validate_outputs(const edge_list& edges, variable_list& grads,
                      const FormatError& format_error) {
  if (C10_LIKELY(implicit_casts::Validation::recorders.load(std::memory_order_relaxed) == 0)) {
    return Stock::call(edges, grads, format_error);
  }
  validate_recorded(edges, grads, format_error);
}

}  // namespace torch::autograd

#endif
