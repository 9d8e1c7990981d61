"""torch_xla's scan of a carry and its results, with gradients."""

import torch


def step(carry, x):
    carry = carry * 0.5 + x
    return carry, carry.tanh()


def program(device):
    start, xs = torch.zeros(3).to(device).requires_grad_(), torch.randn(4, 3).to(device).requires_grad_()
    if device.type == "xla":
        from torch_xla.experimental.scan import scan

        carry, ys = scan(step, start, xs)
    else:
        carry, ys = start, []
        for x in xs:
            carry, y = step(carry, x)
            ys.append(y)
        ys = torch.stack(ys)
    (carry.sum() + ys.square().sum()).backward()
    return carry, ys, start.grad, xs.grad
