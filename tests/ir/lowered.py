"""How tests of topic on-device run their programs."""

import torch
import torch_xla
from torch.utils._pytree import tree_leaves
from torch_xla.debug import metrics


def on_the_device(program):
    """What ``program`` returns, which no operator may have left the device for."""
    torch_xla.sync()
    metrics.clear_all()
    found = program()
    assert metrics.executed_fallback_ops() == []
    return found


def on_the_cpu(results):
    """The tensors of results on the CPU; what is on XLA is computed in one graph."""
    tensors = [t.detach() for t in tree_leaves(results)]
    return tensors if tensors[0].device.type == "cpu" else torch_xla._XLAC._xla_get_cpu_tensors(tensors)


def with_gradient(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    (grad,) = torch.autograd.grad(y, x, torch.cos(torch.arange(y.numel(), device=x.device).reshape(y.shape)).to(y))
    return y.detach(), grad
