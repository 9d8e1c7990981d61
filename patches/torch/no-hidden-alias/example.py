"""Labels made from token ids by a shift, then masked in place: the ids must stay."""

import torch
import torch_xla
from ir_text import ir

ids = torch.arange(8).reshape(2, 4).to(torch_xla.device())
# README: begin
labels = ids[:, 1:].contiguous()
labels.fill_(-100)
print(ir(ids))
# README: end
