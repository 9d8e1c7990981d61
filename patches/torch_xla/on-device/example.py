"""How many of a program's operators are handed to the CPU."""

import torch
import torch_xla.debug.metrics as metrics

x = torch.rand(1, 3, 4, 4).to("xla").requires_grad_()
metrics.clear_all()
# README: begin
y = torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
y.sum().backward()
print(metrics.executed_fallback_ops())
# README: end
