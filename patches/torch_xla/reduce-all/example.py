"""The scale of a quantization: the largest absolute value of a tensor."""

import torch
import torch_xla
from ir_text import ir

x = torch.randn(2, 3).to(torch_xla.device())
# README: begin
scale = x.abs().amax()
print(scale.shape)
# README: end
print(ir(scale))
