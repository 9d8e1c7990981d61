"""A custom operator that writes to its argument."""

import torch
import torch_xla

# README: begin
library = torch.library.Library("example", "DEF")
library.define("scale_(Tensor(a!) x, float by) -> ()")


@torch.library.impl(library, "scale_", "CompositeExplicitAutograd")
def scale_(x, by):
    x.mul_(by)


x = torch.ones(3, device=torch_xla.device())
try:
    torch.ops.example.scale_(x[1:], 3.0)
    print(x.cpu())
except RuntimeError as error:
    print(str(error).split(": ")[0])
# README: end
