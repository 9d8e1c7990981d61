"""Special functions: rational and Chebyshev approximations, series and recurrences."""

import math
from collections.abc import Callable, Sequence
from typing import Union

import torch
from torch import Tensor
from torch_xla._castoff import TOPICS

from . import coefficients as c
from .common import as_floating, promoted

_NEGLIGIBLE = 1e-10
"""Chebyshev coefficients below it are nothing in float32."""


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    found = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        found = found * x + coefficient
    return found


def _chebyshev(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    if x.dtype == torch.float32:
        first = next(i for i, coefficient in enumerate(coefficients) if abs(coefficient) > _NEGLIGIBLE)
        coefficients = coefficients[first:]
    before, last, found = torch.zeros_like(x), torch.zeros_like(x), torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        before, last = last, found
        found = x * last - before + coefficient
    return 0.5 * (found - before)


def full(x: Tensor, value: float) -> Tensor:
    return torch.full_like(x, value)


# ---- gamma functions

_LANCZOS_G = 7.0
_LANCZOS = (
    676.520368121885098567009190444019,
    -1259.13921672240287047156078755283,
    771.3234287776530788486528258894,
    -176.61502916214059906584551354,
    12.507343278686904814458936853,
    -0.13857109526572011689554707,
    9.984369578019570859563e-6,
    1.50563273514931155834e-7,
)


def _zeta_minus_1(k: int) -> float:
    """ζ(k) - 1, by Euler and Maclaurin."""
    n = 16
    rest = n ** (1 - k) / (k - 1) + 0.5 * n**-k + k / 12 * n ** (-k - 1) - k * (k + 1) * (k + 2) / 720 * n ** (-k - 3)
    return sum(i**-k for i in range(2, n)) + rest


_LGAMMA_AT_2 = [0.0, 1 - 0.57721566490153286061, *((-1) ** k * _zeta_minus_1(k) / k for k in range(2, 30))]
"""The Taylor series of log Γ(2 + u), the lowest power first: exact in float64 for |u| ≤ 1/2."""


def lgamma_at_2(dtype: torch.dtype) -> list[float]:
    return _LGAMMA_AT_2 if dtype == torch.float64 else _LGAMMA_AT_2[:14]


def lgamma(x: Tensor) -> Tensor:
    x = as_floating(x)
    reflected = x < 0.5
    y = torch.where(reflected, 1 - x, x)
    # Around 1, 2 and 3 by the series, which keeps the digits near the zeros at 1 and 2.
    near = y < 3.5
    centre = torch.round(torch.where(near, y, torch.ones_like(y))).clamp(min=1)
    u = torch.where(near, y - centre, torch.zeros_like(y))
    series = polynomial(u, lgamma_at_2(x.dtype)[::-1])
    series = torch.where(centre == 1, series - torch.log1p(u), series)
    series = torch.where(centre == 3, series + torch.log(y - 1), series)
    far = _lanczos_lgamma if x.dtype == torch.float64 else _stirling_lgamma
    found = torch.where(near, series, far(torch.where(near, full(y, 4.0), y)))
    absolute = x.abs()
    fraction = absolute - torch.floor(absolute)
    fraction = torch.where(fraction > 0.5, 1 - fraction, fraction)
    sine = torch.log(torch.sin(math.pi * fraction))
    found = torch.where(reflected, math.log(math.pi) - sine - found, found)
    pole = (x <= 0) & (fraction == 0)
    return torch.where(pole | torch.isinf(x), full(x, math.inf), found)


def _lanczos_lgamma(x: Tensor) -> Tensor:
    z = x - 1
    total = full(z, 0.99999999999980993227684700473478)
    for i, coefficient in enumerate(_LANCZOS, 1):
        total = total + coefficient / (z + i)
    t = _LANCZOS_G + 0.5 + z
    log_t = math.log(_LANCZOS_G + 0.5) + torch.log1p(z / (_LANCZOS_G + 0.5))
    return (z + 0.5 - t / log_t) * log_t + (0.5 * math.log(2 * math.pi) + torch.log(total))


def _stirling_lgamma(x: Tensor) -> Tensor:
    """Of x ≥ 3.5, exact in float32."""
    inverse = 1 / x
    rest = polynomial(inverse * inverse, STIRLING[3::-1]) * inverse + (0.5 * math.log(2 * math.pi) - 0.5)
    return (x - 0.5) * (torch.log(x) - 1) + rest


def _cotangent(x: Tensor) -> Tensor:
    """cot(πx), of x reduced to within a half of an integer, where it is exact."""
    reduced = (x - torch.round(x)) * math.pi
    return torch.cos(reduced) / torch.sin(reduced)


_STEPS = 8
"""By so much arguments are moved up, where the asymptotic series are exact."""
_STEPS_OF_FLOAT32 = 3

BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
STIRLING = tuple(b / (2 * k * (2 * k - 1)) for k, b in enumerate(BERNOULLI, 1))


def digamma(x: Tensor) -> Tensor:
    x = as_floating(x)
    reflected = x < 0.5
    y = torch.where(reflected, 1 - x, x)
    steps = _STEPS if x.dtype == torch.float64 else _STEPS_OF_FLOAT32
    moved, shift = y + steps, torch.zeros_like(y)
    for k in range(steps):
        shift = shift + 1 / (y + k)
    # A large argument needs no moving, and loses digits by it.
    large = y > 1e6
    z = torch.where(large, y, moved)
    inverse = 1 / (z * z)
    terms = [-b / (2 * k) for k, b in enumerate(BERNOULLI, 1)][::-1]
    series = polynomial(inverse, (*terms, 0.0))
    found = torch.log(z) - 0.5 / z + series - torch.where(large, torch.zeros_like(shift), shift)
    found = torch.where(reflected, found - math.pi * _cotangent(x), found)
    pole = (x < 0) & (x == torch.floor(x))
    found = torch.where(pole, full(x, math.nan), found)
    found = torch.where(x == 0, -1 / x, found)
    return torch.where(x == math.inf, x, found)


def hurwitz(s: Union[float, Tensor], q: Tensor) -> Tensor:
    """Hurwitz' zeta function of s > 1 and q > 0, by Euler and Maclaurin."""
    total = torch.zeros_like(q)
    for k in range(_STEPS + 2):
        total = total + torch.pow(q + k, -s)
    a = q + (_STEPS + 2)
    power = torch.pow(a, -s)
    total = total + torch.pow(a, 1 - s) / (s - 1) + 0.5 * power
    term = power * (s / a)
    for k, bernoulli in enumerate(BERNOULLI, 1):
        total = total + term * (bernoulli / math.factorial(2 * k))
        term = term * ((s + (2 * k - 1)) / a) * ((s + 2 * k) / a)
    return total


def _derivatives_of_the_cotangent(n: int) -> list[int]:
    """The n-th derivative of the cotangent as a polynomial of it, the highest power first."""
    found = [0, 1]  # the lowest power first
    for _ in range(n):
        slope = [k * a for k, a in enumerate(found)][1:]
        found = [-(a + b) for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    return found[::-1]


def polygamma(n: int, x: Tensor) -> Tensor:
    if n == 0:
        return digamma(x)
    if n < 0 or n > 20:
        return NotImplemented
    x = as_floating(x)
    reflected = x < 0.5
    sign = 1.0 if n % 2 else -1.0
    found = sign * math.factorial(n) * hurwitz(n + 1.0, torch.where(reflected, 1 - x, x))
    cotangent = polynomial(_cotangent(x), [float(k) for k in _derivatives_of_the_cotangent(n)])
    mirrored = -sign * found - math.pi ** (n + 1) * cotangent
    found = torch.where(reflected, mirrored, found)
    pole = (x <= 0) & (x == torch.floor(x))
    found = torch.where(pole, full(x, sign * math.inf), found)
    found = torch.where(x == -math.inf, full(x, math.nan), found)
    return torch.where(x == math.inf, torch.zeros_like(x), found)


# ---- the normal distribution


def ndtri(y: Tensor) -> Tensor:
    y = as_floating(y)
    bound = 0.13533528323661269189
    upper = y > 1 - bound
    p = torch.where(upper, 1 - y, y)
    centred = p - 0.5
    square = centred * centred
    middle = centred + centred * (square * polynomial(square, c.NDTRI_P0) / polynomial(square, c.NDTRI_Q0))
    x = torch.sqrt(-2 * torch.log(p))
    z = 1 / x
    near = polynomial(z, c.NDTRI_P1) / polynomial(z, c.NDTRI_Q1)
    far = polynomial(z, c.NDTRI_P2) / polynomial(z, c.NDTRI_Q2)
    tail = x - torch.log(x) / x - z * torch.where(x < 8, near, far)
    found = torch.where(p > bound, middle * math.sqrt(2 * math.pi), torch.where(upper, tail, -tail))
    found = torch.where(y == 0, full(y, -math.inf), torch.where(y == 1, full(y, math.inf), found))
    return torch.where((y < 0) | (y > 1), full(y, math.nan), found)


_ERFCX = (
    0.17087277,
    -0.82215223,
    1.48851587,
    -1.13520398,
    0.27886807,
    -0.18628806,
    0.09678418,
    0.37409196,
    1.00002368,
    -1.26551223,
)
"""log(erfcx(x) / t) as a polynomial of t = 1 / (1 + x / 2), for x ≥ 0, exact to 1.2e-7."""


def erfcx(x: Tensor) -> Tensor:
    x = as_floating(x)
    if x.dtype == torch.float64:
        return NotImplemented  # the polynomial has the digits of float32
    absolute = x.abs()
    t = 1 / (1 + 0.5 * absolute)
    found = t * torch.exp(polynomial(t, _ERFCX))
    far = (1 / math.sqrt(math.pi)) / absolute.clamp(min=1)
    found = torch.where(absolute > 1e4, far, found)
    return torch.where(x < 0, 2 * torch.exp(x * x) - found, found)


def log_ndtr(x: Tensor) -> Tensor:
    x = as_floating(x)
    if x.dtype == torch.float64:
        return NotImplemented
    t = x * math.sqrt(0.5)
    below = torch.log(erfcx((-t).clamp(min=0)) / 2) - t * t
    return torch.where(x < -1, below, torch.log1p(-torch.erfc(t) / 2))


# ---- Bessel functions


def _scaled_i(x: Tensor, near: Sequence[float], far: Sequence[float], factor: Tensor) -> Tensor:
    small = torch.where(x <= 8, x, torch.ones_like(x))
    large = torch.where(x > 8, x, full(x, 8.0))
    found = _chebyshev(small / 2 - 2, near) * factor
    return torch.where(x <= 8, found, _chebyshev(32 / large - 2, far) / torch.sqrt(large))


def i0e(x: Tensor) -> Tensor:
    absolute = as_floating(x).abs()
    return _nan_of(x, _scaled_i(absolute, c.I0E_A, c.I0E_B, torch.ones_like(absolute)))


def i1e(x: Tensor) -> Tensor:
    x = as_floating(x)
    absolute = x.abs()
    found = _scaled_i(absolute, c.I1E_A, c.I1E_B, absolute)
    return _nan_of(x, torch.where(x < 0, -found, found))


def _nan_of(x: Tensor, found: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), x, found) if x.is_floating_point() else found


def i0(x: Tensor) -> Tensor:
    x = as_floating(x)
    return torch.exp(x.abs()) * i0e(x)


def i1(x: Tensor) -> Tensor:
    x = as_floating(x)
    return torch.exp(x.abs()) * i1e(x)


def _scaled_k(x: Tensor, a: Sequence[float], b: Sequence[float], near: Callable) -> Tensor:
    small = torch.where(x <= 2, x, torch.ones_like(x))
    large = torch.where(x > 2, x, full(x, 2.0))
    below = near(small, _chebyshev(small * small - 2, a)) * torch.exp(small)
    found = torch.where(x <= 2, below, _chebyshev(8 / large - 2, b) / torch.sqrt(large))
    found = torch.where(x == 0, full(x, math.inf), torch.where(x < 0, full(x, math.nan), found))
    return _nan_of(x, found)


def scaled_k0(x: Tensor) -> Tensor:
    x = as_floating(x)
    return _scaled_k(x, c.K0_A, c.K0_B, lambda x, series: series - torch.log(0.5 * x) * i0(x))


def scaled_k1(x: Tensor) -> Tensor:
    x = as_floating(x)
    return _scaled_k(x, c.K1_A, c.K1_B, lambda x, series: torch.log(0.5 * x) * i1(x) + series / x)


def k0(x: Tensor) -> Tensor:
    x = as_floating(x)
    return torch.where(x == 0, full(x, math.inf), scaled_k0(x) * torch.exp(-x))


def k1(x: Tensor) -> Tensor:
    x = as_floating(x)
    return torch.where(x == 0, full(x, math.inf), scaled_k1(x) * torch.exp(-x))


def _waves(x: Tensor, prefix: str, phase: float) -> tuple[Tensor, Tensor, Tensor]:
    """Cosine and sine amplitudes for x > 5, and the angle."""
    square = 25 / (x * x)
    p = polynomial(square, getattr(c, prefix + "_PP")) / polynomial(square, getattr(c, prefix + "_PQ"))
    q = polynomial(square, getattr(c, prefix + "_QP")) / polynomial(square, getattr(c, prefix + "_QQ"))
    scale = math.sqrt(2 / math.pi) / torch.sqrt(x)
    return p * scale, 5 / x * q * scale, x - phase


_QUARTER, _THREE_QUARTERS = math.pi / 4, 3 * math.pi / 4


def j0(x: Tensor) -> Tensor:
    x = as_floating(x).abs()
    small, large = torch.where(x <= 5, x, torch.ones_like(x)), torch.where(x > 5, x, full(x, 5.0))
    square = small * small
    near = (square - 5.78318596294678452118) * (square - 3.04712623436620863991e01)
    near = near * polynomial(square, c.J0_RP) / polynomial(square, c.J0_RQ)
    p, q, angle = _waves(large, "J0", _QUARTER)
    return _nan_of(x, torch.where(x <= 5, near, p * torch.cos(angle) - q * torch.sin(angle)))


def j1(x: Tensor) -> Tensor:
    given = as_floating(x)
    x = given.abs()
    small, large = torch.where(x <= 5, x, torch.ones_like(x)), torch.where(x > 5, x, full(x, 5.0))
    square = small * small
    near = (square - 1.46819706421238932572e01) * (square - 4.92184563216946036703e01)
    near = near * small * polynomial(square, c.J1_RP) / polynomial(square, c.J1_RQ)
    p, q, angle = _waves(large, "J1", _THREE_QUARTERS)
    found = torch.where(x <= 5, near, p * torch.cos(angle) - q * torch.sin(angle))
    return _nan_of(given, torch.where(given < 0, -found, found))


def _y(x: Tensor, prefix: str, phase: float, near: Callable) -> Tensor:
    small = torch.where((x <= 5) & (x > 0), x, torch.ones_like(x))
    large = torch.where(x > 5, x, full(x, 5.0))
    p, q, angle = _waves(large, prefix, phase)
    found = torch.where(x <= 5, near(small), p * torch.sin(angle) + q * torch.cos(angle))
    found = torch.where(x == 0, full(x, -math.inf), torch.where(x < 0, full(x, math.nan), found))
    return _nan_of(x, found)


def y0(x: Tensor) -> Tensor:
    def near(x: Tensor) -> Tensor:
        square = x * x
        rational = polynomial(square, c.Y0_YP) / polynomial(square, c.Y0_YQ)
        return rational + (2 / math.pi) * torch.log(x) * j0(x)

    return _y(as_floating(x), "J0", _QUARTER, near)


def y1(x: Tensor) -> Tensor:
    def near(x: Tensor) -> Tensor:
        square = x * x
        rational = x * polynomial(square, c.Y1_YP) / polynomial(square, c.Y1_YQ)
        return rational + (2 / math.pi) * (j1(x) * torch.log(x) - 1 / x)

    return _y(as_floating(x), "J1", _THREE_QUARTERS, near)


def spherical_j0(x: Tensor) -> Tensor:
    x = as_floating(x)
    square = x * x
    series = polynomial(square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)])
    found = torch.where(x.abs() < 0.5, series, torch.sin(x) / torch.where(x == 0, torch.ones_like(x), x))
    return torch.where(torch.isinf(x), torch.zeros_like(x), found)


_AIRY_0, _MINUS_AIRY_SLOPE_0 = 0.355028053887817239260, 0.258819403792806798405


def airy_ai(x: Tensor) -> Tensor:
    x = as_floating(x)
    above, below = x >= 2.09, x < -2.09
    large = torch.where(above | below, x.abs(), full(x, 4.0))
    root = torch.sqrt(large)
    zeta = large * root * (2 / 3)
    inverse = 1 / zeta
    falling = polynomial(inverse, c.AIRY_AN) / polynomial(inverse, c.AIRY_AD) * torch.exp(-zeta) * 0.5
    square = inverse * inverse
    p = 1 + square * polynomial(square, c.AIRY_AFN) / polynomial(square, c.AIRY_AFD)
    q = inverse * polynomial(square, c.AIRY_AGN) / polynomial(square, c.AIRY_AGD)
    wave = torch.sin(zeta + math.pi / 4) * p - torch.cos(zeta + math.pi / 4) * q
    outside = torch.where(above, falling, wave) / (math.sqrt(math.pi) * torch.sqrt(root))
    near = torch.where(above | below, torch.zeros_like(x), x)
    even, odd = [_AIRY_0], [_MINUS_AIRY_SLOPE_0]
    for k in range(1, 16):
        even.append(even[-1] / (3 * k * (3 * k - 1)))
        odd.append(odd[-1] / (3 * k * (3 * k + 1)))
    cube = near * near * near
    middle = polynomial(cube, even[::-1]) - near * polynomial(cube, odd[::-1])
    found = torch.where(above | below, outside, middle)
    return _nan_of(x, torch.where(torch.isinf(x), full(x, math.nan), found))


# ---- orthogonal polynomials


def _recurrence(first: Callable, step: Callable, limit: bool = False) -> Callable:
    """The polynomials p[0] = 1, p[1] = first(x), p[j + 1] = step(x, j, p[j], p[j - 1]), of degrees in a tensor."""

    def polynomial(x: Tensor, n: Tensor) -> Tensor:
        if "control-flow" not in TOPICS:
            return NotImplemented  # traced loops of XLA:CPU 2.6 give other results from run to run
        if not isinstance(x, Tensor) or not isinstance(n, Tensor):
            given = x if isinstance(x, Tensor) else n
            x, n = (t if isinstance(t, Tensor) else torch.tensor(t, device=given.device) for t in (x, n))
        x, n = promoted(x, n, floating=True)
        x, n = torch.broadcast_tensors(x, n)
        if x.numel() == 0:
            return x.clone()
        degree = torch.trunc(n)
        linear = first(x)
        found = torch.where(degree == 0, torch.ones_like(x), linear)
        found = torch.where(degree < 0, torch.zeros_like(x), found)
        if limit:
            highest = 512 if x.dtype == torch.float64 else 128
            found = torch.where(degree > highest, full(x, math.nan), found)
            degree = torch.where(degree > highest, torch.zeros_like(degree), degree)
        largest = degree.max()

        def more(j: Tensor, last: Tensor, before: Tensor, found: Tensor, degree: Tensor, x: Tensor) -> Tensor:
            return j < largest

        def next_degree(j: Tensor, last: Tensor, before: Tensor, found: Tensor, degree: Tensor, x: Tensor) -> tuple:
            new = step(x, j, last, before)
            return j + 1, new, last * 1.0, torch.where(degree == j + 1, new, found), degree * 1.0, x * 1.0

        state = [torch.ones_like(largest), linear * 1.0, torch.ones_like(x), found, degree, x * 1.0]
        return while_loop(more, next_degree, state)[3]

    return polynomial


def while_loop(condition: Callable, body: Callable, state: list[Tensor]) -> list[Tensor]:
    from torch_xla._control_flow import _while_loop

    return _while_loop(condition, body, state)


def _twice(x: Tensor, _: Tensor, last: Tensor, before: Tensor) -> Tensor:
    return 2 * x * last - before


def _shifted(polynomial: Callable) -> Callable:
    return lambda x, n: polynomial(2 * as_floating(x) - 1, n)


chebyshev_t = _recurrence(lambda x: x, _twice)
chebyshev_u = _recurrence(lambda x: 2 * x, _twice)
chebyshev_v = _recurrence(lambda x: 2 * x - 1, _twice)
chebyshev_w = _recurrence(lambda x: 2 * x + 1, _twice)
shifted_chebyshev_t, shifted_chebyshev_u = _shifted(chebyshev_t), _shifted(chebyshev_u)
shifted_chebyshev_v, shifted_chebyshev_w = _shifted(chebyshev_v), _shifted(chebyshev_w)
hermite_h = _recurrence(lambda x: 2 * x, lambda x, j, last, before: 2 * x * last - 2 * j * before, limit=True)
hermite_he = _recurrence(lambda x: x, lambda x, j, last, before: x * last - j * before, limit=True)
laguerre_l = _recurrence(lambda x: 1 - x, lambda x, j, last, before: ((2 * j + 1 - x) * last - j * before) / (j + 1))
legendre_p = _recurrence(lambda x: x, lambda x, j, last, before: ((2 * j + 1) * x * last - j * before) / (j + 1))
