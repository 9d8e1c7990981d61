"""Under autocast: a sum of a bfloat16 tensor, and attention of float32 tensors."""

import torch
import torch.nn.functional as F
import torch_xla

device = torch_xla.device()
# README: begin
x = torch.full((4096,), 0.1).bfloat16().to(device)
q = torch.zeros(1, 2, 8, 4, device=device)
with torch.autocast("xla"):
    print(x.sum().dtype, x.exp().dtype, F.layer_norm(x, (4096,)).dtype)
    print(F.scaled_dot_product_attention(q, q, q).dtype)
# README: end
