"""Random numbers of distributions, from XLA's generator."""

import math
from typing import Any

import torch
from torch import Tensor

from .common import only


def _waits(x: Tensor) -> Tensor:
    """Exponential variates in float32, or in float64 for a tensor of it."""
    dtype = x.dtype if x.dtype == torch.float64 else torch.float32
    return torch.empty_like(x, dtype=dtype).exponential_()


@only(lambda x, median, sigma, generator: generator is None and sigma > 0 and x.is_floating_point())
def cauchy(x: Tensor, median: float, sigma: float, generator: Any) -> Tensor:
    return median + sigma * torch.tan(math.pi * (torch.empty_like(x).uniform_() - 0.5))


def _counts(x: Tensor, p: float, generator: Any) -> bool:
    # Rarer events are so far apart that a narrow integer does not hold the numbers.
    return generator is None and 1e-5 < p < 1 and (x.is_floating_point() or x.dtype in (torch.int32, torch.int64))


@only(_counts)
def geometric(x: Tensor, p: float, generator: Any) -> Tensor:
    return torch.ceil(_waits(x) / -math.log1p(-p)).clamp(min=1).to(x.dtype)


@only(lambda x, mean, std, generator: generator is None and std > 0 and x.is_floating_point())
def log_normal(x: Tensor, mean: float, std: float, generator: Any) -> Tensor:
    return torch.exp(torch.empty_like(x).normal_(mean, std))


@only(lambda x, noise, lower, upper, training, generator: generator is None and x.is_floating_point())
def rrelu(x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, generator: Any):
    if not training:
        return torch.where(x >= 0, x, x * ((lower + upper) / 2)), noise.clone()
    drawn = torch.empty_like(x).uniform_(lower, upper) if upper > lower else torch.full_like(x, lower)
    slope = torch.where(x <= 0, drawn, torch.ones_like(x))
    return x * slope, slope
