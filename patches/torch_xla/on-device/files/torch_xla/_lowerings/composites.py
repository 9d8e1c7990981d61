"""Operators that torch makes of others and of a look at values: here nothing is looked at."""

import warnings
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from .common import keeps_dtypes, only

# ---- functions that autograd sees; the key by which inference mode calls them is not of XLA alone


def _is_on_xla(x: Tensor, *_: Any) -> bool:
    return x.device.type == "xla"


@only(_is_on_xla)
def combinations(x: Tensor, r: int, with_replacement: bool) -> Tensor:
    """torch chooses them by a mask. Which they are depends on the number of elements alone."""
    if x.dim() != 1 or r < 1:
        return NotImplemented
    places = torch.combinations(torch.arange(x.shape[0], device="cpu"), r, with_replacement)
    return x.index_select(0, places.flatten().to(x.device)).reshape(-1, r)


def _are_weights(weights: Optional[Tensor], x: Tensor, floating: bool) -> bool:
    if weights is None:
        return True
    count = x.shape[-1] if x.dim() else 1
    is_right = weights.is_floating_point() == floating and weights.dtype != torch.bool and not weights.is_complex()
    return is_right and weights.dim() <= 1 and weights.numel() == count and weights.device == x.device


@only(_is_on_xla)
def cov(x: Tensor, correction: int, frequencies: Optional[Tensor], weights: Optional[Tensor]) -> Tensor:
    """Weights that torch refuses after a look at them give NaN."""
    good = _are_weights(frequencies, x, False) and _are_weights(weights, x, True)
    if x.dim() > 2 or x.dtype == torch.bool or not x.numel() or not good:
        return NotImplemented
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    given = [w for w in (frequencies, weights) if w is not None]
    if not given:
        count = rows.shape[1]
        if count <= correction:
            warnings.warn("cov(): degrees of freedom is <= 0", stacklevel=2)
        rows = rows - rows.sum(1, keepdim=True) / count
        return torch.true_divide(rows @ rows.t().conj(), max(count - correction, 0)).squeeze()
    w = given[0] if len(given) == 1 else given[0] * given[1]
    total = w.sum()
    rows = rows - (rows * w).sum(1, keepdim=True) / total
    found = rows @ (rows * w).t().conj()
    divisor = total - correction * ((w * weights).sum() / total if weights is not None and correction else 1)
    refused = sum((t.amin() < 0 for t in given), total == 0)
    divisor = torch.where(refused, torch.nan, divisor.to(found.real.dtype).clamp(min=0))
    return torch.true_divide(found, divisor).squeeze()


# ---- evenly spaced numbers


def _is_spaced(start: Any, end: Any, steps: int, *rest: Any) -> bool:
    """Whether the ends are numbers of the device, and so is the result."""
    dtype, layout, device = rest[-4:-1]
    given = [v for v in (start, end) if isinstance(v, Tensor)]
    plain = all(v.dim() == 0 and not v.is_complex() for v in given) and not isinstance(start, complex)
    return (
        (plain and not isinstance(end, complex) and steps >= 0)
        and (dtype is None or not dtype.is_complex)
        and layout in (None, torch.strided)
        and (device is not None and torch.device(device).type == "xla")
    )


def _as(value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device=device)
    return tensor.to(dtype)


def _spaced(start: Any, end: Any, steps: int, dtype: torch.dtype, wide: torch.dtype, device: Any) -> Tensor:
    """The first half from the start, the second from the end; the ends are of the dtype, as torch has them."""
    if steps == 1:
        return _as(start, wide, device).reshape(1)
    first, last = (_as(v, dtype, device).to(wide) for v in (start, end))
    number = torch.arange(steps, dtype=wide, device=device)
    step = (last - first) / max(steps - 1, 1)
    return torch.where(number < steps // 2, first + step * number, last - step * (steps - 1 - number))


@only(_is_spaced)
@keeps_dtypes
def linspace(start: Any, end: Any, steps: int, dtype: Optional[torch.dtype], layout: Any, device: Any, _: Any):
    dtype = dtype or torch.get_default_dtype()
    wide = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else torch.float64
    return _spaced(start, end, steps, dtype, wide, device).to(dtype)


@only(_is_spaced)
@keeps_dtypes
def logspace(start: Any, end: Any, steps: int, base: float, dtype: Optional[torch.dtype], layout: Any, device: Any, _):
    dtype = dtype or torch.get_default_dtype()
    if not isinstance(start, Tensor) and not isinstance(end, Tensor):
        return torch.logspace(start, end, steps, base, dtype=dtype).to(device)
    return torch.pow(base, _spaced(start, end, steps, dtype, torch.float64, device)).to(dtype)


# ---- places in a triangle, which the host counts


def _triangle(places: Callable) -> Callable:
    @keeps_dtypes
    def found(rows: int, columns: int, offset: int, dtype: Any, layout: Any, device: Any, _: Any) -> Tensor:
        if layout not in (None, torch.strided) or device is None:
            return NotImplemented
        # Without a dtype the schema's default comes, which is a number.
        dtype = dtype if isinstance(dtype, torch.dtype) else torch.int64
        return places(rows, columns, offset, dtype=dtype).to(device)

    return found


tril_indices, triu_indices = _triangle(torch.tril_indices), _triangle(torch.triu_indices)
