"""Random programs of views, aliases, copies and writes in place, over several steps."""

import random

import torch
import torch_xla

SIZES = (2, 3)

VIEWS = {
    "view": lambda t: t.view(*t.shape, 1),
    "t": lambda t: t.t() if t.dim() == 2 else t.unsqueeze(0),
    "slice": lambda t: t[-2:],
    "row": lambda t: t[0] if t.dim() > 1 else t[:1],
    "unsqueeze": lambda t: t.unsqueeze(1),
    "narrow": lambda t: t[..., :1],
    "detach": torch.Tensor.detach,
    "data": lambda t: t.data,
    "unbind": lambda t: t.unbind(-1)[-1].unsqueeze(-1),
    "expand": lambda t: t.expand(t.shape),
}
WRITES = {
    "add_": lambda t: t.add_(1),
    "mul_": lambda t: t.mul_(0.5),
    "neg_": torch.Tensor.neg_,
    "zero_": torch.Tensor.zero_,
    "fill_": lambda t: t.fill_(3),
    "lerp_": lambda t: t.lerp_(torch.ones_like(t), 0.5),
    "index": lambda t: t.__setitem__(0, 7),
    "masked_fill_": lambda t: t.masked_fill_(t > 4, 9.0),
    "scatter_": lambda t: t.scatter_(0, torch.zeros_like(t, dtype=torch.long), 5.0),
    "out=": lambda t: torch.mul(t, 0.5, out=t),
}
OF_TWO = {
    "copy_": lambda t, other: t.copy_(other),
    "add_": lambda t, other: t.add_(other),
    "detach copy_": lambda t, other: t.detach().copy_(other.detach()),
    "set data": lambda t, other: setattr(t, "data", other),
    "all": lambda t, other: t.__setitem__(slice(None), other),
}
NEW = {
    "clone": torch.Tensor.clone,
    "to": lambda t: t.to(t.device, copy=True),
    "add": lambda t: t + 1,
    "cast": lambda t: t.double().float(),
    "zeros": torch.zeros_like,
    "read clone": lambda t: (clone := t.clone(), clone.tolist())[0],
    "select_scatter": lambda t: torch.select_scatter(t, torch.full_like(t[0], 5.0), 0, 0),
    "alias_copy": torch.alias_copy,
}
KINDS = {"view": VIEWS, "write": WRITES, "of two": OF_TWO, "new": NEW, "forget": {"": None}, "sync": {"": None}}
WEIGHTS = (5, 6, 4, 3, 2, 4)


def program(seed: int, length: int = 14) -> list[tuple[str, str, int, int]]:
    """Steps of a program: kind, name, and two numbers that choose its tensors."""
    draw = random.Random(seed)
    kinds = draw.choices(list(KINDS), WEIGHTS, k=length)
    return [(kind, draw.choice(list(KINDS[kind])), draw.randrange(1000), draw.randrange(1000)) for kind in kinds]


def run(steps: list[tuple[str, str, int, int]], device: str) -> list[list]:
    """The tensors that a program leaves, as lists."""
    tensors = [torch.arange(6.0).add(10 * i).view(SIZES).to(device) for i in range(3)]
    torch_xla.sync()
    for kind, name, first, second in steps:
        tensor = tensors[first % len(tensors)]
        if kind == "sync":
            torch_xla.sync()
        elif kind == "forget":
            if len(tensors) > 2:
                del tensors[first % len(tensors)]
        elif kind == "write":
            WRITES[name](tensor)
        elif kind == "of two":
            alike = [t for t in tensors if t.shape == tensor.shape and t is not tensor]
            if alike:
                OF_TWO[name](tensor, alike[second % len(alike)])
        else:
            tensors.append(KINDS[kind][name](tensor))
    torch_xla.sync()
    return [tensor.tolist() for tensor in tensors]


def fault(steps: list[tuple[str, str, int, int]], device: str) -> str | None:
    """What a program does otherwise on this device than on the CPU."""
    expected = run(steps, "cpu")
    try:
        found = run(steps, device)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None if found == expected else f"found {found}, expected {expected}"
