"""while_loop with a carry that its body passes on and does not use (pytorch/xla#7839)."""

import torch
from torch._higher_order_ops.while_loop import while_loop


def program(device):
    count, x, unused = torch.tensor(0).to(device), torch.ones(3).to(device), torch.full((2,), 5.0).to(device)
    if device.type == "cpu":
        return count + 3, x * 8, unused
    import torch_xla.experimental.fori_loop

    assert torch_xla.experimental.fori_loop is not None
    return while_loop(lambda c, x, u: c < 3, lambda c, x, u: (c + 1, x * 2, u.clone()), (count, x, unused))
