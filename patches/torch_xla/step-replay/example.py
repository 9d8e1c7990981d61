"""How often ten steps are traced."""

import torch
import torch_xla

torch.manual_seed(0)
model = torch.nn.Linear(4, 2).to(torch_xla.device())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 4).to(torch_xla.device())
torch_xla.sync()


def step(x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


# README: begin
model.register_forward_hook(lambda *_: print("traced", end=" "))
try:
    step = torch_xla.replay(step)
except AttributeError as error:
    print(error)
for _ in range(10):
    loss = step(x)
    torch_xla.sync()
print(f"loss {loss.item():.3f}")
# README: end
