"""while_loop whose body has a tensor from outside (pytorch/xla#7665)."""

import torch
from torch._higher_order_ops.while_loop import while_loop


def program(device):
    count, x, w = torch.tensor(0).to(device), torch.ones(3).to(device), torch.tensor([1.0, 2.0, 3.0]).to(device)
    if device.type == "cpu":
        return count + 3, x * w**3
    import torch_xla.experimental.fori_loop

    assert torch_xla.experimental.fori_loop is not None
    return while_loop(lambda c, x: c < 3, lambda c, x: (c + 1, x * w), (count, x))
