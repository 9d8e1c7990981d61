"""Random numbers of distributions, from XLA's generator."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch_xla
from torch import Tensor
from torch_xla._hlo_module import Operand

from . import loops
from .common import only
from .gamma import distance, stirling_rest
from .graphs import by_its_graph

EACH_TIME = True
"""Each call draws other numbers."""


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


def _is_drawn(x: Tensor, generator: Any) -> bool:
    return generator is None and x.is_floating_point()


_ROUNDS = 6
"""So many candidates are drawn at once; for two of 100 million gamma variates none is accepted."""


def _uniform(x: Tensor, *sizes: int) -> Tensor:
    """Uniform variates above 0."""
    return 1 - x.new_empty([*sizes, *x.shape]).uniform_()


def _accepted(candidates: Tensor, accepted: Tensor) -> Tensor:
    """The first accepted one along dimension 0."""
    first = accepted.to(torch.int32).argmax(0, keepdim=True)
    return torch.gather(candidates, 0, first).squeeze(0)


def _draws_of_gamma(alpha: Tensor) -> tuple[Tensor, ...]:
    return alpha, alpha.new_empty([_ROUNDS, *alpha.shape]).normal_(), _uniform(alpha, _ROUNDS + 1)


def _log_gamma_variates(alpha: Tensor, normal: Tensor, uniform: Tensor) -> Tensor:
    """Logarithms of variates, by Marsaglia and Tsang: of α < 1 by that of α + 1."""
    chances, boost = uniform[:-1], uniform[-1]
    small = alpha < 1
    d = torch.where(small, alpha + 1, alpha) - 1 / 3
    root = 1 + normal / (3 * torch.sqrt(d))
    cube = root * root * root
    bound = 0.5 * normal * normal + d * (1 - cube + torch.log(cube.clamp(min=1e-30)))
    chosen = _accepted(cube, (root > 0) & (torch.log(chances) < bound))
    found = torch.log(d) + torch.log(chosen.clamp(min=1e-30))
    return torch.where(small, found + torch.log(boost) / alpha, found)


def _gamma(*draws: Tensor) -> Tensor:
    return torch.exp(_log_gamma_variates(*draws)).clamp(min=torch.finfo(draws[0].dtype).tiny)


@only(_is_drawn)
def standard_gamma(alpha: Tensor, generator: Any) -> Tensor:
    return by_its_graph("standard_gamma", _gamma, _draws_of_gamma(alpha))


def _dirichlet(*draws: Tensor) -> Tensor:
    return torch.softmax(_log_gamma_variates(*draws), -1).clamp(min=torch.finfo(draws[0].dtype).tiny)


@only(lambda alpha, generator: _is_drawn(alpha, generator) and alpha.dim() > 0)
def sample_dirichlet(alpha: Tensor, generator: Any) -> Tensor:
    return by_its_graph("sample_dirichlet", _dirichlet, _draws_of_gamma(alpha))


_FEW, _INVERTED = 10, 48
"""Below that mean a variate is found by inversion: none is more than so large."""

_TRIED = 12
"""Of candidates for a count three quarters and more are accepted: one of them, but for one count of 10 million."""


def _draws_of_counts(x: Tensor) -> Tensor:
    """Uniform variates: for inversion the last one, and for places and chances of candidates the others."""
    return _uniform(x, 2 * _TRIED + 1)


def _inverted(uniform: Tensor, first: Tensor, a: Tensor, b: Tensor) -> Tensor:
    made = loops.inverted(Operand.of(first), _INVERTED)
    return torch_xla._XLAC._xla_user_computation("xla::inverted", [uniform, first, a, b], made)[0]


def _by_rejection(
    uniform: Tensor, a: Tensor, spread: Tensor, centre: Tensor, hat: Tensor, log_probability: Callable
) -> Tensor:
    """Counts by Hörmann's transformed rejection with squeeze: a, b, c and α are his."""
    places, chances = uniform[:_TRIED] - 0.5, uniform[_TRIED:-1]
    edge = (0.5 - places.abs()).clamp(min=1e-7)
    counts = torch.floor((2 * a / edge + spread) * places + centre)
    chance = torch.log(chances * hat / (a / (edge * edge) + spread))
    return _accepted(counts, chance <= log_probability(counts))


def _deviation(count: Tensor, mean: Tensor) -> Tensor:
    """count log(count / mean) + mean - count, with all digits near the mean."""
    held = count.clamp(min=1)
    return torch.where(count > 0, held * distance((mean - held) / held, mean / held), mean)


_OF_SMALL = [math.lgamma(k + 1) - k * math.log(max(k, 1)) + k for k in range(8)]


def _log_factorial_rest(count: Tensor) -> Tensor:
    """log count! - count log(count) + count."""
    held = count.clamp(min=8)
    found = stirling_rest(held) + 0.5 * torch.log(2 * math.pi * held)
    for k, value in enumerate(_OF_SMALL):
        found = torch.where(count == k, value, found)
    return found


def _log_poisson(k: Tensor, rate: Tensor) -> Tensor:
    return torch.where(k >= 0, -_deviation(k, rate) - _log_factorial_rest(k), -math.inf)


def _poisson(rate: Tensor, uniform: Tensor) -> Tensor:
    few = rate < _FEW
    low, high = torch.where(few, rate, 1.0), torch.where(few, float(_FEW), rate)
    spread = 0.931 + 2.53 * torch.sqrt(high)
    hat = 1.1239 + 1.1328 / (spread - 3.4)
    many = _by_rejection(uniform, -0.059 + 0.02483 * spread, spread, high + 0.43, hat, lambda k: _log_poisson(k, high))
    found = torch.where(few, _inverted(uniform[-1], torch.exp(-low), low, torch.zeros_like(low)), many.clamp(min=0))
    return torch.where(rate >= 0, found, math.nan)


@only(_is_drawn)
def poisson(rate: Tensor, generator: Any) -> Tensor:
    return by_its_graph("poisson", _poisson, (rate, _draws_of_counts(rate)))


def _log_binomial(k: Tensor, n: Tensor, p: Tensor) -> Tensor:
    left = n - k
    rests = _log_factorial_rest(n) - _log_factorial_rest(k) - _log_factorial_rest(left)
    found = rests - _deviation(k, n * p) - _deviation(left, n * (1 - p))
    return torch.where((k >= 0) & (left >= 0), found, -math.inf)


def _binomial(n: Tensor, p: Tensor, uniform: Tensor) -> Tensor:
    taken = (n >= 0) & (p >= 0) & (p <= 1)
    count = torch.where(taken, torch.floor(n), 0.0)
    rarer = torch.where(taken, torch.where(p > 0.5, 1 - p, p), 0.0)
    few = count * rarer < _FEW
    odds = rarer / (1 - rarer)
    first = torch.exp(count * torch.log1p(-rarer))
    low = _inverted(uniform[-1], torch.where(few, first, 1.0), count * odds, odds)
    many, chance = torch.where(few, 4.0 * _FEW, count), torch.where(few, 0.5, rarer)
    deviation = torch.sqrt(many * chance * (1 - chance))
    spread = 1.15 + 2.53 * deviation
    peak = _log_binomial(torch.floor((many + 1) * chance), many, chance)
    high = _by_rejection(
        uniform,
        -0.0873 + 0.0248 * spread + 0.01 * chance,
        spread,
        many * chance + 0.5,
        (2.83 + 5.1 / spread) * deviation,
        lambda k: _log_binomial(k, many, chance) - peak,
    )
    found = torch.where(few, low, high).clamp(min=0).minimum(count)
    return torch.where(taken, torch.where(p > 0.5, count - found, found), math.nan)


@only(lambda n, p, generator: _is_drawn(n, generator) and n.dtype == p.dtype)
def binomial(n: Tensor, p: Tensor, generator: Any) -> Tensor:
    n, p = torch.broadcast_tensors(n, p)
    return by_its_graph("binomial", _binomial, (n, p, _draws_of_counts(n)))


def _soonest(weights: Tensor, waits: Tensor, samples: int) -> Tensor:
    """The smallest of exponential variates with the rates ``weights`` are a sample without replacement."""
    return torch.topk(weights / waits, samples, -1)[1]


def multinomial(weights: Tensor, samples: int, replacement: bool, generator: Any) -> Tensor:
    if weights.numel() == 0 or samples > weights.shape[-1] or not weights.is_floating_point():
        return NotImplemented  # an error of torch
    return by_its_graph("multinomial", _soonest, (weights, torch.empty_like(weights).exponential_(), samples))
