"""Gradients of samples of the gamma and Dirichlet distributions, with respect to what they were drawn of.

The share of the distribution below a sample stays what it is: the gradient is -∂F/∂α over the density. ∂F/∂α is an
integral of density times score, over the tail that begins at the sample and does not hold the mean. Over the logarithm
of the variate, or of its odds, the integrand falls without a wave, and Gauss' rule takes it from the sample to where
nothing is left.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch_xla import runtime

from .common import only
from .special import BERNOULLI, digamma, polynomial

_NODES = {torch.float32: 32, torch.float64: 64}
_CUT = {torch.float32: 24.0, torch.float64: 44.0}
"""Where the integrand is less than exp(-cut) of what it is at the sample, nothing is left."""

MOST_ON_CPU = 1024
"""torch's kernels, which are exact to three places, give more gradients sooner than CPU-XLA does."""


def _is_here(x: Tensor, *_: Tensor) -> bool:
    return x.numel() <= MOST_ON_CPU or runtime.device_type() != "CPU"


@functools.lru_cache
def _gauss(count: int) -> list[tuple[float, float]]:
    """Nodes and weights on [0, 1]: the roots of Legendre's polynomial, by Newton's method."""
    found = []
    for i in range(1, count + 1):
        x = math.cos(math.pi * (i - 0.25) / (count + 0.5))
        for _ in range(10):
            before, value = 1.0, x
            for n in range(2, count + 1):
                before, value = value, ((2 * n - 1) * x * value - (n - 1) * before) / n
            slope = count * (x * value - before) / (x * x - 1)
            x -= value / slope
        found.append(((1 - x) / 2, 1 / ((1 - x * x) * slope * slope)))
    return found


def _log_less_digamma(a: Tensor) -> Tensor:
    """log a - ψ(a), with all digits of a large a."""
    large = a > 8
    inverse = 1 / torch.where(large, a, 8.0)
    terms = [b / (2 * k) for k, b in enumerate(BERNOULLI, 1)][::-1]
    series = inverse * (0.5 + inverse * polynomial(inverse * inverse, terms))
    small = torch.where(large, 8.0, a)
    return torch.where(large, series, torch.log(small) - digamma(small))


_Fall = Callable[[Tensor], tuple[Tensor, Tensor]]


def _tail(fall: _Fall, end: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
    """The integral of exp(-fall(s)) score(s) over s > 0. ``fall`` gives its slope as well, which never falls; where it
    is beyond the cut the tail's end, found from the rough one, is set."""
    cut = _CUT[end.dtype]
    for _ in range(5):
        value, slope = fall(end)
        end = end - (value - cut) / slope
    numbers = torch.tensor(_gauss(_NODES[end.dtype]), dtype=end.dtype, device=end.device)
    nodes, weights = (n.reshape(-1, *[1] * end.dim()) for n in numbers.unbind(1))
    s = end * nodes
    return end * (weights * torch.exp(-fall(s)[0]) * score(s)).sum(0)


def _end(bend: Tensor, otherwise: Tensor) -> Tensor:
    """Where a fall of that second derivative at 0 comes to the cut, if that is soon."""
    reach = 3 * _CUT[bend.dtype] / bend
    return torch.where(reach < 1, torch.sqrt(reach), otherwise)


@only(_is_here)
def standard_gamma_grad(alpha: Tensor, sample: Tensor) -> Tensor:
    tiny, cut = torch.finfo(alpha.dtype).tiny, _CUT[alpha.dtype]
    x = sample.clamp(min=tiny)
    below = x <= alpha
    sign = torch.where(below, -1.0, 1.0)

    def fall(s: Tensor) -> tuple[Tensor, Tensor]:
        grown = torch.expm1(sign * s)
        return x * grown - sign * alpha * s, sign * (x * (grown + 1) - alpha)

    start = torch.log(x / alpha) + _log_less_digamma(alpha)
    end = torch.where(below, (cut + x) / alpha, torch.log1p(2 * cut / x))
    return x * _tail(fall, _end(x, end), lambda s: s + sign * start)


@only(_is_here)
def dirichlet_grad(sample: Tensor, alpha: Tensor, total: Tensor) -> Tensor:
    tiny, cut = torch.finfo(alpha.dtype).tiny, _CUT[alpha.dtype]
    x, rest, others = sample.clamp(min=tiny), 1 - sample, total - alpha
    below = x * total < alpha
    power, inside, outside = (torch.where(below, p, q) for p, q in ((alpha, others), (x, rest), (rest, x)))

    def log_ratio(s: Tensor) -> Tensor:
        """The logarithm of what is left of 1 where ``inside`` has shrunk to exp(-s) of it."""
        return torch.where(s < 1, torch.log1p(inside * torch.expm1(-s)), torch.log(outside + inside * torch.exp(-s)))

    def fall(s: Tensor) -> tuple[Tensor, Tensor]:
        shrunk = inside * torch.exp(-s)
        return power * s + total * log_ratio(s), power - total * shrunk / (outside + shrunk)

    start = torch.log(x * total / alpha) + _log_less_digamma(alpha) - _log_less_digamma(total)
    end = (cut - total * torch.log(outside.clamp(min=tiny))) / power
    return x * _tail(
        fall,
        _end(total * inside * outside, end),
        lambda s: torch.where(below, s + log_ratio(s) - start, start - log_ratio(s)),
    )
