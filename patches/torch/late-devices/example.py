"""A backward on the CPU, and then the first use of XLA."""

import torch

# README: begin
weight = torch.ones(2, requires_grad=True)
weight.sum().backward()

import torch_xla  # noqa: E402 - after the backward

weight = torch.ones(2, requires_grad=True, device=torch_xla.device())
try:
    weight.sum().backward()
    print(weight.grad.cpu())
except RuntimeError as error:
    print(str(error).split(" INTERNAL ASSERT")[0])
# README: end
