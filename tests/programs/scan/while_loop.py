"""while_loop that counts and multiplies (pytorch/xla#8566)."""

import torch
from torch._higher_order_ops.while_loop import while_loop


def program(device):
    limit, x = torch.tensor(4).to(device), torch.ones(3).to(device)
    count = torch.tensor(0).to(device)
    if device.type == "xla":
        import torch_xla.experimental.fori_loop

        assert torch_xla.experimental.fori_loop is not None
    else:
        for _ in range(4):
            count, x = count + 1, x * 2
        return count, x
    _, count, x = while_loop(lambda n, c, x: c < n, lambda n, c, x: (n.clone(), c + 1, x * 2), (limit, count, x))
    return count, x
