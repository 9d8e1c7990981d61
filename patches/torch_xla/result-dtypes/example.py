"""Positions from a mask, and a comparison with the number that a bias was filled with."""

import torch
import torch_xla
from ir_text import ir

device = torch_xla.device()
# README: begin
mask = torch.tensor([[True, True, False, True]], device=device)
print(mask.cumsum(1).tolist())
bias = torch.full((2,), -1e9, dtype=torch.bfloat16, device=device)
print((bias == -1e9).tolist())
# README: end
print(ir(mask.cumsum(1)))
