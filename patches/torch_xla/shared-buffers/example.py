"""A target network starts as a copy of the model, and follows it."""

import torch
import torch_xla

model, target = (torch.full((3,), value).to(torch_xla.device()) for value in (1.0, 0.0))
target.copy_(model)
torch_xla.sync(wait=True)
# README: begin
target.lerp_(model + 1, 0.5)
torch_xla.sync(wait=True)
try:
    print(model.tolist())
except RuntimeError as error:
    print(str(error).splitlines()[0])
# README: end
