"""One operation with two factors; the second gives back the shape it got."""

import torch
import torch_xla

device = torch_xla.device()
# README: begin
x = torch.ones(1, 9, 2, 2).to(device)
print(torch.pixel_shuffle(x, 3).shape)
print(torch.pixel_shuffle(x, 1).shape)
# README: end
