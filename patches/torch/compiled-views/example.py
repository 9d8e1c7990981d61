"""Two slices of a cache, which a compiled function writes to."""

import torch
import torch_xla

# README: begin
cache = torch.zeros(2, 3, device=torch_xla.device())


@torch.compile(backend="openxla")
def write(cache, row):
    row.add_(1)
    return cache * 1


print(write(cache, cache[1]).tolist())
# README: end
