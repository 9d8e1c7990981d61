"""Packing two sequences, of two steps and of one."""

import torch
import torch_xla
from ir_text import ir
from torch.nn.utils.rnn import pack_padded_sequence

x = torch.ones(2, 2, 3).to("xla")
torch_xla.sync()
# README: begin
packed = pack_padded_sequence(x, torch.tensor([2, 1]))
try:
    torch.nn.RNN(3, 3).to("xla")(packed)
except RuntimeError as error:
    print(str(error).split(".\n")[0])
print(ir(packed.data), end="")
# README: end
