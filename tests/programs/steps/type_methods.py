"""type(), type_as, to(other), new_ methods, and like-functions keep device and dtype."""

import torch


def program(device):
    x, y = torch.ones(2, dtype=torch.bfloat16).to(device), torch.zeros(1, dtype=torch.int64).to(device)
    results = [x.type_as(y), x.to(y), x.new_zeros(2), x.new_tensor([1, 2]), y.new_full((2,), 7), torch.ones_like(x)]
    results += [torch.zeros_like(y, dtype=torch.float32), x.float().double(), x.long(), x.new_ones(1, dtype=torch.bool)]
    return results, [r.device.type == device.type for r in results]
