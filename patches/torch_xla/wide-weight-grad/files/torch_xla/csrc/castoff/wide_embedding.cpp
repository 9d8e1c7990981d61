#include <torch_xla/csrc/castoff/wide_weight_grad.h>

#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>

namespace torch_xla::wide_weight_grad {
namespace {

class WideEmbeddingBackward0 final : public WideNode {
 public:
  std::string name() const override { return "WideEmbeddingBackward0"; }

  SavedVariable indices;
  c10::SymInt rows;
  c10::SymInt padding_idx;
  bool scale_grad_by_freq = false;

 protected:
  void differentiate(const Tensor& grad, variable_list& results) override {
    const Tensor at = unpack(indices);
    if (!grad.defined() || !wants(0)) return;
    results[0] = at::_ops::embedding_dense_backward::call(wants_wide(0) ? to_float(grad) : grad, at,
                                                          rows, padding_idx, scale_grad_by_freq);
  }
  void release() override { indices.reset_data(); }
};

Tensor embedding(DispatchKeySet keys, const Tensor& weight, const Tensor& indices,
                 c10::SymInt padding_idx, bool scale_grad_by_freq, bool sparse) {
  if (!in_use() || sparse || !is_wide(weight) || has_forward_gradient(weight)) {
    return Previous<at::_ops::embedding>::call(keys, weight, indices, padding_idx,
                                               scale_grad_by_freq, sparse);
  }
  const auto node = make_node<WideEmbeddingBackward0>();
  node->set_next_edges(torch::autograd::collect_next_edges(weight));
  node->indices = save(indices);
  node->rows = weight.sym_size(0);
  node->padding_idx = padding_idx;
  node->scale_grad_by_freq = scale_grad_by_freq;
  return record(node, [&] {
    return at::_ops::embedding::redispatch(keys & c10::after_autograd_keyset, weight, indices,
                                           padding_idx, scale_grad_by_freq, sparse);
  });
}

}  // namespace

void register_embedding(torch::Library& library) {
  stand_before<at::_ops::embedding>(library, TORCH_FN(embedding));
}

}  // namespace torch_xla::wide_weight_grad
