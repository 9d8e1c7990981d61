"""What is on the CPU beside tensors of the device: arithmetic sends it, products and concatenations raise."""

import torch


def program(device):
    x = torch.tensor([[1.0, -2.0], [3.0, 4.0]]).to(device)
    other = torch.tensor([[0.5, 2.0], [1.0, -1.0]])
    sent = x + other, other * x, x - other, x / other, x.clone().add_(other), x[torch.tensor([1, 0])]
    is_refused = []
    for call in (lambda: x @ other, lambda: torch.cat([x, other]), lambda: torch.clamp(x, -x.abs(), other)):
        try:
            call()
            is_refused.append(device.type == "cpu")  # where all is on one device
        except RuntimeError:
            is_refused.append(True)
    return sent, is_refused, torch.bucketize(x, other[0]), x // other
