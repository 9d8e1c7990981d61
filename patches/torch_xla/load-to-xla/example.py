"""A checkpoint, loaded to the device."""

import io

import torch
import torch_xla

torch_xla.device()
# README: begin
file = io.BytesIO()
torch.save({"weight": torch.arange(4.0)}, file)
file.seek(0)
try:
    print(torch.load(file, map_location="xla")["weight"])
except RuntimeError as error:
    print(error)
# README: end
