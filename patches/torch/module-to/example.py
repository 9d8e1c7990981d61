"""An embedding and a head with one weight, moved to XLA, and an optimizer that was made before."""

import torch
import torch_xla

# README: begin
embed, head = torch.nn.Embedding(3, 2), torch.nn.Linear(2, 3, bias=False)
head.weight = embed.weight
model = torch.nn.Sequential(embed, head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = embed.weight.detach().clone()

model.to("xla")
model(torch.tensor([0, 1]).to("xla")).sum().backward()
optimizer.step()
torch_xla.sync()
print("tied:", head.weight is embed.weight)
print("trained:", not torch.equal(embed.weight.cpu(), before))
# README: end
