"""A convolution of bfloat16 tensors that returns float32, through pytorch#103333's out_dtype."""

import torch
import torch_xla
from ir_text import ir

device = torch_xla.device()
image = torch.randn(8, 3, 32, 32).bfloat16().to(device)
weight = torch.randn(16, 3, 3, 3).bfloat16().to(device)
torch_xla.sync()
# README: begin
result = torch.ops.higher_order.out_dtype(torch.ops.aten.conv2d.default, torch.float32, image, weight)
# README: end
print(ir(result))
