"""A cast of the autograd engine, which no operator shows."""

import torch

w = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
x = torch.ones(3)
# README: begin
loss = (w * x).sum()  # w is bfloat16, x float32
try:
    with torch.autograd.graph.record_implicit_casts() as casts:
        loss.backward()
except AttributeError as error:
    print(error)
else:
    for cast in casts:
        print(cast.produced_by, cast.from_dtype, "->", cast.to_dtype, cast.demanded_by)
# README: end
