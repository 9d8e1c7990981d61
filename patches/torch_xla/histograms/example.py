"""How many tokens each of four experts gets."""

import torch
import torch_xla

experts = torch.tensor([0, 1, 1, 3, 1], dtype=torch.int32).to(torch_xla.device())
# README: begin
try:
    print(torch.histc(experts, bins=4, min=0, max=3).tolist())
except RuntimeError as error:
    print(str(error).splitlines()[0])
# README: end
