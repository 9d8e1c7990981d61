"""Programs: scan."""

import torch
from torch import _higher_order_ops as higher_order
from torch import nn


def _recurrence(carry, pair):
    a, b = pair
    carry = a * carry + b
    return carry, carry.clone()


def associative(device):
    """A prefix product by scan of pairs, as recurrences of state-space models are."""
    a, b = torch.rand(6, 2).to(device), torch.randn(6, 2).to(device)
    start = torch.zeros(2).to(device)
    if device.type == "xla":
        from torch_xla.experimental.scan import scan

        return scan(_recurrence, start, (a, b))
    ys = []
    for pair in zip(a, b, strict=True):
        start, y = _recurrence(start, pair)
        ys.append(y)
    return start, torch.stack(ys)


def _decayed(carry, x):
    carry = carry * 0.5 + x
    return carry, carry.tanh()


def cumulative_sum(device):
    """torch_xla's scan of a carry and its results, with gradients."""
    start, xs = torch.zeros(3).to(device).requires_grad_(), torch.randn(4, 3).to(device).requires_grad_()
    if device.type == "xla":
        from torch_xla.experimental.scan import scan

        carry, ys = scan(_decayed, start, xs)
    else:
        carry, ys = start, []
        for x in xs:
            carry, y = _decayed(carry, x)
            ys.append(y)
        ys = torch.stack(ys)
    (carry.sum() + ys.square().sum()).backward()
    return carry, ys, start.grad, xs.grad


def layers(device):
    """scan_layers over equal layers: values and gradients of a loop."""
    layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()) for _ in range(3)).to(device)
    x = torch.randn(2, 4).to(device).requires_grad_()
    if device.type == "xla":
        from torch_xla.experimental.scan_layers import scan_layers

        out = scan_layers(layers, x)
    else:
        out = x
        for layer in layers:
            out = layer(out)
    out.square().sum().backward()
    return out, x.grad, [p.grad for p in layers.parameters()]


def layers_in_evaluation(device):
    """scan_layers with dropout in evaluation mode, under no_grad."""
    layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(2)).to(device).eval()
    x = torch.randn(8, 4).to(device)
    with torch.no_grad():
        if device.type == "xla":
            from torch_xla.experimental.scan_layers import scan_layers

            return scan_layers(layers, x)
        for layer in layers:
            x = layer(x)
        return x


def layers_with_dropout(device):
    """scan_layers over layers with dropout, in training and under no_grad."""
    layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(2)).to(device)
    x = torch.randn(8, 4).to(device)
    if device.type == "xla":
        from torch_xla.experimental.scan_layers import scan_layers

        def call(x):
            return scan_layers(layers, x)
    else:

        def call(x):
            for layer in layers:
                x = layer(x)
            return x

    with torch.no_grad():
        quiet = call(x)
    out = call(x)
    out.sum().backward()
    return quiet.shape, bool((out == 0).any()), bool((out != 0).any()), layers[0][0].weight.grad is not None


def while_loop(device):
    """while_loop that counts and multiplies (pytorch/xla#8566)."""
    limit, x = torch.tensor(4).to(device), torch.ones(3).to(device)
    count = torch.tensor(0).to(device)
    if device.type == "xla":
        import torch_xla.experimental.fori_loop

        assert torch_xla.experimental.fori_loop is not None
    else:
        for _ in range(4):
            count, x = count + 1, x * 2
        return count, x
    _, count, x = higher_order.while_loop(
        lambda n, c, x: c < n, lambda n, c, x: (n.clone(), c + 1, x * 2), (limit, count, x)
    )
    return count, x


def while_loop_with_captured_tensor(device):
    """while_loop whose body has a tensor from outside (pytorch/xla#7665)."""
    count, x, w = torch.tensor(0).to(device), torch.ones(3).to(device), torch.tensor([1.0, 2.0, 3.0]).to(device)
    if device.type == "cpu":
        return count + 3, x * w**3
    import torch_xla.experimental.fori_loop

    assert torch_xla.experimental.fori_loop is not None
    return higher_order.while_loop(lambda c, x: c < 3, lambda c, x: (c + 1, x * w), (count, x))


def while_loop_with_unused_carry(device):
    """while_loop with a carry that its body passes on and does not use (pytorch/xla#7839)."""
    count, x, unused = torch.tensor(0).to(device), torch.ones(3).to(device), torch.full((2,), 5.0).to(device)
    if device.type == "cpu":
        return count + 3, x * 8, unused
    import torch_xla.experimental.fori_loop

    assert torch_xla.experimental.fori_loop is not None
    return higher_order.while_loop(lambda c, x, u: c < 3, lambda c, x, u: (c + 1, x * 2, u.clone()), (count, x, unused))


def _counted(carry, x):
    total, steps, active = carry
    total = torch.where(active, total + x, total)
    return (total, steps + active.long(), active & (total < 2)), (total, active)


def until_a_bound(device):
    """A scan that carries counts and masks beside sums, and returns masks, as halting and beam search do."""
    start = torch.zeros(3).to(device), torch.zeros(3, dtype=torch.int64).to(device), torch.ones(3).bool().to(device)
    xs = torch.rand(6, 3).to(device).requires_grad_()
    if device.type == "xla":
        from torch_xla.experimental.scan import scan

        carry, (totals, active) = scan(_counted, start, xs)
    else:
        carry, ys = start, []
        for x in xs:
            carry, y = _counted(carry, x)
            ys.append(y)
        totals, active = (torch.stack(y) for y in zip(*ys, strict=True))
    (carry[0].sum() + totals.square().sum()).backward()
    return carry, totals, active, xs.grad
