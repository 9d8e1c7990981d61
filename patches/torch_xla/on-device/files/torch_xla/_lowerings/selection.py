"""What sorting and counting give: medians, modes, positions in sorted sequences."""

import math
from collections.abc import Callable
from typing import Optional, Union

import torch
from torch import Tensor

from .common import only, promoted

_COUNTED = 1024
"""Positions in a sequence up to so long are counted; in a longer one they are found by bisection."""


def _order(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """x sorted, and the places of its elements. Zeros of either sign are equal, and so are NaN, which come last: XLA's
    sort has -0 before 0, and the NaN with a sign, which 0 / 0 is on a CPU, before all numbers."""
    if not x.is_floating_point():
        return torch.sort(x, dim=dim, stable=True)
    keys = torch.where(x == 0, torch.zeros_like(x), x)
    return torch.sort(torch.where(torch.isnan(x), torch.full_like(x, math.nan), keys), dim=dim, stable=True)


def _kth(x: Tensor, dim: int, keepdim: bool, ignore_nan: bool) -> tuple[Tensor, Tensor]:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    index = _order(x, dim)[1]
    size = x.shape[dim]
    wanted = torch.full_like(index.narrow(dim, 0, 1), (size - 1) // 2)
    if x.is_floating_point():
        is_nan = torch.isnan(x)
        nans = is_nan.sum(dim, keepdim=True)
        if ignore_nan:
            wanted = torch.div((size - nans - 1).clamp(min=0), 2, rounding_mode="floor")
        else:
            first_nan = is_nan.to(torch.int32).argmax(dim, keepdim=True)
    places = torch.gather(index, dim, wanted)
    found = torch.gather(x, dim, places)
    if x.is_floating_point():
        hit = nans == size if ignore_nan else nans > 0
        found = torch.where(hit, torch.full_like(found, float("nan")), found)
        if not ignore_nan:
            places = torch.where(hit, first_nan, places)
    return (found, places) if keepdim else (found.squeeze(dim), places.squeeze(dim))


def _of_all(x: Tensor, ignore_nan: bool) -> Tensor:
    if x.numel() == 0 or x.is_complex():
        return NotImplemented
    return _kth(x.reshape(-1), 0, False, ignore_nan)[0]


def median(x: Tensor) -> Tensor:
    return _of_all(x, False)


def nanmedian(x: Tensor) -> Tensor:
    return _of_all(x, True)


def median_dim(x: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    return NotImplemented if x.numel() == 0 else _kth(x, dim, keepdim, False)


def nanmedian_dim(x: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    return NotImplemented if x.numel() == 0 else _kth(x, dim, keepdim, True)


def mode(x: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    if x.numel() == 0:
        return NotImplemented
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    dim, size = dim % x.dim(), x.shape[dim]
    values, index = _order(x, dim)
    number = torch.arange(size, device=x.device).reshape([-1] + [1] * (x.dim() - 1 - dim)).expand(x.shape)
    before = torch.cat([values.narrow(dim, 0, 1), values.narrow(dim, 0, size - 1)], dim)
    starts = torch.where((values != before) | (number == 0), number, torch.zeros_like(number))
    length = number - _running(starts, dim, torch.maximum)
    longest = length.amax(dim, keepdim=True)
    end = torch.where(length == longest, number, torch.full_like(number, size)).amin(dim, keepdim=True)
    places = torch.gather(index, dim, end)
    found = torch.gather(x, dim, places)
    return (found, places) if keepdim else (found.squeeze(dim), places.squeeze(dim))


def _position(ordered: Tensor, values: Tensor, right: bool) -> Tensor:
    """For each of ``values`` [..., M] how many of ``ordered`` [..., N] go before it."""
    size = ordered.shape[-1]
    if size <= _COUNTED:
        ordered, values = ordered.unsqueeze(-2), values.unsqueeze(-1)
        after = ordered > values if right else ordered >= values
        return after.logical_not().sum(-1)
    ordered_rows = ordered.expand(*values.shape[:-1], size) if ordered.dim() == 1 else ordered
    low = torch.zeros_like(values, dtype=torch.int64)
    high = torch.full_like(low, size)
    for _ in range(size.bit_length()):
        middle = torch.div(low + high, 2, rounding_mode="floor")
        here = torch.gather(ordered_rows, -1, middle.clamp(max=size - 1))
        after = here > values if right else here >= values
        open_ = low < high
        low, high = (
            torch.where(open_ & after.logical_not(), middle + 1, low),
            torch.where(open_ & after, middle, high),
        )
    return low


def found_in_sorted(elements: Tensor, others: Tensor) -> Tensor:
    """Which elements are among the others."""
    elements, others = promoted(elements, others)
    ordered = torch.sort(others.reshape(-1))[0]
    place = _position(ordered, elements.reshape(1, -1), False).clamp(max=ordered.numel() - 1)
    return (ordered.index_select(0, place.reshape(-1)) == elements.reshape(-1)).reshape(elements.shape)


def searchsorted(
    ordered: Tensor,
    values: Union[Tensor, float],
    out_int32: bool,
    right: bool,
    side: Optional[str],
    sorter: Optional[Tensor],
) -> Tensor:
    if (side == "left" and right) or ordered.dim() == 0:
        return NotImplemented  # an error of torch
    if not isinstance(values, Tensor):
        values = torch.tensor(values, device=ordered.device)
    if ordered.dtype != values.dtype:
        ordered, values = promoted(ordered, values)
    if ordered.dim() > 1 and ordered.shape[:-1] != values.shape[:-1]:
        return NotImplemented
    if sorter is not None:
        ordered = torch.gather(ordered, -1, sorter)
    shaped = values if values.dim() else values.unsqueeze(0)
    found = _position(ordered, shaped, right or side == "right").reshape(values.shape)
    return found.to(torch.int32) if out_int32 else found


def bucketize(values: Union[Tensor, float], boundaries: Tensor, out_int32: bool, right: bool) -> Tensor:
    if boundaries.dim() != 1:
        return NotImplemented
    return searchsorted(boundaries, values, out_int32, right, None, None)


def nonzero_static(x: Tensor, size: int, fill: int) -> Tensor:
    if x.numel() == 0 or x.dim() == 0 or size == 0:
        # A tensor without dimensions has no indices, and an empty one no elements.
        return torch.full([size, x.dim()], fill, dtype=torch.int64, device=x.device)
    chosen = (x != 0).reshape(-1)
    count = chosen.sum()
    order = torch.sort(chosen.logical_not().to(torch.int32), stable=True)[1]
    if size > order.numel():
        order = torch.constant_pad_nd(order, [0, size - order.numel()])
    order = order.narrow(0, 0, size)
    columns = []
    for length in reversed(x.shape):
        columns.append(torch.remainder(order, length))
        order = torch.div(order, length, rounding_mode="floor")
    found = torch.stack(columns[::-1], 1)
    valid = torch.arange(size, device=x.device) < count
    return torch.where(valid.unsqueeze(1), found, torch.full_like(found, fill))


def _is_of_known_size(repeats: Tensor, size: Optional[int]) -> bool:
    return (
        size is not None and repeats.dim() == 1 and repeats.numel() > 0 and repeats.dtype in (torch.int32, torch.int64)
    )


@only(_is_of_known_size)
def repeat_interleave(repeats: Tensor, size: int) -> Tensor:
    """Each place so many times as the number there says, ``size`` in all."""
    places = torch.arange(size, dtype=torch.int64, device=repeats.device)
    return torch.searchsorted(repeats.cumsum(0), places, right=True).to(repeats.dtype)


def _before(x: Tensor, dim: int, step: int, first: float) -> Tensor:
    """Each element's predecessor so many steps before it; ``first`` where there is none."""
    head = torch.full_like(x.narrow(dim, 0, step), first)
    return torch.cat([head, x.narrow(dim, 0, x.shape[dim] - step)], dim)


def _running(x: Tensor, dim: int, function: Callable) -> Tensor:
    """``function`` of all elements up to each, of numbers from 0 on: steps of 1, 2, 4, … elements."""
    step = 1
    while step < x.shape[dim]:
        x = function(x, _before(x, dim, step, 0))
        step *= 2
    return x


def _first_in_order(x: Tensor, dim: int, precedes: Callable) -> tuple[Tensor, Tensor]:
    # torch_xla's cummax does not look for NaN, and the TPU compiler does not survive it.
    if x.dtype == torch.bool:
        values, index = _first_in_order(x.to(torch.uint8), dim, precedes)
        return values.to(torch.bool), index
    if x.numel() == 0 or x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    dim, step = dim % x.dim(), 1
    index = torch.arange(x.shape[dim], device=x.device).reshape([-1] + [1] * (x.dim() - 1 - dim)).expand(x.shape)
    while step < x.shape[dim]:
        value, place = _before(x, dim, step, 0), _before(index, dim, step, -1)
        first = precedes(value, x)
        if x.is_floating_point():
            first = (first | torch.isnan(value)) & ~torch.isnan(x)
        earlier = first & (place >= 0)
        x, index = torch.where(earlier, value, x), torch.where(earlier, place, index)
        step *= 2
    return x, index


def cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _first_in_order(x, dim, torch.gt)


def cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _first_in_order(x, dim, torch.lt)
