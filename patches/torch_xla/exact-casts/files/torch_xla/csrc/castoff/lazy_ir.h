// Reading and rewriting the pending IR of XLA tensors from outside torch_xla.
//
// torch_xla ships no headers, but its tensors and IR nodes derive from torch::lazy's, whose headers
// torch ships. What those headers do not say about one build of torch_xla is known to lazy_ir.cpp
// alone. It serves only the builds that it was proven on, and those only after a self-test.

#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/lazy/core/ir.h>
#include <torch/csrc/lazy/core/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace castoff::lazy_ir {

using torch::lazy::Node;
using torch::lazy::NodePtr;
using torch::lazy::OpKind;
using torch::lazy::Output;
using torch::lazy::Value;
using Data = torch::lazy::LazyTensor::Data;

// xla::PrimitiveType, of which these are a part.
enum class ElementType : int32_t {
  kUnknown = 0,
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBF16 = 16,
  kC128 = 18,
  kF8E5M2 = 19,
  kF8E4M3FN = 20,
};

// Why this process's torch_xla is none of the builds that this is for; nullopt if it is one. The
// functions below are for such builds only, and for topics that asked before they were installed.
const std::optional<std::string>& refusal();

// Whether the self-test holds, on the device of this tensor. The first call makes it (a few small
// tensors whose IR is read; nothing is compiled or executed); a failure warns, once.
bool ready(const at::Tensor& tensor);

// What a tensor that torch_xla's own kernels get or return holds; nullptr for any other tensor. Its
// ir_value may be replaced by that of an equal value.
Data* data_of(const at::Tensor& tensor);

// The same of a tensor that somebody holds in Python, by its address there (Tensor._cdata).
Data* data_of(c10::TensorImpl* address);

// Lets tensors that have one Data together, and with no other, have the value of a buffer, which is
// of this dtype and these sizes, and returns the buffer that they had. nullptr, and nothing is
// changed, if that is not so, if one of them is not computed, is of another dtype or of other
// sizes, or on SPMD's virtual device, where tensors have a sharding besides.
torch::lazy::BackendDataPtr replace_value(std::initializer_list<at::Tensor> tensors,
                                          const torch::lazy::BackendDataPtr& buffer,
                                          at::ScalarType dtype, at::IntArrayRef sizes);

// What a tensor's next graph computes it by; an empty value if it has been computed, and if it may
// have a sharding.
Value unsharded_value(const at::Tensor& tensor);

// A node's i-th operand, as a value that owns it.
Value operand(const Node& node, size_t i);

// Lets a pending node, and all that reads it, have another operand, of an equal value, element type
// and sizes. The node's hash stays: graphs of one hash still compute the same.
void replace_operand(const Value& value, size_t i, const Value& operand);

// The element type of one output; kUnknown if it is none of the above.
ElementType element_type(const Output& output);

// The sizes of one output; nothing if one of them is not static. It reads a text: a microsecond.
std::optional<std::vector<int64_t>> static_sizes(const Output& output);

// A new tensor that holds the value, which is of the dtype of `like`, a tensor of torch_xla's.
at::Tensor tensor_of(const Value& value, const at::Tensor& like);

// The tensor cast to another dtype, by the IR of torch_xla's own cast. Undefined if
// torch_xla is to cast it: where it is computed already, on SPMD's virtual device, and where
// one of the dtypes is int64, complex or float8, and for a tensor of no dimension.
at::Tensor cast_of(const at::Tensor& tensor, at::ScalarType dtype);

// A node like this one, of other operands. Throws if torch_xla cannot copy such nodes.
NodePtr clone(const Node& node, const std::vector<Value>& operands);

// The output of a view node (aten::view, which clone() does not copy) of another value of the same
// sizes; an empty value if its sizes are not static. `like`: any tensor of torch_xla's of the
// value's dtype.
Value view_again(const Node& view, const Value& input, const at::Tensor& like);

// The value as a node of its own, whose annotations are not those of the node that made the value.
Value own_node(const Value& value, const at::Tensor& like);

// Whether the tensor's device is SPMD's virtual one, where nodes can have a sharding.
bool is_spmd(const Data& data);

// Whether somebody may have put more on this node than its operator and its operands say: a
// sharding, a dynamic dimension. `like`: as in view_again, of its operand's dtype.
bool is_annotated(const Node& node, const at::Tensor& like, bool spmd);

}  // namespace castoff::lazy_ir
