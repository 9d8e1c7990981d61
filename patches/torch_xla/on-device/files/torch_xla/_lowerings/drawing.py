"""Random numbers whose distribution is told by numbers: cauchy_, geometric_, log_normal_ and rrelu."""

import math

import torch
from torch import Tensor

from .common import drawn, exponential, normal, only, uniform

EACH_TIME = True
"""The numbers may differ from call to call, and are no part of a graph."""


@only(lambda x, median, sigma, generator: generator is None and sigma > 0 and x.is_floating_point())
@drawn(uniform())
def cauchy(x: Tensor, median: float, sigma: float, numbers: Tensor) -> Tensor:
    return median + sigma * torch.tan(math.pi * (numbers - 0.5))


def _counts(x: Tensor, p: float, generator: object) -> bool:
    # Rarer events are so far apart that a narrow integer does not hold the numbers.
    return generator is None and 1e-5 < p < 1 and (x.is_floating_point() or x.dtype in (torch.int32, torch.int64))


@only(_counts)
@drawn(uniform())
def geometric(x: Tensor, p: float, numbers: Tensor) -> Tensor:
    return torch.ceil(exponential(numbers) / -math.log1p(-p)).clamp(min=1).to(x.dtype)


@only(lambda x, mean, std, generator: generator is None and std > 0 and x.is_floating_point())
@drawn(normal())
def log_normal(x: Tensor, mean: float, std: float, numbers: Tensor) -> Tensor:
    return torch.exp(mean + std * numbers)


@only(lambda x, noise, lower, upper, training, generator: generator is None and x.is_floating_point())
@drawn(uniform())
def rrelu(x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, numbers: Tensor):
    if not training:
        return torch.where(x >= 0, x, x * ((lower + upper) / 2)), noise.clone()
    slope = torch.where(x <= 0, lower + (upper - lower) * numbers, 1.0)
    return x * slope, slope
