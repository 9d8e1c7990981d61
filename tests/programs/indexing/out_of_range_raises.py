"""select, narrow and index_select out of range raise IndexError or RuntimeError, as on the CPU."""

import torch


def program(device):
    x = torch.arange(6).view(2, 3).to(device)
    said = []
    for call in (lambda: x[2], lambda: x.select(1, -4), lambda: x.narrow(0, 1, 2), lambda: x[:, 3]):
        try:
            call()
            said.append("nothing")
        except (IndexError, RuntimeError) as error:
            said.append(type(error).__name__)
    return said
