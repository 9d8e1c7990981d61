"""What is written to an expanded tensor, whose rows are one and the same memory, is refused."""

import torch
import torch_xla

device = torch_xla.device()
# README: begin
rows = torch.zeros(1, 3, device=device).expand(2, 3)
try:
    print(rows.add_(1).tolist())
except RuntimeError as error:
    print(str(error).split(". ")[0])
# README: end
