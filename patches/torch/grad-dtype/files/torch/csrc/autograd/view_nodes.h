#pragma once

// The nodes that hand a gradient on without computing with its values.

#include <torch/csrc/autograd/edge.h>

namespace torch::autograd::grad_dtype {

// The edge behind the views that start at `edge`: `edge` itself if it leads to no view, nullptr if
// one of the views must have its gradient in the dtype that it recorded.
//
// That is one with hooks, one whose tensor retains its gradient or is among the `inputs=` of the
// running backward: whoever looks at the gradient of a tensor finds it in the tensor's grad_dtype.
// Nor does a declaration travel over more than kMostViews of them.
const Edge* behind_views(const Edge& edge);

inline constexpr int kMostViews = 64;

// Whether `node` is a view, or one that moves the elements of a gradient, leaves some out or
// negates them: what it returns is rounded no more than what it was given.
bool hands_on(const Node& node);

}  // namespace torch::autograd::grad_dtype
