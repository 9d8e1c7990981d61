"""Dropout of one element in 500, in bfloat16, and a seed set twice."""

import torch
import torch_xla

x = torch.ones(100_000, dtype=torch.bfloat16, device=torch_xla.device())
# README: begin
torch.manual_seed(0)
first = torch.nn.functional.dropout(x, 0.002)
torch.manual_seed(0)
second = torch.nn.functional.dropout(x, 0.002)
print((first == 0).any().item(), torch.equal(first, second))
# README: end
