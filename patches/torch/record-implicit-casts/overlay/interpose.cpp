// Where torch has no grad_dtype of its own, the topic of that name takes the place of
// validate_outputs and calls Validation there. Otherwise it is done here.
#if !__has_include(<torch/csrc/autograd/grad_dtype.h>)

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/implicit_casts.h>

#include <functional>
#include <string>

#include "interpose.h"

namespace torch::autograd {

void validate_outputs(const edge_list& edges, variable_list& grads,
                      const std::function<std::string(const std::string&)>& format_error) {
  using Function =
      void(const edge_list&, variable_list&, const std::function<std::string(const std::string&)>&);
  static auto* const stock = castoff::stock<Function>(&validate_outputs);
  const implicit_casts::Validation validation(edges, grads);
  stock(edges, grads, format_error);
  validation.finish(grads);
}

}  // namespace torch::autograd

#endif
