#include <torch_xla/csrc/castoff/wide_weight_grad.h>

#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>

namespace torch_xla::wide_weight_grad {
namespace {

// Saves the indices.
class WideEmbedding final : public Formula {
 public:
  std::string name() const override { return "WideEmbeddingBackward0"; }

  c10::SymInt rows;
  c10::SymInt padding_idx;
  bool scale_grad_by_freq = false;

  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    if (!wants.any[0]) return;
    results[0] = at::_ops::embedding_dense_backward::call(
        wants.wide[0] ? to_float(grad) : grad, saved[0], rows, padding_idx, scale_grad_by_freq);
  }
  std::vector<c10::IValue> constants() const override {
    return {rows.guard_int(__FILE__, __LINE__), padding_idx.guard_int(__FILE__, __LINE__),
            scale_grad_by_freq};
  }
};

Tensor embedding(DispatchKeySet keys, const Tensor& weight, const Tensor& indices,
                 c10::SymInt padding_idx, bool scale_grad_by_freq, bool sparse) {
  if (!in_use() || sparse || !is_wide(weight) || has_forward_gradient(weight)) {
    return Overridden<at::_ops::embedding>::call(keys, weight, indices, padding_idx,
                                                 scale_grad_by_freq, sparse);
  }
  auto formula = std::make_shared<WideEmbedding>();
  formula->rows = weight.sym_size(0);
  formula->padding_idx = padding_idx;
  formula->scale_grad_by_freq = scale_grad_by_freq;
  const auto node = make_node(std::move(formula), weight);
  node->save(indices);
  return record(node, [&] {
    return at::_ops::embedding::redispatch(keys & c10::after_autograd_keyset, weight, indices,
                                           padding_idx, scale_grad_by_freq, sparse);
  });
}

}  // namespace

void register_embedding(torch::Library& library) {
  override_kernel<at::_ops::embedding>(library, TORCH_FN(embedding));
}

}  // namespace torch_xla::wide_weight_grad
