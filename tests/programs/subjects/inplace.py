"""Programs: inplace."""

import torch
from torch import nn


def autograd_of_slices(device):
    """Writes to slices of a result that autograd follows (pytorch/xla#1718)."""
    linear = nn.Linear(4, 6).to(device)
    x = linear(torch.randn(3, 4).to(device))
    x[:, :3] = 0
    x[:, 3:5].mul_(2)
    x[0].relu_()
    x.sum().backward()
    return x, linear.weight.grad, linear.bias.grad


def broadcast_is_refused(device):
    """An in-place operation whose result has another shape, or another kind of dtype, raises."""
    said = []
    for call in (
        lambda: torch.zeros(3).to(device).add_(torch.ones(2, 3).to(device)),
        lambda: torch.zeros(3, dtype=torch.int32).to(device).add_(0.5),
        lambda: torch.zeros(3, dtype=torch.int32).to(device).div_(2),
    ):
        try:
            call().cpu()
            said.append("nothing")
        except RuntimeError:
            said.append("raised")
    return said


def channels_last(device):
    """Tensors in channels_last: values, results of convolutions, and writes."""
    conv = nn.Conv2d(3, 4, 3, padding=1).to(device)
    x = torch.randn(2, 3, 5, 5).to(device).to(memory_format=torch.channels_last)
    y = conv(x)
    y.sum().backward()
    z = x.clone().permute(0, 2, 3, 1)
    z[0, 0] = 1
    return y, conv.weight.grad, z, x.flatten(2).transpose(1, 2)


def contiguous_copies(device):
    """contiguous and reshape of a view that is not contiguous are copies (pytorch/xla#2418)."""
    x = torch.zeros(2, 3, device=device)
    copy, shared = x.t().contiguous(), x.contiguous()
    copy.add_(1)
    shared.add_(5)
    flat = x.t().reshape(-1)
    flat.fill_(7)
    return x, copy, flat


@torch.library.custom_op("programs::add_into", mutates_args={"out"})
def _add_into(out: torch.Tensor, x: torch.Tensor) -> None:
    out.add_(x)


def custom_operator_with_mutates_args(device):
    """A custom operator that writes to a view of its argument, called as it is (pytorch/xla#8385)."""
    cache = torch.zeros(4, 3).to(device)
    for i in range(4):
        _add_into(cache[i], torch.full((3,), float(i)).to(device))
    return cache


def data_and_detach(device):
    """Writes through .data and detach() reach the tensor; a new .data does not reach old views (pytorch/xla#3392)."""
    x = torch.zeros(4, device=device)
    view = x.view(2, 2)
    x.data.add_(1)
    x.detach()[0] = 5
    seen = view.clone()
    x.data = torch.full((4,), 9.0, device=device)
    return seen, view, x


def leaf_is_refused(device):
    """In-place changes of a leaf that wants a gradient raise; under no_grad they do not."""
    x = torch.ones(3).to(device).requires_grad_()
    with torch.no_grad():
        x.mul_(2)
    try:
        x.add_(1)
    except RuntimeError as error:
        return x, "leaf Variable" in str(error)
    return x, False


def shapes_and_out(device):
    """out= arguments, resize by out=, set_ of data of another shape (pytorch/xla#3330)."""
    x, y = torch.ones(2, 3).to(device), torch.arange(3.0).to(device)
    out = torch.empty(0, device=device)
    torch.add(x, y, out=out)
    total = torch.zeros(3, device=device)
    torch.sum(x, 0, out=total)
    w = torch.zeros(2, device=device)
    w.data = torch.ones(3, 4, device=device)
    return out, total, w, w.shape


def version_counter(device):
    """A tensor that backward needs and that was changed raises at backward."""
    x = torch.ones(3).to(device).requires_grad_()
    y = x.exp()
    y.add_(1)
    y.sum().backward()
    return x.grad


def views_see_writes(device):
    """A write to a tensor is seen by its views, and the other way round (pytorch/xla#2418)."""
    x = torch.zeros(4, 3, device=device)
    row, column, flat, turned = x[1], x[:, 2], x.view(-1), x.t()
    row.add_(1)
    column.mul_(5).add_(2)
    flat[::4] = 9
    turned[0].sub_(1)
    x += 1
    return x, row, column, flat, turned
