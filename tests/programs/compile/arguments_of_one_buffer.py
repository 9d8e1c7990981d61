"""A compiled function of a target network and the network that it was copied from, which trains on"""

import torch


def program(device):
    backend = "openxla" if device.type == "xla" else "eager"
    network, target = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    for number, parameter in enumerate(network.parameters()):
        torch.nn.init.constant_(parameter, number + 0.5)
    network, target = network.to(device), target.to(device)
    with torch.no_grad():
        for mine, its in zip(target.parameters(), network.parameters(), strict=True):
            mine.copy_(its)
    both = torch.compile(lambda x: (network(x), target(x)), backend=backend)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x = torch.arange(6.0).view(2, 3).to(device)
    results = []
    for _ in range(3):
        online, fixed = both(x)
        results += [online, fixed]
        optimizer.zero_grad()
        (online - fixed.detach() - 1).square().sum().backward()
        optimizer.step()
    return results, list(network.parameters())
