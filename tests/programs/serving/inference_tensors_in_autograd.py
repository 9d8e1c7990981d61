"""A tensor of inference_mode is refused by autograd, and its clone is not."""

import torch


def program(device):
    w = torch.ones(3).to(device).requires_grad_()
    with torch.inference_mode():
        x = torch.ones(3).to(device) * 2
    (w * x.clone()).sum().backward()
    try:
        (w * x).sum().backward()
    except RuntimeError as error:
        return w.grad, "Inference tensors" in str(error)
    return w.grad, False
