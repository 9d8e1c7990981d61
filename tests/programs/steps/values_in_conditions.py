"""Python reads values of the device: item, bool, tolist, comparisons, formatting."""

import torch


def program(device):
    x = torch.tensor([1.5, -2.0]).to(device)
    text = f"{x.sum():.2f} {x[0].item()} {x.tolist()} {bool(x[0] > 0)} {len(x)}"
    return text, [int(i) for i in torch.arange(3, device=device)], x.max().item() if x.any() else None, 2.0 in x
