"""A linear layer in inference mode."""

import torch
import torch_xla
from ir_text import ir

linear = torch.nn.Linear(2, 3).to(torch_xla.device())
x = torch.ones(1, 2).to(torch_xla.device())
torch_xla.sync()
# README: begin
try:
    with torch.inference_mode():
        y = linear(x)
    print(ir(y), end="")
except RuntimeError as error:
    print(error)
# README: end
