"""A graph is run within a named part of the program."""

import torch
import torch_xla
from torch_xla.debug import profiler

ones = torch.ones(2, device="xla")
# README: begin
with profiler.Trace("forward"):
    twice = ones + ones
    try:
        torch_xla.sync()
        print(twice.tolist())
    except RuntimeError as error:
        print(error)
# README: end
