#include <torch/csrc/autograd/view_nodes.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/graph_task.h>

#include <typeindex>
#include <typeinfo>
#include <unordered_set>

namespace torch::autograd::grad_dtype {
namespace {

using Types = std::unordered_set<std::type_index>;

bool is_one_of(const Types& types, const Node& node) {
  return types.find(std::type_index(typeid(node))) != types.end();
}

// Every one views one tensor, in its dtype, and has a backward formula that takes gradients of any
// dtype. Those that make several views of it at once put the gradients of all together.
bool is_view(const Node& node) {
  using namespace generated;
  static const Types views{
      typeid(AliasBackward0),          typeid(AsStridedBackward0), typeid(DiagonalBackward0),
      typeid(ExpandBackward0),         typeid(PermuteBackward0),   typeid(ReshapeAliasBackward0),
      typeid(SelectBackward0),         typeid(SliceBackward0),     typeid(SplitBackward0),
      typeid(SplitWithSizesBackward0), typeid(SqueezeBackward0),   typeid(SqueezeBackward1),
      typeid(SqueezeBackward2),        typeid(TBackward0),         typeid(TransposeBackward0),
      typeid(UnbindBackward0),         typeid(UnfoldBackward0),    typeid(UnsafeViewBackward0),
      typeid(UnsqueezeBackward0),      typeid(ViewBackward0),      typeid(ViewBackward0_copy),
  };
  return node.num_outputs() == 1 && is_one_of(views, node);
}

// Whether a gradient dtype of its own is recorded there: grad_dtype.cpp marks it so.
bool is_declared(const Edge& edge) {
  return edge.function->input_metadata(edge.input_nr).options().has_requires_grad();
}

bool is_captured(Node& node) {
  if (get_current_graph_task_id() == -1) {
    return false;
  }
  const auto& wanted = *get_current_graph_task_exec_info();
  const auto found = wanted.find(&node);
  return found != wanted.end() && found->second.captures_ != nullptr;
}

bool is_observed(Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
         !node.pre_hooks().empty() || !node.post_hooks().empty() || is_captured(node);
}

}  // namespace

bool hands_on(const Node& node) {
  using namespace generated;
  static const Types exact{
      typeid(CatBackward0),           typeid(CloneBackward0), typeid(NegBackward0),
      typeid(SelectScatterBackward0), typeid(SubBackward0),   typeid(SliceScatterBackward0),
      typeid(StackBackward0),         typeid(SumBackward0),   typeid(SumBackward1),
      typeid(WhereBackward0),
  };
  if (const auto* sum = dynamic_cast<const AddBackward0*>(&node)) {
    return sum->alpha.equal(1);
  }
  return is_view(node) || is_one_of(exact, node);
}

const Edge* behind_views(const Edge& edge) {
  const Edge* at = &edge;
  for (int views = 0; at->function && is_view(*at->function) && !is_declared(*at); ++views) {
    if (views == kMostViews || is_observed(*at->function)) {
      return nullptr;
    }
    at = &at->function->next_edge(0);
  }
  return at->function ? at : nullptr;
}

}  // namespace torch::autograd::grad_dtype
