"""The largest magnitude as a norm, the gradient of elu at -1, and a row 1.3 times as long."""

import torch
import torch.nn.functional as F
import torch_xla

device = torch_xla.device()
# README: begin
print(torch.tensor([3.0, -7.0], device=device).norm(float("inf")).item())
x = torch.tensor([-1.0], device=device, requires_grad=True)
F.elu(x).backward()
print(x.grad.item())
row = torch.arange(5.0, device=device).view(1, 1, 1, 5)
print(F.interpolate(row, scale_factor=(1, 1.3)).flatten().tolist())
# README: end
