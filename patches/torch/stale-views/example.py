"""A view of a parameter that a hand-written optimizer has changed."""

import torch
import torch_xla

parameter = torch.ones(4, device=torch_xla.device())
torch_xla.sync()
# README: begin
parameter.detach().add_(1)
rows = parameter.view(2, 2)
torch_xla.sync(wait=True)
try:
    column = parameter.unsqueeze(1)
    torch_xla.sync(wait=True)
    print(rows.tolist(), column.tolist())
except RuntimeError as error:
    print(str(error).splitlines()[0])
# README: end
