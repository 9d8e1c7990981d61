"""The running variance after one batch of two numbers, 0 and 2."""

import torch
import torch_xla

device = torch_xla.device()
# README: begin
norm = torch.nn.BatchNorm1d(1, momentum=1.0).to(device)
norm(torch.tensor([[0.0], [2.0]], device=device))
print(norm.running_var.tolist())
# README: end
