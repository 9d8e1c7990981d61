"""Attention of bfloat16 tensors, whose two products take them as they are."""

import torch
import torch_xla
from ir_text import ir
from torch.nn.functional import scaled_dot_product_attention

device = torch_xla.device()
q, k, v = (torch.randn(2, 8, 128, 64).bfloat16().to(device) for _ in range(3))
torch_xla.sync()
# README: begin
out = scaled_dot_product_attention(q, k, v)
# README: end
print(ir(out))
