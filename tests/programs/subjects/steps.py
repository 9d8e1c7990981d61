"""Programs: steps."""

import copy
import os

import torch
from options import options
from torch import nn


def as_strided_of_a_slice(device):
    """Shapes of views, and as_strided of a slice (pytorch/xla#7859)."""
    x = torch.arange(24).view(2, 3, 4).to(device)
    views = [x, x.transpose(0, 2), x[:, 1:], x[1], x.expand(2, 3, 4), x[..., ::2]]
    return [v.shape for v in views], x[:, 1:].as_strided((2, 2), (4, 1))


def compiled_step_function(device):
    """torch_xla.compile of a training step."""
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    if device.type == "xla":
        import torch_xla

        step = torch_xla.compile(step)
    return [step(torch.full((2, 4), float(i)).to(device)) for i in range(3)], list(model.parameters())


def copies_and_aliases(device):
    """copy.copy shares memory, clone does not; copy_ between dtypes and shapes (pytorch/xla#876)."""
    x = torch.zeros(3).to(device)
    shared, own = copy.copy(x), x.clone()
    x.add_(1)
    whole = torch.zeros(2, 3, dtype=torch.int32).to(device)
    whole.copy_(torch.tensor([1.7, -1.7, 2.0]).to(device))
    cpu = torch.zeros(3)
    cpu.copy_(x)
    return shared, own, whole, cpu


def deepcopy_of_a_result(device):
    """deepcopy of a tensor with a gradient, and of one that is not a leaf."""
    x = torch.ones(3).to(device).requires_grad_()
    (x * 2).sum().backward()
    y = copy.deepcopy(x)
    try:
        copy.deepcopy(x * 2)
    except RuntimeError:
        return y, y.grad, y.requires_grad, "refused"
    return y, y.grad, y.requires_grad, "accepted"


def integers_of_the_cpu_as_operands(device):
    """0-d tensors of the CPU beside tensors of the device, of integers and floats (pytorch/xla#6538)."""
    x, i = torch.arange(3.0).to(device), torch.arange(3).to(device)
    return x * torch.tensor(2.0), i + torch.tensor(2), i * torch.tensor(1.5), x + torch.tensor(3), i > torch.tensor(1)


def operands_of_the_cpu(device):
    """What is on the CPU beside tensors of the device: arithmetic sends it, products and concatenations raise."""
    x = torch.tensor([[1.0, -2.0], [3.0, 4.0]]).to(device)
    other = torch.tensor([[0.5, 2.0], [1.0, -1.0]])
    sent = x + other, other * x, x - other, x / other, x.clone().add_(other), x[torch.tensor([1, 0])]
    is_refused = []
    for call in (lambda: x @ other, lambda: torch.cat([x, other]), lambda: torch.clamp(x, -x.abs(), other)):
        try:
            call()
            is_refused.append(device.type == "cpu")  # where all is on one device
        except RuntimeError:
            is_refused.append(True)
    return sent, is_refused, torch.bucketize(x, other[0]), x // other


def printing(device):
    """A tensor of the device is printed with its values."""
    x = torch.arange(3.0).to(device)
    return repr(x).split(", device=")[0].rstrip(")"), str(x.dtype), x.numel(), x.element_size(), x.is_floating_point()


def results_of_other_programs(device):
    """Two programs of equal shape that differ in what feeds what (pytorch/xla#8353)."""
    x, y = torch.tensor([2.0, 3.0]).to(device), torch.tensor([10.0, 20.0]).to(device)
    first = (x / y + x).cpu()
    second = (x / y + y).cpu()
    third = (y / x + x).cpu()
    return first, second, third, (x - y).cpu(), (y - x).cpu()


def step_closure(device):
    """Closures that run after a step see its values; xm.optimizer_step takes it."""
    model, seen = nn.Linear(2, 1).to(device), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 2).to(device)).square().mean()
        loss.backward()
        if device.type == "xla":
            import torch_xla
            import torch_xla.core.xla_model as xm

            xm.add_step_closure(lambda value: seen.append(value.item()), args=(loss,))
            xm.optimizer_step(optimizer)
            torch_xla.sync()
        else:
            optimizer.step()
            seen.append(loss.item())
    return seen, model.weight


def sync_inside_of_a_step(device):
    """A sync between forward and backward changes nothing."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    loss = model(torch.ones(2, 4).to(device)).square().sum()
    if device.type == "xla":
        import torch_xla

        torch_xla.sync()
    loss.backward()
    if device.type == "xla":
        torch_xla.sync(wait=True)
    return loss, [p.grad for p in model.parameters()]


@options(late=True)
def two_devices_are_refused(device):
    """Operands on two devices of the accelerator raise, and the process lives on (pytorch/xla#8973)."""
    os.environ["CPU_NUM_DEVICES"] = "2"
    here, there = ("cpu", "meta") if device.type == "cpu" else ("xla:0", "xla:1")
    x, other = torch.ones(3).to(here), torch.ones(3).to(there)
    said = []
    for call in (lambda: x + other, lambda: torch.cat([x, other]), lambda: x @ other):
        try:
            call().sum().item()
            said.append("nothing")
        except (RuntimeError, NotImplementedError):
            said.append("raised")
    return said, x + 1


def type_methods(device):
    """type(), type_as, to(other), new_ methods, and like-functions keep device and dtype."""
    x, y = torch.ones(2, dtype=torch.bfloat16).to(device), torch.zeros(1, dtype=torch.int64).to(device)
    results = [x.type_as(y), x.to(y), x.new_zeros(2), x.new_tensor([1, 2]), y.new_full((2,), 7), torch.ones_like(x)]
    results += [torch.zeros_like(y, dtype=torch.float32), x.float().double(), x.long(), x.new_ones(1, dtype=torch.bool)]
    return results, [r.device.type == device.type for r in results]


def values_in_conditions(device):
    """Python reads values of the device: item, bool, tolist, comparisons, formatting."""
    x = torch.tensor([1.5, -2.0]).to(device)
    text = f"{x.sum():.2f} {x[0].item()} {x.tolist()} {bool(x[0] > 0)} {len(x)}"
    return text, [int(i) for i in torch.arange(3, device=device)], x.max().item() if x.any() else None, 2.0 in x
