#include <torch_xla/csrc/castoff/dot_general.h>
#include <torch_xla/csrc/castoff/wide_weight_grad.h>
#include <torch_xla/csrc/castoff/wide_weight_grad_versions.h>

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace torch_xla::wide_weight_grad {

GradDtypes grad_dtypes{};

bool is_wide(const Edge& edge, ScalarType narrow) {
  if (!at::isReducedFloatingType(narrow) || !edge.is_valid()) return false;
  const int wanted = grad_dtypes.over_edge(&edge);
  return wanted == static_cast<int>(ScalarType::Float) ||
         wanted == static_cast<int>(ScalarType::Double);
}

bool is_wide(const Tensor& operand) {
  return operand.defined() && operand.requires_grad() &&
         at::isReducedFloatingType(operand.scalar_type()) &&
         is_wide(torch::autograd::impl::gradient_edge(operand), operand.scalar_type());
}

Tensor to_float(const Tensor& t) {
  return t.to(ScalarType::Float);
}

void declare_wide(const Tensor& output) {
  if (!output.requires_grad() || !at::isReducedFloatingType(output.scalar_type())) return;
  const char* error =
      grad_dtypes.declare(output.unsafeGetTensorImpl(), static_cast<int>(ScalarType::Float));
  TORCH_CHECK(error == nullptr, error);
}

void hand_on(const Tensor& output, const Weights& weights) {
  if (!weights.any() || !weights.alone) return;
  c10::SymInt size = 0;
  for (const Tensor& weight : weights.wide) size += weight.sym_numel();
  if (output.sym_numel() <= size) declare_wide(output);
}

// ---- nodes

namespace {

variable_list gradients(const Formula& formula, const variable_list& grads,
                        const variable_list& saved, const Wants& wants) {
  variable_list results(wants.any.size());
  if (grads[0].defined()) formula.differentiate(grads[0], saved, wants, results);
  return results;
}

}  // namespace

variable_list WideNode::apply(variable_list&& grads) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return gradients(*formula_, grads, unpack(), wants());
}

void WideNode::release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& saved : saved_) saved.reset_data();
}

Wants WideNode::wants() const {
  Wants wants;
  for (size_t i = 0; i < num_outputs(); ++i) {
    wants.any.push_back(task_should_compute_output(i));
    wants.wide.push_back(wants.any[i] && is_wide(next_edge(i), narrow_));
  }
  return wants;
}

variable_list WideNode::unpack() {
  variable_list tensors;
  for (const auto& saved : saved_) tensors.push_back(saved.unpack(shared_from_this()));
  return tensors;
}

// All but tensors is part of the key, so the graph below can hold it as constants.
void WideNode::compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args)
    CASTOFF_COMPILED_ARGS_CONST {
  const Wants wanted = wants();
  args.collect(formula_->name());
  // Nested values are part of the key; others would become inputs of the graph.
  for (const auto& constant : formula_->constants()) args.collect(constant, /*nested=*/true);
  for (size_t i = 0; i < num_outputs(); ++i) {
    args.collect(static_cast<bool>(wanted.any[i]));
    args.collect(static_cast<bool>(wanted.wide[i]));
  }
  args.collect(saved_, /*is_output=*/true);
}

variable_list WideNode::apply_with_saved(const variable_list& grads,
                                         torch::dynamo::autograd::SwapSavedVariables& saved) {
  saved.before(saved_);
  auto results = put_into_graph(
      formula_->name(),
      [formula = formula_, wanted = wants()](const variable_list& inputs,
                                             const variable_list& tensors) {
        return gradients(*formula, inputs, tensors, wanted);
      },
      grads, unpack(), next_edges(), saved);
  saved.after(saved_);
  return results;
}

// ---- contract

namespace {

using Dims = std::vector<int64_t>;
using Sizes = std::vector<c10::SymInt>;

Dims others(int64_t rank, at::IntArrayRef some, at::IntArrayRef more) {
  const auto is_in = [](at::IntArrayRef dims, int64_t dim) {
    return std::find(dims.begin(), dims.end(), dim) != dims.end();
  };
  Dims left;
  for (int64_t dim = 0; dim < rank; ++dim) {
    if (!is_in(some, dim) && !is_in(more, dim)) left.push_back(dim);
  }
  return left;
}

c10::SymInt size_of(const Tensor& t, at::IntArrayRef dims) {
  c10::SymInt size = 1;
  for (const int64_t dim : dims) size *= t.sym_size(dim);
  return size;
}

void append_sizes(Sizes& sizes, const Tensor& t, at::IntArrayRef dims) {
  for (const int64_t dim : dims) sizes.push_back(t.sym_size(dim));
}

Tensor permuted(const Tensor& t, const Dims& order) {
  return std::is_sorted(order.begin(), order.end()) ? t : t.permute(order);
}

// One factor as a matrix, or a batch of matrices. XLA:CPU has no dot of bfloat16 factors into
// float32 with several contracting dimensions or with a batch dimension that does not lead.
struct Factor {
  Factor(const Tensor& t, at::IntArrayRef contracting, at::IntArrayRef batch)
      : free(others(t.dim(), contracting, batch)) {
    const bool leads = batch.empty() || (batch.size() == 1 && batch[0] == 0);
    if (leads && contracting.size() == 1 && free.size() == 1) {
      matrix = t;
      contracted = contracting[0];
      return;
    }
    Dims order(batch.begin(), batch.end());
    order.insert(order.end(), contracting.begin(), contracting.end());
    order.insert(order.end(), free.begin(), free.end());
    Sizes sizes;
    if (!batch.empty()) sizes.push_back(size_of(t, batch));
    sizes.push_back(size_of(t, contracting));
    sizes.push_back(size_of(t, free));
    contracted = static_cast<int64_t>(sizes.size()) - 2;
    matrix = permuted(t, order).reshape_symint(sizes);
  }

  Tensor matrix;
  int64_t contracted = 0;
  const Dims free;  // dimensions of the tensor that it was made of
};

Tensor float_dot(const Factor& lhs, const Factor& rhs, bool batched) {
  const Dims batch(batched ? 1 : 0, 0);
  return recorded_if_wanted([&] {
    return ::castoff::dot_general(lhs.matrix, rhs.matrix, {lhs.contracted}, {rhs.contracted}, batch,
                                  ScalarType::Float);
  });
}

}  // namespace

Tensor contract(const Tensor& lhs, const Tensor& rhs, at::IntArrayRef lhs_contracting,
                at::IntArrayRef rhs_contracting, at::IntArrayRef lhs_batch,
                at::IntArrayRef rhs_batch) {
  if (lhs.scalar_type() != rhs.scalar_type()) {  // the gradient of a product of weights is wide
    return contract(to_float(lhs), to_float(rhs), lhs_contracting, rhs_contracting, lhs_batch,
                    rhs_batch);
  }
  const Factor left(lhs, lhs_contracting, lhs_batch), right(rhs, rhs_contracting, rhs_batch);
  const Tensor product = float_dot(left, right, !lhs_batch.empty());
  if (lhs_batch.size() <= 1 && left.free.size() == 1 && right.free.size() == 1) return product;
  Sizes sizes;
  append_sizes(sizes, lhs, lhs_batch);
  append_sizes(sizes, lhs, left.free);
  append_sizes(sizes, rhs, right.free);
  return product.reshape_symint(sizes);
}

// ---- registration

namespace {

torch::Library& kernels() {
  static auto& library = ::castoff::library(torch::Library::IMPL, "aten", DispatchKey::AutogradXLA);
  return library;
}

void install() {
  torch::Library& library = kernels();
  register_matmuls(library);
  register_einsum(library);
  register_embedding(library);
  register_convolution(library);
  register_pointwise(library);
  register_batch_norm(library);
}

}  // namespace
}  // namespace torch_xla::wide_weight_grad

// Puts the kernels in place; nullptr, or what went wrong. Call it once, with what torch's topic
// grad-dtype exports.
extern "C" __attribute__((visibility("default"))) const char* castoff_wide_weight_grad_install(
    const std::atomic<int64_t>* tensors_in_use, int (*over_edge)(const torch::autograd::Edge*),
    const char* (*declare)(c10::TensorImpl*, int)) {
  return castoff::put_in_place([&] {
    torch_xla::wide_weight_grad::grad_dtypes = {tensors_in_use, over_edge, declare};
    torch_xla::wide_weight_grad::install();
  });
}

// Puts those of functions of weights in place, of which a process without a grad_dtype has none.
extern "C" __attribute__((visibility("default"))) const char* castoff_wide_functions_install() {
  return castoff::put_in_place([&] {
    torch_xla::wide_weight_grad::register_functions(torch_xla::wide_weight_grad::kernels());
  });
}
