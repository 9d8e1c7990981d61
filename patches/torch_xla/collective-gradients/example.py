"""Tokens that another rank of experts gets, and their gradient."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm

tokens = torch.ones(2, 4, device=torch_xla.device(), requires_grad=True)
# README: begin
got = xm.all_to_all(tokens, split_dimension=0, concat_dimension=1, split_count=1)
got.square().sum().backward()
print(tokens.grad is not None)
# README: end
