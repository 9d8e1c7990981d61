"""Random numbers of distributions that tensors tell, from XLA's generator."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch_xla
from torch import Tensor
from torch_xla._hlo_module import Operand

from . import loops
from .common import drawn, only
from .drawing import is_drawn, key, several, spread
from .gamma import distance, stirling_rest


def _is_drawn(x: Tensor, generator: Any) -> bool:
    return is_drawn(x, generator) and x.is_floating_point()


_ROUNDS = 6
"""So many candidates are drawn at once; for two of 100 million gamma variates none is accepted."""


def _accepted(candidates: Tensor, accepted: Tensor) -> Tensor:
    """The first accepted one along dimension 0."""
    found = candidates[-1]
    for candidate, is_taken in zip(candidates.flip(0).unbind(), accepted.flip(0).unbind(), strict=True):
        found = torch.where(is_taken, candidate, found)
    return found


def _log_gamma_variates(alpha: Tensor, numbers: Tensor) -> Tensor:
    """Logarithms of variates, by Marsaglia and Tsang: of α < 1 by that of α + 1; of no α > 0, of torch's least one."""
    drawn = several(numbers, alpha, 3 * _ROUNDS + 1)
    chances, sizes, angles, boost = drawn.split([_ROUNDS, _ROUNDS, _ROUNDS, 1])
    normal, boost = torch.sqrt(-2 * torch.log(sizes)) * torch.cos(2 * math.pi * angles), boost.squeeze(0)
    small = alpha < 1
    d = torch.where(small, alpha + 1, alpha) - 1 / 3
    root = 1 + normal / (3 * torch.sqrt(d))
    cube = root * root * root
    bound = 0.5 * normal * normal + d * (1 - cube + torch.log(cube.clamp(min=1e-30)))
    chosen = _accepted(cube, (root > 0) & (torch.log(chances) < bound))
    found = torch.log(d) + torch.log(chosen.clamp(min=1e-30))
    found = torch.where(small, found + torch.log(boost) / alpha, found)
    return torch.where(alpha > 0, found, math.log(torch.finfo(alpha.dtype).tiny))


@only(_is_drawn)
@drawn(key)
def standard_gamma(alpha: Tensor, numbers: Tensor) -> Tensor:
    return torch.exp(_log_gamma_variates(alpha, numbers)).clamp(min=torch.finfo(alpha.dtype).tiny)


@only(lambda alpha, generator: _is_drawn(alpha, generator) and alpha.dim() > 0)
@drawn(key)
def sample_dirichlet(alpha: Tensor, numbers: Tensor) -> Tensor:
    return torch.softmax(_log_gamma_variates(alpha, numbers), -1).clamp(min=torch.finfo(alpha.dtype).tiny)


_FEW, _INVERTED = 10, 48
"""Below that mean a variate is found by inversion: none is more than so large."""

_TRIED = 12
"""Of candidates for a count three quarters and more are accepted: one of them, but for one count of 10 million."""

_NUMBERS = 2 * _TRIED + 1
"""The places of candidates, their chances, and one for inversion."""


def _inverted(uniform: Tensor, first: Tensor, a: Tensor, b: Tensor) -> Tensor:
    made = loops.inverted(Operand.of(first), _INVERTED)
    return torch_xla._XLAC._xla_user_computation("xla::inverted", [uniform, first, a, b], made)[0]


def _by_rejection(
    numbers: Tensor, a: Tensor, spread: Tensor, centre: Tensor, hat: Tensor, log_probability: Callable
) -> Tensor:
    """Counts by Hörmann's transformed rejection with squeeze: a, b, c and α are his."""
    places, chances = numbers[:_TRIED] - 0.5, numbers[_TRIED:-1]
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


@only(_is_drawn)
@drawn(key)
def poisson(rate: Tensor, numbers: Tensor) -> Tensor:
    few, numbers = rate < _FEW, several(numbers, rate, _NUMBERS)
    low, high = torch.where(few, rate, 1.0), torch.where(few, float(_FEW), rate)
    spread = 0.931 + 2.53 * torch.sqrt(high)
    hat = 1.1239 + 1.1328 / (spread - 3.4)
    many = _by_rejection(numbers, -0.059 + 0.02483 * spread, spread, high + 0.43, hat, lambda k: _log_poisson(k, high))
    found = torch.where(few, _inverted(numbers[-1], torch.exp(-low), low, torch.zeros_like(low)), many.clamp(min=0))
    return torch.where(rate >= 0, found, math.nan)


def _log_binomial(k: Tensor, n: Tensor, p: Tensor) -> Tensor:
    left = n - k
    rests = _log_factorial_rest(n) - _log_factorial_rest(k) - _log_factorial_rest(left)
    found = rests - _deviation(k, n * p) - _deviation(left, n * (1 - p))
    return torch.where((k >= 0) & (left >= 0), found, -math.inf)


@only(lambda n, p, generator: _is_drawn(n, generator) and n.dtype == p.dtype)
@drawn(key)
def binomial(n: Tensor, p: Tensor, numbers: Tensor) -> Tensor:
    """As torch has it: 0 of no count or chance above 0, and all of them at a chance of 1 or above."""
    whole = torch.where(n > 0, n, 0.0)
    count = torch.floor(whole)
    rarer = torch.where(p > 0.5, (1 - p).clamp(min=0), torch.where(p > 0, p, 0.0))
    few, numbers = count * rarer < _FEW, several(numbers, count, _NUMBERS)
    odds = rarer / (1 - rarer)
    first = torch.exp(count * torch.log1p(-rarer))
    low = _inverted(numbers[-1], torch.where(few, first, 1.0), count * odds, odds)
    many, chance = torch.where(few, 4.0 * _FEW, count), torch.where(few, 0.5, rarer)
    deviation = torch.sqrt(many * chance * (1 - chance))
    spread = 1.15 + 2.53 * deviation
    peak = _log_binomial(torch.floor((many + 1) * chance), many, chance)
    high = _by_rejection(
        numbers,
        -0.0873 + 0.0248 * spread + 0.01 * chance,
        spread,
        many * chance + 0.5,
        (2.83 + 5.1 / spread) * deviation,
        lambda k: _log_binomial(k, many, chance) - peak,
    )
    found = torch.where(few, low, high).clamp(min=0).minimum(count)
    found = torch.where(p > 0.5, whole - found, found)
    return torch.where(((n > 0) & p.isnan()) | n.isnan(), math.nan, found)


_FEW_SAMPLES = 8
"""So many are drawn one after the other: of each the first place where the sums of the weights are large enough."""


def _of_multinomial(weights: Tensor, samples: int, *_: Any) -> Tensor:
    batch = weights.shape[:-1]
    return weights.new_empty((*batch, samples)).uniform_() if samples <= _FEW_SAMPLES else key(weights)


def _is_sampled(weights: Tensor, samples: int, replacement: bool, generator: Any) -> bool:
    return weights.numel() > 0 and samples <= weights.shape[-1] and weights.is_floating_point()


@only(_is_sampled)
@drawn(_of_multinomial)
def multinomial(weights: Tensor, samples: int, replacement: bool, numbers: Tensor) -> Tensor:
    """Without replacement."""
    if samples > _FEW_SAMPLES:
        # The smallest of exponential variates with the weights as their rates.
        waits = -torch.log(spread(numbers, weights))
        return torch.topk(weights / waits, samples, -1)[1]
    count = weights.shape[-1]
    place = torch.arange(count, dtype=torch.int32, device=weights.device)
    found = []
    for number in numbers.split(1, -1):
        sums = weights.cumsum(-1)
        # The first place beyond the number, or the first: sums that are rounded never choose a weight of 0.
        beyond = torch.where(sums > number * sums[..., -1:], count, 0)
        rank = torch.where(weights > 0, beyond + count - place, 0).amax(-1, keepdim=True)
        found.append(torch.remainder(2 * count - rank, count))
        weights = torch.where(place == found[-1], 0.0, weights)
    return torch.cat(found, -1).long()
