"""A loop of three iterations whose body adds a tensor of its own."""

import torch
import torch_xla
import torch_xla.experimental.fori_loop
from ir_text import ir
from torch._higher_order_ops.while_loop import while_loop

device = torch_xla.device()
count, x, c = (torch.tensor(v).to(device) for v in (3, 0.0, 5.0))
torch_xla.sync()
# README: begin
try:
    _, total = while_loop(lambda i, x: i > 0, lambda i, x: (i - 1, x + c), (count, x))
except RuntimeError as error:
    print(str(error).split(";")[0])
else:
    print(ir(total), end="")  # on stock wheels the total is 15 or 5, from run to run
# README: end
