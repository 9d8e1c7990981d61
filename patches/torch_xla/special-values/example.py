"""An infinity under a bound, and as a divisor."""

import torch
import torch_xla

x = torch.tensor([-float("inf"), 5.5]).to(torch_xla.device())
# README: begin
print(x.clamp(max=0).tolist())
print((x[1] % float("inf")).item())
# README: end
