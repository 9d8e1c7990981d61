"""Operators that draw random numbers: judged by the distribution of many draws, with fixed seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from judge import Verdict, differs

DRAWS = 400_000
P_VALUE = 1e-5

Draw = Callable[[torch.dtype, torch.device], torch.Tensor]
_P = 0.1
"""A probability that half precision does not have: dropout is asked for it."""


def _zeros(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(DRAWS, dtype=dtype, device=device)


def _ones(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.ones(DRAWS, dtype=dtype, device=device)


def _in_place(name: str, *arguments: Any) -> Draw:
    return lambda dtype, device: getattr(_zeros(dtype, device), name)(*arguments)


def _channels(function: Callable[..., torch.Tensor], rank: int) -> Draw:
    def draw(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        x = torch.ones(8, DRAWS // 8, *([2] * rank), dtype=dtype, device=device)
        return function(x, _P, True).flatten(2)[..., 0]

    return draw


def _multinomial(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    weights = torch.tensor([1, 2, 3, 4], dtype=dtype, device=device)
    return torch.multinomial(weights.expand(DRAWS, 4), 1)


def _native_dropout(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.native_dropout(_ones(dtype, device), _P, True)[0]


def _attention(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Attention to equal keys with the values one: each row is the share of keys that dropout kept."""
    q = torch.zeros(1, 16, 256, 8, dtype=dtype, device=device)
    return F.scaled_dot_product_attention(q, q, torch.ones_like(q), dropout_p=0.5)[..., 0].float().round(decimals=1)


DRAW: dict[str, Draw] = {
    "bernoulli": lambda dtype, device: torch.bernoulli(torch.full((DRAWS,), 0.3, dtype=dtype, device=device)),
    "cauchy": _in_place("cauchy_"),
    "exponential": _in_place("exponential_", 1.5),
    "geometric": _in_place("geometric_", 0.3),
    "log_normal": _in_place("log_normal_", 0.0, 0.25),
    "multinomial": _multinomial,
    "normal": lambda dtype, device: torch.normal(_zeros(dtype, device), _ones(dtype, device)),
    "normal.in_place": _in_place("normal_", 0.5, 2.0),
    "normal.number_mean": lambda dtype, device: torch.normal(0.5, _ones(dtype, device)),
    "rand_like": lambda dtype, device: torch.rand_like(_zeros(dtype, device)),
    "randint": lambda dtype, device: torch.randint(2, 100, (DRAWS,), dtype=dtype, device=device),
    "randint_like": lambda dtype, device: torch.randint_like(_zeros(dtype, device), 2, 100),
    "randn": lambda dtype, device: torch.randn(DRAWS, dtype=dtype, device=device),
    "randn_like": lambda dtype, device: torch.randn_like(_zeros(dtype, device)),
    "uniform": _in_place("uniform_", -1.0, 2.0),
    "nn.functional.alpha_dropout": lambda dtype, device: F.alpha_dropout(_ones(dtype, device), _P, True),
    "nn.functional.dropout": lambda dtype, device: F.dropout(_ones(dtype, device), _P, True),
    "nn.functional.dropout2d": _channels(F.dropout2d, 2),
    "nn.functional.dropout3d": _channels(F.dropout3d, 3),
    "nn.functional.feature_alpha_dropout.with_train": _channels(F.feature_alpha_dropout, 2),
    "nn.functional.rrelu": lambda dtype, device: F.rrelu(-_ones(dtype, device), 0.1, 0.9, True),
    "nn.functional.scaled_dot_product_attention": _attention,
}
NAMES = frozenset(DRAW) | {
    "nn.functional.feature_alpha_dropout.without_train",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward",
    "svd_lowrank",
    "pca_lowrank",
}
"""Of the last ones only dtype and shape are compared: their draws choose among results of no known distribution."""


def p_value(a: torch.Tensor, b: torch.Tensor) -> float:
    """Two-sample Kolmogorov–Smirnov test; with ties it errs on the side of equality."""
    a, b = a.double().flatten().sort().values, b.double().flatten().sort().values
    points = torch.cat([a, b])
    distance = torch.searchsorted(a, points, right=True) / len(a) - torch.searchsorted(b, points, right=True) / len(b)
    effective = math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    x = (effective + 0.12 + 0.11 / effective) * float(distance.abs().max())
    if x < 0.2:
        return 1.0
    return max(0.0, min(1.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * k * k * x * x) for k in range(1, 101))))


def judged(name: str, dtype: torch.dtype, device: torch.device) -> dict[str, Any] | None:
    """What is found for one operator and dtype; None if there is nothing to judge."""
    draw = DRAW.get(name)
    if draw is None:
        return None
    torch.manual_seed(11)
    try:
        cpu = draw(dtype, torch.device("cpu"))
    except Exception:
        return None
    torch.manual_seed(11)
    kind = "raises"
    try:
        drawn = draw(dtype, device)
        kind = "raises late"
        found = drawn.cpu()
    except Exception as error:
        return {"kind": kind, "detail": f"{type(error).__name__}: {str(error)[:200]}"}
    return _verdict(name, found, cpu).row()


def _verdict(name: str, found: torch.Tensor, cpu: torch.Tensor) -> Verdict:
    if found.dtype != cpu.dtype:
        return differs("dtype", f"{found.dtype}, on the CPU {cpu.dtype}")
    limit = {"rand_like": 1.0, "uniform": 2.0}.get(name)
    if limit is not None and bool((found.double() >= limit).any()):
        return differs("distribution", f"{limit:g} is drawn, which is excluded")
    p = p_value(found, cpu)
    ratio = math.log(max(p, 1e-300)) / math.log(P_VALUE)
    mean, own = float(found.double().mean()), float(cpu.double().mean())
    detail = f"p = {p:.1e}, mean {mean:.4g}, on the CPU {own:.4g}"
    return Verdict("distribution", detail, ratio) if ratio > 1 else Verdict("same", "", ratio)
