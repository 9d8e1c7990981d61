"""Reductions by index, and bags of embeddings."""

import math
from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor
from torch_xla import runtime

from .common import integral, only
from .selection import searchsorted


def scatter_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool) -> Tensor:
    if x.is_complex():
        return NotImplemented
    if index.numel() == 0:
        return x.clone()
    if x.dim() == 0:
        found = _scattered(x.reshape(1), 0, index.reshape(1), source.reshape(1), reduce, include_self)
        return found.reshape(())
    return _scattered(x, dim, index, source, reduce, include_self)


def _identity(x: Tensor, reduce: str) -> Tensor:
    if reduce in ("sum", "mean", "prod"):
        return torch.full_like(x, int(reduce == "prod"))
    if x.dtype == torch.bool:
        return torch.full_like(x, reduce == "amin")
    info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
    lowest, highest = (-float("inf"), float("inf")) if x.is_floating_point() else (info.min, info.max)
    return torch.full_like(x, lowest if reduce == "amax" else highest)


def _scattered(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool) -> Tensor:
    part = source[tuple(slice(0, n) for n in index.shape)]
    counted = torch.float32 if x.dtype == torch.bool else x.dtype
    ones = torch.ones_like(part, dtype=counted)
    added = torch.zeros_like(x, dtype=counted).scatter_add(dim, index, ones)
    base = x if include_self else torch.where(added > 0, _identity(x, reduce), x)
    if reduce != "mean":
        return torch.scatter_reduce(base, dim, index, part, reduce)
    total = base.scatter_add(dim, index, part)
    count = (added + 1 if include_self else added).clamp(min=1)
    return torch.div(total, count, rounding_mode="floor") if integral(x) else total / count


def index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool) -> Tensor:
    if index.dim() > 1 or x.is_complex() or x.dtype == torch.bool:
        return NotImplemented
    if index.numel() == 0:
        return x.clone()
    whole, source = (x.reshape(1), source.reshape(1)) if x.dim() == 0 else (x, source)
    dim = dim % whole.dim()
    places = index.long().reshape([-1] + [1] * (whole.dim() - 1 - dim)).expand(source.shape)
    return _scattered(whole, dim, places, source, reduce, include_self).reshape(x.shape)


_SUM, _MEAN, _MAX = 0, 1, 2


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Optional[Tensor],
    include_last_offset: bool,
    padding_idx: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    bags = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    if indices.numel() == 0 or bags <= 0 or weight.numel() == 0:
        return NotImplemented
    indices, offsets = indices.long(), offsets.long()
    starts = offsets.narrow(0, 0, bags)
    number = torch.arange(indices.shape[0], device=weight.device)
    bag_of = (starts.unsqueeze(0) <= number.unsqueeze(1)).sum(1) - 1
    rows = weight.index_select(0, indices)
    real = indices != padding_idx
    bag_size = torch.zeros_like(starts).index_add(0, bag_of, real.long())
    if mode == _MAX:
        output, chosen = _bag_maxima(rows, indices, real, bag_of, bags, bag_size)
        return output, bag_of, bag_size, chosen
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    rows = torch.where(real.unsqueeze(1), rows, torch.zeros_like(rows))
    output = rows.new_zeros(bags, rows.shape[1]).index_add(0, bag_of, rows)
    if mode == _MEAN:
        output = output / bag_size.clamp(min=1).to(output.dtype).unsqueeze(1)
    return output, bag_of, bag_size, torch.zeros_like(bag_size)


def _bag_maxima(rows, indices, real, bag_of, bags: int, bag_size) -> tuple[Tensor, Tensor]:
    width = rows.shape[1]
    lowest = torch.full_like(rows, -float("inf"))
    inside = torch.where(real.unsqueeze(1), rows, lowest)
    place = bag_of.unsqueeze(1).expand(-1, width)
    largest = torch.full([bags, width], -float("inf"), dtype=rows.dtype, device=rows.device)
    largest = largest.scatter_reduce(0, place, inside, "amax")
    hit = (inside == largest.index_select(0, bag_of)) & real.unsqueeze(1)
    number = torch.arange(indices.shape[0], device=rows.device).unsqueeze(1).expand(-1, width)
    first = torch.full([bags, width], indices.shape[0], device=rows.device)
    first = first.scatter_reduce(0, place, torch.where(hit, number, torch.full_like(number, indices.shape[0])), "amin")
    chosen = indices.index_select(0, first.clamp(max=indices.shape[0] - 1).reshape(-1)).reshape(bags, width)
    empty = (bag_size == 0).unsqueeze(1)
    zero = torch.zeros_like(largest)
    return torch.where(empty, zero, largest), torch.where(empty, torch.full_like(chosen, -1), chosen)


def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bag_of: Tensor,
    bag_size: Tensor,
    chosen: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Optional[Tensor],
    padding_idx: int,
) -> Tensor:
    if sparse or indices.numel() == 0 or bag_of.numel() != indices.numel():
        return NotImplemented
    indices = indices.long()
    zeros = grad.new_zeros(num_weights, grad.shape[1])
    if mode == _MAX:
        values = torch.where(chosen >= 0, grad, torch.zeros_like(grad))
        return zeros.scatter_add(0, chosen.clamp(min=0), values)
    if mode == _MEAN:
        grad = grad / bag_size.clamp(min=1).to(grad.dtype).unsqueeze(1)
    rows = grad.index_select(0, bag_of.long())
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    if scale_grad_by_freq:
        counts = grad.new_zeros(num_weights).index_add(0, indices, torch.ones_like(indices, dtype=grad.dtype))
        rows = rows / counts.index_select(0, indices).unsqueeze(1)
    rows = torch.where((indices != padding_idx).unsqueeze(1), rows, torch.zeros_like(rows))
    return zeros.index_add(0, indices, rows)


def embedding_bag_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bag_of: Tensor, mode: int, padding_idx: int
) -> Tensor:
    if mode != _SUM or indices.numel() == 0 or bag_of.numel() != indices.numel():
        return NotImplemented
    products = grad.index_select(0, bag_of.long()) * weight.index_select(0, indices.long())
    found = products.sum(1)
    return torch.where(indices != padding_idx, found, torch.zeros_like(found))


def embedding_renorm(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    if indices.numel() == 0:
        return weight.clone()
    used = torch.zeros(weight.shape[0], device=weight.device).index_add(0, indices.reshape(-1).long(), _ones(indices))
    norm = torch.linalg.vector_norm(weight, norm_type, [1], keepdim=True)
    too_large = (norm > max_norm) & (used > 0).unsqueeze(1)
    return torch.where(too_large, weight * (max_norm / (norm + 1e-7)), weight)


def _ones(indices: Tensor) -> Tensor:
    return torch.ones(indices.numel(), device=indices.device)


def _is_partitioned(x: Tensor, mask: Tensor, source: Tensor) -> bool:
    return runtime.is_spmd() and mask.dtype == torch.bool and source.dtype == x.dtype and source.numel() > 0


@only(_is_partitioned)
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Under SPMD, where torch_xla's has a size that is known when it runs, which XLA does not partition."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    mask = mask.expand(shape)
    place = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
    chosen = source.reshape(-1).index_select(0, place.clamp(0, source.numel() - 1))
    return torch.where(mask, chosen.reshape(shape), x.expand(shape))


def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """The gradient of the source: those of the places that the mask chooses, in their order, then zeros."""
    count = math.prod(sizes)
    chosen = mask.expand(grad.shape).reshape(-1)
    order = torch.sort(chosen.logical_not().to(torch.int32), stable=True)[1]
    flat = grad.reshape(-1)
    found = torch.gather(torch.where(chosen, flat, torch.zeros_like(flat)), 0, order)
    missing = count - found.numel()
    found = torch.constant_pad_nd(found, [0, missing]) if missing > 0 else found[:count]
    return found.reshape(sizes)


def _has_gradient(x: Tensor, dim: int, index: Tensor, value: Tensor) -> bool:
    return torch.is_grad_enabled() and value.requires_grad and value.dim() == 0 and index.dim() < 2


@only(_has_gradient)
def index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    """For autograd: torch's gradient of the value looks for the different ones of the indices."""
    whole = x.reshape(1) if x.dim() == 0 else x
    filled = torch.zeros(whole.shape[dim], dtype=torch.bool, device=x.device).index_fill(0, index.reshape(-1), True)
    shape = [1] * whole.dim()
    shape[dim] = -1
    return torch.where(filled.reshape(shape), value.to(x.dtype), whole).reshape(x.shape)


# ---- reductions of segments


class _Segments:
    """Data [B, N, D] in S segments along N. ``place`` [B, N, 1] is the segment of an element, S for none."""

    def __init__(self, data: Tensor, lengths: Optional[Tensor], offsets: Optional[Tensor]) -> None:
        given = lengths if lengths is not None else offsets
        *self._batch, size = data.shape[: given.dim()]
        self._rest = data.shape[given.dim() :]
        batch = math.prod(self._batch)
        self.data = data.reshape(batch, size, -1)
        bounds = given.long().reshape(batch, given.shape[-1])
        if lengths is not None:
            bounds = torch.constant_pad_nd(bounds.cumsum(1), [1, 0])
        self.count = bounds.shape[1] - 1
        self.lengths = (bounds[:, 1:] - bounds[:, :-1]).unsqueeze(2)
        self.fit = (self.lengths >= 0).all(1, keepdim=True) & (bounds[:, -1:, None] == size)
        number = torch.arange(size, device=data.device).expand(batch, size)
        place = searchsorted(bounds, number, False, True, None, None) - 1
        self.place = torch.where(place < 0, self.count, place).unsqueeze(2)
        self.inside = self.place < self.count

    def reduced(self, values: Tensor, reduce: str, start: float) -> Tensor:
        """[B, S, D]"""
        found = values.new_full([values.shape[0], self.count + 1, values.shape[2]], start)
        return found.scatter_reduce(1, self.place.expand(values.shape), values, reduce)[:, : self.count]

    def of_elements(self, values: Tensor) -> Tensor:
        """For each element what its segment has in values [B, S, D] or of the result's shape."""
        values = values.reshape(*self.lengths.shape[:2], -1)
        index = self.place.clamp(max=self.count - 1)
        return torch.gather(values, 1, index.expand(-1, -1, values.shape[2]))

    def shaped(self, values: Tensor) -> Tensor:
        return values.reshape(*self._batch, values.shape[1], *self._rest)


def _in_segments(data: Tensor, reduce: str, lengths: Optional[Tensor], offsets: Optional[Tensor], axis: int) -> bool:
    given = lengths if lengths is not None else offsets
    return (
        given is not None
        and data.is_floating_point()
        and data.numel() > 0
        and reduce in _REDUCTIONS
        and given.dim() == axis + 1 <= data.dim()
        and given.shape[:-1] == data.shape[:axis]
        and given.shape[-1] > (lengths is None)
    )


_REDUCTIONS = {
    "sum": ("sum", 0.0),
    "mean": ("sum", 0.0),
    "prod": ("prod", 1.0),
    "max": ("amax", -math.inf),
    "min": ("amin", math.inf),
}


def segment_reduce(
    data: Tensor,
    reduce: str,
    lengths: Optional[Tensor],
    indices: Optional[Tensor],
    offsets: Optional[Tensor],
    axis: int,
    unsafe: bool,
    initial: Optional[float],
) -> Tensor:
    """As torch's. Lengths that are not the data's give NaN; torch refuses them, after a look at their values."""
    if indices is not None or not _in_segments(data, reduce, lengths, offsets, axis):
        return NotImplemented
    segments = _Segments(data, lengths, offsets)
    by, start = _REDUCTIONS[reduce]
    found = segments.reduced(segments.data, by, start if initial is None else initial)
    if reduce in ("max", "min"):
        # A scatter of XLA's CPU takes the lesser of a number and NaN for the number.
        is_nan = torch.isnan(segments.data).to(found.dtype)
        found = torch.where(segments.reduced(is_nan, "sum", 0.0) > 0, math.nan, found)
    elif reduce == "mean":
        empty = math.nan if initial is None else initial
        found = torch.where(segments.lengths > 0, found / segments.lengths.to(found.dtype), empty)
    if lengths is not None and not unsafe:
        found = torch.where(segments.fit, found, math.nan)
    return segments.shaped(found)


def segment_reduce_backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    lengths: Optional[Tensor],
    offsets: Optional[Tensor],
    axis: int,
    initial: Optional[float],
) -> Tensor:
    if not _in_segments(data, reduce, lengths, offsets, axis):
        return NotImplemented
    segments = _Segments(data, lengths, offsets)
    found = segments.of_elements(grad)
    if reduce == "mean":
        found = found / segments.of_elements(segments.lengths).to(found.dtype)
    elif reduce in ("max", "min"):
        chosen = (segments.data == segments.of_elements(output)) | torch.isnan(segments.data)
        number = segments.reduced(chosen.to(found.dtype), "sum", 0.0)
        found = torch.where(chosen, found / segments.of_elements(number), 0.0)
    elif reduce == "prod":
        found = found * _of_others(segments, segments.of_elements(output), 1.0 if initial is None else initial)
    return segments.shaped(torch.where(segments.inside, found, 0.0))


def _of_others(segments: _Segments, product: Tensor, initial: float) -> Tensor:
    """The product of a segment without the element, which cannot be a quotient where that is 0 or NaN."""
    x = segments.data
    zero, nan = x == 0, torch.isnan(x)
    special = zero | nan

    def others(which: Tensor) -> Tensor:
        count = which.to(x.dtype)
        return segments.of_elements(segments.reduced(count, "sum", 0.0)) > count

    rest = segments.of_elements(segments.reduced(torch.where(special, 1.0, x), "prod", initial))
    rest = torch.where(others(nan), math.nan, torch.where(others(zero), 0.0, rest))
    return torch.where(special, rest, product / x)
