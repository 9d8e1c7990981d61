"""What tests of several topics make gradients with."""

import torch

__all__ = ["Wide", "compiled_autograd"]


class Wide(torch.autograd.Function):
    """A float32 gradient of 1.01 times the incoming one, whatever the dtype of its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.float().sum()

    @staticmethod
    def backward(ctx, grad):
        return torch.full(ctx.shape, 1.01, device=grad.device) * grad


def compiled_autograd(backend):
    """A context in which backward passes are compiled by ``backend``."""
    from torch._dynamo import compiled_autograd as implementation

    return implementation._enable(lambda graph: torch.compile(graph, backend=backend))
