"""A position in a large tensor, divided by three."""

import torch
import torch_xla

x = torch.tensor([100000001]).to(torch_xla.device())
# README: begin
print((x // 3).item(), torch.div(x, 3, rounding_mode="trunc").item())
# README: end
