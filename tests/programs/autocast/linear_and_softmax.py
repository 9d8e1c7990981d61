"""Under autocast: dtypes of products, of softmax and of losses, forward and backward."""

import torch
import torch.nn.functional as F

TOLERANCE = 3e-2


def program(device):
    x, w = torch.randn(4, 8).to(device), torch.randn(5, 8).to(device).requires_grad_()
    labels = torch.tensor([0, 1, 2, 4]).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = F.linear(x, w)
        p = out.softmax(-1) if device.type == "xla" else out.float().softmax(-1)
        loss = F.cross_entropy(out.float(), labels)
    loss.backward()
    return str(out.dtype), str(p.dtype), loss, w.grad
