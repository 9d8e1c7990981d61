"""Programs: compile."""

import torch
import torch.nn.functional as F
from options import options
from torch import nn


def _keep(state, new):
    state.copy_(new)


def _exchange(a, b):
    before = a.clone()
    a.copy_(b)
    b.copy_(before)


def argument_copied_to_another(device):
    """Compiled functions that copy one argument to another: a target network, a state, and an exchange of the two"""
    backend = "openxla" if device.type == "xla" else "eager"
    state, new = torch.zeros(2, 3).to(device), torch.arange(6.0).view(2, 3).to(device)
    torch.compile(_keep, backend=backend)(state, new)
    new.add_(1)
    other = torch.full((2, 3), 7.0).to(device)
    torch.compile(_exchange, backend=backend)(new, other)
    network, target = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    for number, parameter in enumerate([*network.parameters(), *target.parameters()]):
        torch.nn.init.constant_(parameter, number)
    network, target = network.to(device), target.to(device)

    @torch.compile(backend=backend)
    def update():
        with torch.no_grad():
            for mine, its in zip(target.parameters(), network.parameters(), strict=True):
                mine.copy_(its)

    update()
    return state, new, other, list(target.parameters()), target(state)


def arguments_of_one_buffer(device):
    """A compiled function of a target network and the network that it was copied from, which trains on"""
    backend = "openxla" if device.type == "xla" else "eager"
    network, target = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    for number, parameter in enumerate(network.parameters()):
        torch.nn.init.constant_(parameter, number + 0.5)
    network, target = network.to(device), target.to(device)
    with torch.no_grad():
        for mine, its in zip(target.parameters(), network.parameters(), strict=True):
            mine.copy_(its)
    both = torch.compile(lambda x: (network(x), target(x)), backend=backend)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x = torch.arange(6.0).view(2, 3).to(device)
    results = []
    for _ in range(3):
        online, fixed = both(x)
        results += [online, fixed]
        optimizer.zero_grad()
        (online - fixed.detach() - 1).square().sum().backward()
        optimizer.step()
    return results, list(network.parameters())


class _Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        return self.norm(x)


def buffers_of_a_module(device):
    """A compiled module whose forward changes a buffer: batch norm in training, and a counter."""
    model = _Counted().to(device)
    call = torch.compile(model, backend="openxla") if device.type == "xla" else model
    outs = [call(torch.randn(6, 3).to(device)) for _ in range(2)]
    return outs, model.calls, model.norm.running_mean, model.norm.running_var


@torch.library.custom_op("programs::fill", mutates_args={"x"})
def _fill(x: torch.Tensor, value: float) -> None:
    x.fill_(value)


def custom_operator_that_mutates(device):
    """A custom operator that writes to its argument, in a compiled function."""

    def call(x):
        _fill(x, 3.0)
        return x * 2

    compiled = torch.compile(call, backend="openxla") if device.type == "xla" else call
    x = torch.zeros(3).to(device)
    return compiled(x), x


def detached_argument_is_returned(device):
    """Compiled functions that return an argument as it is, detached, and beside other results"""
    hidden = torch.arange(6.0).view(2, 3).to(device)
    backend = "openxla" if device.type == "xla" else "eager"
    with_others = torch.compile(lambda x: (x * 2, x.detach(), x), backend=backend)
    alone = torch.compile(lambda x: (x.detach(), x), backend=backend)
    doubled, detached, same = with_others(hidden)
    detached.add_(1)
    again = with_others(hidden)
    return doubled, detached, same, hidden, again, alone(hidden), same is hidden


def _branch(x):
    y = x * 2
    if y.sum() > 0:
        y = y - 1
    total = y.sum().item()
    return y * total


def graph_breaks(device):
    """A compiled function with a condition on a value and a print: dynamo breaks its graph there."""
    call = torch.compile(_branch, backend="openxla") if device.type == "xla" else _branch
    return call(torch.ones(3).to(device)), call(-torch.ones(3).to(device))


def _add_one(x):
    x.add_(1)
    return x.t(), x[0]


def in_place_input(device):
    """A compiled function that changes its input and returns another view of it."""
    x = torch.arange(6.0).view(2, 3).to(device)
    call = torch.compile(_add_one, backend="openxla") if device.type == "xla" else _add_one
    a, b = call(x)
    call(x)
    return x, a.clone(), b.clone()


def inference_mode(device):
    """A compiled model under inference_mode, as serving code calls it."""
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)).to(device).eval()
    call = torch.compile(model, backend="openxla") if device.type == "xla" else model
    with torch.inference_mode():
        return call(torch.ones(3, 4).to(device)), call(torch.zeros(3, 4).to(device))


def linear_and_gelu(device):
    """A compiled module, forward and backward, called with two shapes."""
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
    call = torch.compile(model, backend="openxla") if device.type == "xla" else model
    outs = []
    for rows in (2, 5, 2):
        out = call(torch.ones(rows, 4).to(device))
        out.square().sum().backward()
        outs.append(out)
    return outs, [p.grad for p in model.parameters()]


def optimizer_step(device):
    """A compiled training step with the optimizer in it."""
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(3, 4).to(device)

    def step():
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    call = torch.compile(step, backend="openxla") if device.type == "xla" else step
    return [call() for _ in range(3)], list(model.parameters())


def _drop(x):
    return F.dropout(x, 0.5, training=True)


def random_numbers(device):
    """Dropout in a compiled function draws other numbers in each call."""
    call = torch.compile(_drop, backend="openxla") if device.type == "xla" else _drop
    x = torch.ones(200).to(device)
    a, b = call(x), call(x)
    kept = int((a > 0).sum())
    return bool((a != b).any()), 50 < kept < 150, float(a.max())


def _write_rows(cache, x):
    for row in range(4):
        cache[row].add_(x * (row + 1))
    return cache.sum()


def slices_of_one_cache(device):
    """A compiled function writes to four slices of one cache (pytorch/xla#8832)."""
    cache, x = torch.zeros(4, 3, device=device), torch.ones(3, device=device)
    call = torch.compile(_write_rows, backend="openxla") if device.type == "xla" else _write_rows
    total = call(cache, x)
    return total, cache


def _double_transposed(a):
    b = a.t()
    b.mul_(2.0)
    return b


def transpose_in_place(device):
    """A compiled function that writes to a transposed view of its input (pytorch/xla#5179)."""
    call = torch.compile(_double_transposed, backend="openxla") if device.type == "xla" else _double_transposed
    x = torch.arange(6.0).view(2, 3).to(device)
    return call(x), x


def _write_views(a, b):
    a.mul_(2)
    b.add_(a.sum())
    return a + b


def two_views_as_arguments(device):
    """A compiled function of two views of one tensor, which it writes to (pytorch/xla#8832)."""
    base = torch.arange(6.0).to(device)
    call = torch.compile(_write_views, backend="openxla") if device.type == "xla" else _write_views
    return call(base[:3], base[3:]), base


def _multiply(x, w):
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return torch.nn.functional.linear(x, w)


@options(tolerance=3e-2)
def under_autocast(device):
    """A compiled function with autocast in it (pytorch/xla#6511)."""
    call = torch.compile(_multiply, backend="openxla") if device.type == "xla" else _multiply
    return call(torch.randn(3, 4).to(device), torch.randn(5, 4).to(device))


def bits_of_numbers(device):
    """view(dtype) in a compiled function: signs are cleared, and numbers packed into bytes and back."""

    def packed(x):
        magnitude = (x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32)
        return magnitude, x.bfloat16().view(torch.uint8).view(torch.bfloat16) * 2

    compiled = torch.compile(packed, backend="openxla" if device.type == "xla" else "eager")
    return compiled(torch.randn(3, 4).to(device))


def dropout_of_a_tenth(device):
    """Dropout in a compiled function scales what it keeps by 1 / (1 - p), in the gradient, too."""
    compiled = torch.compile(lambda x: F.dropout(x, 0.1), backend="openxla" if device.type == "xla" else "eager")
    x = torch.ones(4000).to(device).requires_grad_()
    y = compiled(x)
    y.sum().backward()
    return y.max(), x.grad.max(), (y.mean() - 1).abs() < 0.05


def sizes_that_change(device):
    """A compiled function with dynamic=True, of batches and sentences of several lengths, and its gradients"""
    backend = "openxla" if device.type == "xla" else "eager"
    torch.manual_seed(0)
    embedding, norm, project = (m.to(device) for m in (nn.Embedding(12, 8), nn.LayerNorm(8), nn.Linear(8, 8)))

    @torch.compile(backend=backend, dynamic=True)
    def attend(words):
        x = project(norm(embedding(words))).unflatten(-1, (2, 4)).transpose(1, 2)
        x = F.scaled_dot_product_attention(x, x, x, is_causal=True).transpose(1, 2).flatten(2)
        return project(x) @ embedding.weight.T

    results = []
    for batch, length in ((2, 3), (2, 5), (3, 7), (2, 3)):
        words = torch.arange(batch * length).remainder(12).view(batch, length).to(device)
        scores = attend(words)
        F.cross_entropy(scores.flatten(0, 1), words.flatten()).backward()
        results.append(scores)
    return results, [p.grad for m in (embedding, norm, project) for p in m.parameters()]


def recurrent_layers(device):
    """A compiled module of nn.GRU and nn.LSTM, and its gradients"""
    torch.manual_seed(0)
    gru, lstm = nn.GRU(4, 5, batch_first=True).to(device), nn.LSTM(5, 3, batch_first=True).to(device)
    compiled = torch.compile(lambda x: lstm(gru(x)[0] * 2), backend="openxla" if device.type == "xla" else "eager")
    x = torch.randn(2, 6, 4).to(device).requires_grad_()
    out, (hidden, cell) = compiled(x)
    out.square().sum().backward()
    return out, hidden, cell, x.grad, [p.grad for p in (*gru.parameters(), *lstm.parameters())]


def scan_of_layers(device):
    """scan_layers and scan within a compiled function, and the gradients"""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)

    def on_xla(x):
        from torch_xla.experimental.scan import scan
        from torch_xla.experimental.scan_layers import scan_layers

        x = scan_layers(layers, x.sin())
        return scan(lambda carry, row: (carry + row, carry * row), torch.ones_like(x[0]), x)[1] + 1

    def on_cpu(x):
        x = x.sin()
        for layer in layers:
            x = layer(x)
        return (torch.cat([torch.zeros_like(x[:1]), x[:-1]]).cumsum(0) + 1) * x + 1

    x = torch.randn(3, 4).to(device).requires_grad_()
    out = torch.compile(on_xla, backend="openxla")(x) if device.type == "xla" else on_cpu(x)
    out.square().sum().backward()
    return out, x.grad, [p.grad for p in layers.parameters()]
