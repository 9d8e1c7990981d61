"""A backward through diag, and what it warns of."""

import warnings

import torch
import torch_xla
from ir_text import ir

x = torch.ones(2, 2, device="xla", requires_grad=True)
torch_xla.sync()
# README: begin
with warnings.catch_warnings(record=True) as caught:
    torch.diag(x).sum().backward()
print([str(warning.message).partition(" but ")[0] for warning in caught])
print(ir(x.grad), end="")
# README: end
