"""Compiled functions that copy one argument to another: a target network, a state, and an exchange of the two"""

import torch


def keep(state, new):
    state.copy_(new)


def exchange(a, b):
    before = a.clone()
    a.copy_(b)
    b.copy_(before)


def program(device):
    backend = "openxla" if device.type == "xla" else "eager"
    state, new = torch.zeros(2, 3).to(device), torch.arange(6.0).view(2, 3).to(device)
    torch.compile(keep, backend=backend)(state, new)
    new.add_(1)
    other = torch.full((2, 3), 7.0).to(device)
    torch.compile(exchange, backend=backend)(new, other)
    network, target = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    for number, parameter in enumerate([*network.parameters(), *target.parameters()]):
        torch.nn.init.constant_(parameter, number)
    network, target = network.to(device), target.to(device)

    @torch.compile(backend=backend)
    def update():
        with torch.no_grad():
            for mine, its in zip(target.parameters(), network.parameters(), strict=True):
                mine.copy_(its)

    update()
    return state, new, other, list(target.parameters()), target(state)
