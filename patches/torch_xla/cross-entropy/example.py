"""The mean loss of four rows of three scores."""

import torch
import torch_xla
from ir_text import ir

scores = torch.randn(4, 3).to(torch_xla.device())
target = torch.tensor([0, 2, 1, 1]).to(torch_xla.device())
# README: begin
print(ir(torch.nn.functional.cross_entropy(scores, target)))
# README: end
