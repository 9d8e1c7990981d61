"""What tests of several topics make gradients with."""

import torch

__all__ = ["Narrow", "Wide", "backward_graphs_to", "compiled_autograd"]


class Wide(torch.autograd.Function):
    """A float32 gradient of 1.01 times the incoming one, whatever the dtype of its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.float().sum()

    @staticmethod
    def backward(ctx, grad):
        return torch.full(ctx.shape, 1.01, device=grad.device) * grad


class Narrow(torch.autograd.Function):
    """Twice its input, with a gradient in the dtype of the incoming one, which is that of the output."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def backward_graphs_to(compiler, **options):
    """A context in which ``compiler`` is handed the graph of a backward pass, and returns what is run."""
    from torch._dynamo import compiled_autograd as implementation

    return implementation._enable(compiler, **options)


def compiled_autograd(backend):
    """A context in which backward passes are compiled by ``backend``."""
    return backward_graphs_to(lambda graph: torch.compile(graph, backend=backend))
