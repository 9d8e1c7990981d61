"""Programs: autograd."""

import torch
from options import options
from torch.func import hessian, jacfwd, jacrev, jvp, vjp


def across_devices(device):
    """A graph that crosses from the CPU to the device and back."""
    x = torch.randn(3, requires_grad=True)
    w = torch.randn(3).to(device).requires_grad_()
    y = (x.to(device) * w).cpu().exp()
    y.sum().backward()
    return x.grad, w.grad, x.grad.device.type, w.grad.device.type == device.type


def anomaly_and_nan(device):
    """Anomaly detection names the backward that made a NaN, by an error."""
    x = torch.tensor([0.0, 1.0]).to(device).requires_grad_()
    with torch.autograd.detect_anomaly(check_nan=True):
        y = (x.sqrt() * 0).sum()
        y.backward()
    return x.grad


@options(late=True)
def cpu_backward_first(device):
    """A backward on the CPU before the first use of XLA (pytorch/xla#4174)."""
    w = torch.ones(2, requires_grad=True)
    (w * 2).sum().backward()
    x = torch.ones(3).to(device).requires_grad_()
    (x * 3).sum().backward()
    return w.grad, x.grad


class _TopOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        value, index = x.max(1)
        ctx.save_for_backward(index, x)
        ctx.mark_non_differentiable(index)
        return value, index

    @staticmethod
    def backward(ctx, g, _):
        index, x = ctx.saved_tensors
        return torch.zeros_like(x).scatter(1, index[:, None], g[:, None])


def custom_function(device):
    """A custom Function with saved tensors, two results, one of them not differentiable."""
    x = torch.randn(3, 4).to(device).requires_grad_()
    value, index = _TopOne.apply(x)
    value.square().sum().backward()
    return value, index, x.grad


def expand_and_broadcast(device):
    """Gradients of broadcast operands are summed, of expanded views as well."""
    a, b = torch.randn(3, 1).to(device).requires_grad_(), torch.randn(4).to(device).requires_grad_()
    c = torch.randn(1).to(device).requires_grad_()
    ((a * b + c) * a.expand(3, 4)).sum().backward()
    return a.grad, b.grad, c.grad


def gradients_of_unused(device):
    """grad with allow_unused, materialized gradients, and inputs that were not reached."""
    a, b = (torch.ones(2).to(device).requires_grad_() for _ in range(2))
    loss = (a * 2).sum()
    none = torch.autograd.grad(loss, [a, b], allow_unused=True, retain_graph=True)
    zeros = torch.autograd.grad(loss, [a, b], materialize_grads=True)
    return none[0], none[1] is None, zeros, b.grad is None


def higher_order(device):
    """Hessians, Jacobians, and products with them."""
    x, v = torch.randn(3).to(device), torch.randn(3).to(device)

    def call(x):
        return (x**3).sum() + x.prod()

    def many(x):
        return torch.stack([x.sum(), x.prod(), x.exp().mean()])

    return hessian(call)(x), jacrev(many)(x), jacfwd(many)(x), jvp(many, (x,), (v,)), vjp(many, x)[1](v)


def hooks(device):
    """Hooks of tensors that change a gradient, retain_grad, and hooks after accumulation."""
    x = torch.ones(3).to(device).requires_grad_()
    seen = []
    x.register_hook(lambda g: g * 2)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    y = x * 3
    y.retain_grad()
    (y**2).sum().backward()
    (x * 1).sum().backward()
    return x.grad, y.grad, seen


def jvp_of_std(device):
    """Forward-mode derivatives of std, var, norm, softmax and logsumexp."""
    x, v = torch.randn(4).to(device), torch.randn(4).to(device)
    calls = (
        torch.std,
        torch.var,
        torch.linalg.vector_norm,
        lambda t: t.softmax(0),
        lambda t: t.logsumexp(0),
        torch.mean,
    )
    return [jvp(call, (x,), (v,)) for call in calls]


def retain_and_twice(device):
    """backward twice with retain_graph, and an error without."""
    x = torch.ones(3).to(device).requires_grad_()
    y = x.exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    first = x.grad.clone()
    try:
        y.backward()
    except RuntimeError:
        return first, "refused"
    return first, "accepted"


def saved_tensor_hooks(device):
    """Saved tensors are moved to the CPU and back by save_on_cpu, and packed by hooks."""
    x = torch.randn(4).to(device).requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        y = x.exp() * x.sin()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t.clone(), lambda t: t):
        z = y.square()
    z.sum().backward()
    return x.grad, len(packed) > 0
