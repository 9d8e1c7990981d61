"""Histograms of floating-point numbers, of one and several dimensions."""

import math
from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor

from .common import only
from .selection import searchsorted

Range = Optional[Sequence[float]]


def _columns(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


_has_dtype = only(lambda x, *_: x.dtype in (torch.float32, torch.float64))


def _taken(x: Tensor, weight: Optional[Tensor], dimensions: int) -> bool:
    weights = weight is None or (weight.dtype == x.dtype and weight.shape == x.shape[:-1])
    return x.dim() > 1 and x.shape[-1] == dimensions and weights


def _ends(x: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest element, or one around them if they are one."""
    if not x.numel():
        return x.new_zeros(()), x.new_ones(())
    low, high = x.min(), x.max()
    widened = (low == high).to(x.dtype) * 0.5
    return low - widened, high + widened


def _edges(x: Tensor, bins: Sequence[int], between: Range) -> list[Tensor]:
    """The bins' edges of each column, as torch.linspace has them."""
    if between is not None:
        pairs = zip(between[::2], between[1::2], strict=True)
        edges = [torch.linspace(*pair, n + 1, dtype=x.dtype) for pair, n in zip(pairs, bins, strict=True)]
        return [e.to(x.device) for e in edges]
    found = []
    for column, n in zip(_columns(x).unbind(1), bins, strict=True):
        low, high = _ends(column)
        number = torch.arange(n + 1, dtype=x.dtype, device=x.device)
        step = (high - low) / n
        found.append(torch.where(number < (n + 1) // 2, low + step * number, high - step * (n - number)))
    return found


def _bin(x: Tensor, edges: Tensor, even: bool) -> Tensor:
    """The bin of each element, that of the last edge the last one; -1 of what is beyond."""
    bins = edges.shape[0] - 1
    if even:
        guess = ((x - edges[0]) * (bins / (edges[bins] - edges[0]))).clamp(0, bins - 1).long()
        guess = (guess - (x < edges.index_select(0, guess)).long()).clamp(min=0)
        found = guess + (x >= edges.index_select(0, guess + 1)).long()
    else:
        found = searchsorted(edges, x, False, True, None, None) - 1
    inside = (x >= edges[0]) & (x <= edges[bins])
    return torch.where(inside, found.clamp(0, bins - 1), -1)


def _counted(x: Tensor, edges: Sequence[Tensor], weight: Optional[Tensor], density: bool, even: bool) -> Tensor:
    sizes = [e.shape[0] - 1 for e in edges]
    columns = _columns(x)
    place = torch.zeros(columns.shape[0], dtype=torch.int64, device=x.device)
    inside = torch.ones_like(place, dtype=torch.bool)
    for column, edge, size in zip(columns.unbind(1), edges, sizes, strict=True):
        found = _bin(column, edge, even)
        inside, place = inside & (found >= 0), place * size + found
    counted = torch.ones_like(columns[:, 0]) if weight is None else weight.reshape(-1)
    sums = x.new_zeros(math.prod(sizes) + 1)
    sums = sums.scatter_add(0, torch.where(inside, place, math.prod(sizes)), counted)
    found = sums[:-1].reshape(sizes)
    if even:
        # torch refuses a range that is not finite.
        ends = torch.stack([e[place] for e in edges for place in (0, -1)])
        found = torch.where(ends.isfinite().all(), found, math.nan)
    if density:
        found = found / found.sum()
        for dim, edge in enumerate(edges):
            width = (edge[1:] - edge[:-1]).reshape([-1] + [1] * (len(sizes) - 1 - dim))
            found = found / width
    return found


def _refused(bins: Sequence[int], between: Range) -> bool:
    """Whether torch refuses these, or has more to say of them."""
    if min(bins) <= 0:
        return True
    return between is not None and (
        len(between) != 2 * len(bins)
        or not all(map(math.isfinite, between))
        or any(low >= high for low, high in zip(between[::2], between[1::2], strict=True))
    )


@_has_dtype
def histogramdd_edges(x: Tensor, bins: Sequence[int], between: Range, weight: Optional[Tensor], density: bool):
    return NotImplemented if not _taken(x, weight, len(bins)) or _refused(bins, between) else _edges(x, bins, between)


@_has_dtype
def histogramdd(x: Tensor, bins: Sequence[int], between: Range, weight: Optional[Tensor], density: bool) -> Tensor:
    if not _taken(x, weight, len(bins)) or _refused(bins, between):
        return NotImplemented
    return _counted(x, _edges(x, bins, between), weight, density, True)


@_has_dtype
def histogramdd_of_bins(x: Tensor, bins: Sequence[Tensor], weight: Optional[Tensor], density: bool) -> Tensor:
    if not _taken(x, weight, len(bins)) or any(e.dtype != x.dtype or e.dim() != 1 or e.shape[0] < 2 for e in bins):
        return NotImplemented
    return _counted(x, bins, weight, density, False)


def _column(x: Tensor, weight: Optional[Tensor]) -> tuple[Tensor, Optional[Tensor]]:
    if weight is not None and weight.shape == x.shape:
        weight = weight.reshape(-1)
    return x.reshape(-1, 1), weight


@_has_dtype
def histogram(x: Tensor, bins: int, between: Range, weight: Optional[Tensor], density: bool):
    x, weight = _column(x, weight)
    if not _taken(x, weight, 1) or _refused([bins], between):
        return NotImplemented
    edges = _edges(x, [bins], between)
    return _counted(x, edges, weight, density, True), edges[0]


@_has_dtype
def histogram_of_bins(x: Tensor, bins: Tensor, weight: Optional[Tensor], density: bool):
    x, weight = _column(x, weight)
    found = histogramdd_of_bins(x, [bins], weight, density)
    return found if found is NotImplemented else (found, bins.clone())
