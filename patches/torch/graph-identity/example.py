"""Two programs that differ in the tensor that they add; the second gives 10.2 and 20.15."""

# README: begin
import torch
import torch_xla

device = torch_xla.device()
x, y = torch.tensor([2.0, 3.0]).to(device), torch.tensor([10.0, 20.0]).to(device)
print((x / y + x).cpu())
print((x / y + y).cpu())
# README: end
