"""Random numbers, and those whose distribution is told by numbers: cauchy_, geometric_, log_normal_ and rrelu."""

import math
from typing import Any

import torch
import torch_xla
from torch import Tensor
from torch_xla import runtime

from . import loops
from .common import only, prepared

MOST_ON_CPU = 256
"""So many numbers are drawn on CPU-XLA at once: torch draws more of them sooner, and is not far away there."""


def is_drawn(x: Tensor, generator: Any) -> bool:
    return generator is None and (x.numel() <= MOST_ON_CPU or runtime.device_type() != "CPU")


def key(*arguments: Any) -> Tensor:
    """A draw of four numbers, of which ``several`` makes as many as are wanted."""
    first = next(a for a in arguments if isinstance(a, Tensor))
    return first.new_empty([4], dtype=torch.float32).uniform_()


def several(drawn: Tensor, like: Tensor, count: int) -> Tensor:
    """So many uniform numbers [count, …] for each element of a tensor, none of them 0 or 1, of a key."""
    if not like.numel():
        return like.new_empty([count, *like.shape])
    made = loops.numbers(tuple(like.shape), count, like.dtype == torch.float64)
    return torch_xla._XLAC._xla_user_computation("xla::numbers", [drawn], made)[0]


def spread(drawn: Tensor, like: Tensor) -> Tensor:
    """One for each element."""
    return several(drawn, like, 1).squeeze(0)


def _told(x: Tensor, *numbers: float) -> Tensor:
    """A tensor of numbers that may differ from call to call: they are operands of a graph, not part of it."""
    return torch.tensor(numbers, dtype=torch.promote_types(x.dtype, torch.float32)).to(x.device)


@only(lambda x, median, sigma, generator: is_drawn(x, generator) and sigma > 0 and x.is_floating_point())
@prepared(lambda x, median, sigma, _: (x, _told(x, median, sigma), key(x)))
def cauchy(x: Tensor, told: Tensor, numbers: Tensor) -> Tensor:
    median, sigma = told.unbind()
    return median + sigma * torch.tan(math.pi * (spread(numbers, x) - 0.5))


def _counts(x: Tensor, p: float, generator: object) -> bool:
    # Rarer events are so far apart that a narrow integer does not hold the numbers.
    return is_drawn(x, generator) and 1e-5 < p < 1 and (x.is_floating_point() or x.dtype in (torch.int32, torch.int64))


@only(_counts)
@prepared(lambda x, p, _: (x, _told(x, math.log1p(-p)), key(x)))
def geometric(x: Tensor, told: Tensor, numbers: Tensor) -> Tensor:
    return torch.ceil(torch.log(spread(numbers, x)) / told).clamp(min=1).to(x.dtype)


@only(lambda x, mean, std, generator: is_drawn(x, generator) and std > 0 and x.is_floating_point())
@prepared(lambda x, mean, std, _: (x, _told(x, mean, std), key(x)))
def log_normal(x: Tensor, told: Tensor, numbers: Tensor) -> Tensor:
    mean, std = told.unbind()
    sizes, angles = several(numbers, x, 2).unbind()
    return torch.exp(mean + std * torch.sqrt(-2 * torch.log(sizes)) * torch.cos(2 * math.pi * angles))


@only(lambda x, noise, lower, upper, training, generator: is_drawn(x, generator) and x.is_floating_point())
@prepared(lambda x, noise, lower, upper, training, _: (x, noise, _told(x, lower, upper), training, key(x)))
def rrelu(x: Tensor, noise: Tensor, told: Tensor, training: bool, numbers: Tensor) -> tuple[Tensor, Tensor]:
    lower, upper = told.unbind()
    if not training:
        return torch.where(x >= 0, x, x * ((lower + upper) / 2)), noise.clone()
    slope = torch.where(x <= 0, lower + (upper - lower) * spread(numbers, x), 1.0)
    return x * slope, slope
