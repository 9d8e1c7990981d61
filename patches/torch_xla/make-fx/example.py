"""The graph that make_fx records of a function of an XLA tensor, called with another tensor."""

import torch
import torch_xla
from torch.fx.experimental.proxy_tensor import make_fx

device = torch_xla.device()
# README: begin
graph = make_fx(lambda x: x * 2)(torch.ones(3, device=device))
print(graph(torch.full((3,), 5.0, device=device)).tolist())
# README: end
