"""Incomplete gamma functions and Hurwitz' zeta function."""

import functools
import math
from fractions import Fraction

import torch
import torch_xla
from torch import Tensor
from torch_xla._hlo_module import Operand

from . import loops
from .common import as_floating, promoted
from .special import STIRLING, full, hurwitz, lgamma, lgamma_at_2, polynomial

# ---- the incomplete gamma functions


_LARGE = 20
"""Above it, and for x within 0.3 of a, Temme's expansion is exact to the last place."""

_STEPS = {torch.float32: 24, torch.float64: 60}
_ORDERS = {torch.float32: (2, 6), torch.float64: (7, 12)}


@functools.lru_cache
def _temme(orders: int, degree: int) -> list[list[float]]:
    """The polynomials C_k(η) of Temme's expansion, the highest power first: C_k = C_{k-1}' / η + γ_k / μ.

    μ is the series of η with η² / 2 = μ - log(1 + μ), and γ_k is such that C_k has no pole.
    """
    count = degree + 2 * orders + 2
    mu = [Fraction(0), Fraction(1)]
    for m in range(2, count + 2):
        rest = sum(mu[i] * mu[m + 1 - i] for i in range(2, m))
        mu.append((Fraction(2, m + 1) * mu[m - 1] - rest) / 2)
    inverse = [Fraction(1)]  # of η / μ
    for n in range(1, count + 1):
        inverse.append(-sum(mu[i + 1] * inverse[n - i] for i in range(1, n + 1)))
    last = inverse[1:]
    found = [last]
    for _ in range(orders):
        last = [(n + 2) * last[n + 2] - last[1] * inverse[n + 1] for n in range(len(last) - 2)]
        found.append(last)
    return [[float(c) for c in terms[degree - 3 * k // 2 :: -1]] for k, terms in enumerate(found)]


def _log_gamma_of_1_more(a: Tensor) -> Tensor:
    """log Γ(1 + a), with all digits of a small a."""
    small = a < 0.5
    near = torch.where(small, a, torch.zeros_like(a))
    return torch.where(small, polynomial(near, lgamma_at_2(a.dtype)[::-1]) - torch.log1p(near), lgamma(1 + a))


def stirling_rest(a: Tensor) -> Tensor:
    """log Γ(a + 1) - log(√(2πa) (a/e)^a): for a ≥ 8 to the last place."""
    inverse = 1 / a
    return polynomial(inverse * inverse, STIRLING[::-1]) * inverse


def distance(mu: Tensor, ratio: Tensor) -> Tensor:
    """μ - log(1 + μ), given 1 + μ as well."""
    terms = [(-1) ** k / k for k in range(2, 16 if mu.dtype == torch.float64 else 9)]
    small = mu.abs() < 0.1
    near = torch.where(small, mu, torch.zeros_like(mu))
    return torch.where(small, near * near * polynomial(near, terms[::-1]), mu - torch.log(ratio))


def _incomplete(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """P(a, x) and Q(a, x) for positive finite a and x; each has the digits of small values."""
    made = loops.gamma_terms(Operand.of(a), _STEPS[a.dtype])
    series, alternating, fraction = torch_xla._XLAC._xla_user_computation("xla::gamma_terms", [a, x], made)
    mu, inverse = (x - a) / a, 1 / a
    exponent = distance(mu, x / a)
    bell = torch.exp(-a * exponent) / torch.sqrt(2 * math.pi * a)
    # x^a exp(-x) / Γ(a + 1)
    power = a * torch.log(x) - _log_gamma_of_1_more(a)
    density = torch.where(a < 8, torch.exp(power - x), bell / torch.exp(stirling_rest(a)))
    above = (x > 1.1) & (x > a)
    lower, upper = density * series, density * a * fraction
    of_small_a = -torch.expm1(power) - a * torch.exp(power) * alternating
    lower, upper = (
        torch.where(above, 1 - upper, lower),
        torch.where(above, upper, torch.where(a < 1, of_small_a, 1 - lower)),
    )
    eta = torch.sign(mu) * torch.sqrt(2 * exponent)
    rest = torch.zeros_like(a)
    for terms in reversed(_temme(*_ORDERS[a.dtype])):
        rest = rest * inverse + polynomial(eta, terms)
    rest, z = rest * bell, eta * torch.sqrt(a / 2)
    central = (a > _LARGE) & (mu.abs() < 0.3)
    return (
        torch.where(central, 0.5 * torch.erfc(-z) - rest, lower),
        torch.where(central, 0.5 * torch.erfc(z) + rest, upper),
    )


def _gamma(a: Tensor, x: Tensor, upper: bool) -> Tensor:
    a, x = torch.broadcast_tensors(*promoted(a, x, floating=True))
    if not a.is_floating_point():
        return NotImplemented  # an error of torch
    if not a.numel():
        return a.clone()
    inside = (a > 0) & (x > 0) & torch.isfinite(a) & torch.isfinite(x)
    found = _incomplete(torch.where(inside, a, torch.ones_like(a)), torch.where(inside, x, torch.ones_like(x)))[upper]
    nothing, whole, nan = (full(a, v) for v in (float(upper), float(not upper), math.nan))
    edge = torch.where(x == math.inf, whole, nan)
    edge = torch.where(a == math.inf, torch.where(x == math.inf, nan, nothing), edge)
    edge = torch.where(a == 0, torch.where(x > 0, whole, nan), torch.where(x == 0, nothing, edge))
    return torch.where((a < 0) | (x < 0), nan, torch.where(inside, found, edge))


def igamma(a: Tensor, x: Tensor) -> Tensor:
    return _gamma(a, x, False)


def igammac(a: Tensor, x: Tensor) -> Tensor:
    return _gamma(a, x, True)


# ---- Hurwitz' zeta function


def zeta(s: Tensor, q: Tensor) -> Tensor:
    s, q = torch.broadcast_tensors(*promoted(as_floating(s), as_floating(q), floating=True))
    floor = torch.floor(q)
    whole, positive = q == floor, q > 0
    exponent = torch.where(s > 1, s, full(s, 2.0)).clamp(max=1e30)
    fraction = q - floor
    found = hurwitz(exponent, torch.where(positive, q, fraction))
    # The terms below 0 are those of another two, with the sign of (-1)^s; s is an integer there.
    sign = 1 - 2 * torch.remainder(exponent, 2)
    mirrored = found + sign * hurwitz(exponent, 1 - fraction)
    mirrored = mirrored - sign * hurwitz(exponent, 1 - torch.where(positive, fraction, q))
    found = torch.where(positive, found, mirrored)
    refused = ~positive & (exponent != torch.floor(exponent))
    found = torch.where(refused | torch.isnan(s), full(q, math.nan), found)
    found = torch.where(~positive & whole, full(q, math.inf), found)
    return torch.where(s == 1, full(q, math.inf), torch.where(s < 1, full(q, math.nan), found))
