"""Pooling that torch_xla's lowerings do not cover: by gathering the windows."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Optional

import torch
from torch import Tensor

from .common import add_along


def _ends(size: int, output: int) -> list[tuple[int, int]]:
    """Where the windows of adaptive pooling begin and end."""
    return [(i * size // output, -(-(i + 1) * size // output)) for i in range(output)]


def _adaptive_places(size: int, output: int, x: Tensor) -> tuple[Tensor, Tensor, int]:
    """int64[output, longest] of positions, which of them belong to the window, and the longest window."""
    longest = max(end - start for start, end in _ends(size, output))
    i = torch.arange(output, device=x.device)
    starts = torch.div(i * size, output, rounding_mode="floor")
    ends = torch.div((i + 1) * size + output - 1, output, rounding_mode="floor")
    places = starts.unsqueeze(1) + torch.arange(longest, device=x.device)
    inside = places < ends.unsqueeze(1)
    return torch.minimum(places, ends.unsqueeze(1) - 1), inside, longest


def _mean_along(x: Tensor, dim: int, output: int) -> Tensor:
    places, inside, longest = _adaptive_places(x.shape[dim], output, x)
    shape = [*x.shape[:dim], output, longest, *x.shape[dim + 1 :]]
    windows = x.index_select(dim, places.flatten()).reshape(shape)
    inside = inside.reshape(output, longest, *[1] * (x.dim() - 1 - dim))
    total = torch.where(inside, windows, torch.zeros_like(windows)).sum(dim + 1)
    return total / inside.sum(1).to(x.dtype)


def adaptive_avg_pool(x: Tensor, output: Sequence[int]) -> Tensor:
    if not x.is_floating_point() or 0 in x.shape[1:] or min(output) < 0:
        return NotImplemented
    if x.numel() == 0 or 0 in output:
        return x.new_zeros(*x.shape[: -len(output)], *output)
    for i, size in enumerate(output):
        x = _mean_along(x, x.dim() - len(output) + i, size)
    return x


def _of_dimensions(pool: Callable) -> tuple[Callable, Callable]:
    """The functions of two and of three dimensions of one that takes their number first."""
    return functools.partial(pool, 2), functools.partial(pool, 3)


def _adaptive_avg_pool_backward(dims: int, grad: Tensor, x: Tensor) -> Tensor:
    output = grad.shape[-dims:]
    if not x.is_floating_point() or 0 in x.shape[1:]:
        return NotImplemented
    if x.numel() == 0 or 0 in output:
        return torch.zeros_like(x)
    for dim in range(x.dim() - dims, x.dim()):
        places, inside, _ = _adaptive_places(x.shape[dim], grad.shape[dim], x)
        inside = inside.reshape(*inside.shape, *[1] * (x.dim() - 1 - dim))
        share = (grad / inside.sum(1).to(grad.dtype)).unsqueeze(dim + 1)
        values = torch.where(inside, share, torch.zeros_like(share)).flatten(dim, dim + 1)
        grad = add_along(values, places.flatten(), x.shape[dim], dim)
    return grad


adaptive_avg_pool2d_backward, adaptive_avg_pool3d_backward = _of_dimensions(_adaptive_avg_pool_backward)


# ---- maxima


def _largest(x: Tensor, places: list[Tensor], inside: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Maxima of windows and where they are.

    x: [..., S1, …, Sn]. places: for each dimension int64[outputs, window]; inside: which of these are in ``x``.
    """
    n = len(places)
    sizes, first = x.shape[-n:], x.dim() - n
    index, valid = None, None
    for i, (place, here) in enumerate(zip(places, inside, strict=True)):
        x = x.index_select(first + i, place.flatten())
        shape = [1] * (2 * n)
        shape[2 * i], shape[2 * i + 1] = place.shape
        place, here = place.reshape(shape), here.reshape(shape)
        index = place if index is None else index * sizes[i] + place
        valid = here if valid is None else valid & here
    x = x.reshape(*x.shape[:first], *itertools.chain.from_iterable(p.shape for p in places))
    order = [*range(first), *(first + 2 * i for i in range(n)), *(first + 2 * i + 1 for i in range(n))]
    window_last = [2 * i for i in range(n)] + [2 * i + 1 for i in range(n)]
    lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    x = torch.where(valid, x, torch.full_like(x, lowest)).permute(order).flatten(-n)
    full = torch.broadcast_to(index, [p for place in places for p in place.shape]).permute(window_last).flatten(-n)
    valid = torch.broadcast_to(valid, [p for place in places for p in place.shape]).permute(window_last).flatten(-n)
    # The first of equal maxima that is in the input; NaN is larger than all, and the last of several is taken.
    count = full.shape[-1]
    largest = x.amax(-1)
    number = torch.arange(count, device=x.device)
    rank = torch.where(valid & (x == largest.unsqueeze(-1)), number, torch.full_like(number, count))
    chosen = rank.amin(-1)
    if x.is_floating_point():
        is_nan = torch.isnan(x)
        last = torch.where(is_nan & valid, number, torch.full_like(number, -1)).amax(-1)
        largest = torch.where(last >= 0, torch.full_like(largest, math.nan), largest)
        chosen = torch.where(last >= 0, last, chosen)
    picked = torch.gather(full.expand(*chosen.shape, count), -1, chosen.clamp(0, count - 1).unsqueeze(-1)).squeeze(-1)
    return largest, picked


def _spread(values: Sequence[int], n: int) -> list[int]:
    values = list(values)
    return values * n if len(values) == 1 else values


def _pooled(n: int, x: Tensor, kernel, stride, padding, dilation, ceil_mode: bool) -> tuple[Tensor, Tensor]:
    kernel, padding, dilation = (_spread(v, n) for v in (kernel, padding, dilation))
    stride = _spread(stride, n) if len(stride) else kernel
    if x.dim() not in (n + 1, n + 2) or 0 in x.shape or not (x.is_floating_point() or x.dtype == torch.int64):
        return NotImplemented
    places, inside = [], []
    for size, k, s, p, d in zip(x.shape[-n:], kernel, stride, padding, dilation, strict=True):
        spare = size + 2 * p - d * (k - 1) - 1
        output = (-(-spare // s) if ceil_mode else spare // s) + 1
        if ceil_mode and (output - 1) * s >= size + p:
            output -= 1
        if output <= 0:
            return NotImplemented
        starts = torch.arange(output, device=x.device) * s - p
        place = starts.unsqueeze(1) + torch.arange(k, device=x.device) * d
        inside.append((place >= 0) & (place < size))
        places.append(place.clamp(0, size - 1))
    return _largest(x, places, inside)


max_pool2d, max_pool3d = _of_dimensions(_pooled)


def dilated_max_pool2d(*arguments) -> Tensor:
    return torch.ops.aten.max_pool2d_with_indices(*arguments)[0]


def dilated_max_pool3d(*arguments) -> Tensor:
    return torch.ops.aten.max_pool3d_with_indices(*arguments)[0]


def _at_the_maxima(n: int, grad: Tensor, x: Tensor, *options) -> Tensor:
    """The index of each maximum is the last of the operators' options."""
    index = options[-1]
    leading, elements = x.shape[: x.dim() - n], math.prod(x.shape[-n:])
    zeros = grad.new_zeros([*leading, elements])
    return zeros.scatter_add(-1, index.flatten(-n), grad.flatten(-n)).reshape(x.shape)


max_pool2d_backward, max_pool3d_backward = _of_dimensions(_at_the_maxima)
fractional_max_pool2d_backward, fractional_max_pool3d_backward = max_pool2d_backward, max_pool3d_backward


def adaptive_max_pool(x: Tensor, output: Sequence[int]) -> tuple[Tensor, Tensor]:
    n = len(output)
    if 0 in x.shape or 0 in output or not x.is_floating_point() or x.dim() not in (n + 1, n + 2):
        return NotImplemented
    found = [_adaptive_places(s, o, x) for s, o in zip(x.shape[-n:], output, strict=True)]
    return _largest(x, [f[0] for f in found], [f[1] for f in found])


def _at_adaptive_maxima(n: int, grad: Tensor, x: Tensor, index: Tensor) -> Tensor:
    return NotImplemented if 0 in x.shape or 0 in grad.shape else _at_the_maxima(n, grad, x, index)


adaptive_max_pool2d_backward, adaptive_max_pool3d_backward = _of_dimensions(_at_adaptive_maxima)


def _fractional_starts(samples: Tensor, size: int, output: int, kernel: int) -> Tensor:
    """Where the windows begin: samples [N, C] → int64[N, C, output]."""
    if output == 1:
        return torch.full([*samples.shape, 1], size - kernel, device=samples.device)
    alpha = (size - kernel) / (output - 1)
    alpha = torch.tensor(alpha, dtype=samples.dtype).item()
    samples = samples.unsqueeze(-1)
    i = torch.arange(output, device=samples.device).to(samples.dtype)
    starts = (torch.trunc((i + samples) * alpha) - torch.trunc(samples * alpha)).long()
    return torch.where(i == output - 1, torch.full_like(starts, size - kernel), starts)


def _fractional(x: Tensor, kernel, output, samples: Tensor, order: Sequence[int]) -> tuple[Tensor, Tensor]:
    n = len(output)
    batched = x.dim() == n + 2
    if 0 in x.shape or x.dim() not in (n + 1, n + 2):
        return NotImplemented
    whole = x if batched else x.unsqueeze(0)
    sizes = whole.shape[2:]
    needed = [*whole.shape[:2], n]
    if samples.shape[0] < needed[0] or list(samples.shape[1:]) != needed[1:]:
        raise RuntimeError(f"fractional_max_pool{n}d: expected samples of {needed}, found {list(samples.shape)}")
    samples = samples[: needed[0]]
    index = None
    for i in range(n):
        starts = _fractional_starts(samples[..., order[i]], sizes[i], output[i], kernel[i])
        places = starts.unsqueeze(-1) + torch.arange(kernel[i], device=x.device)
        shape = [*places.shape[:2], *[1] * (2 * n)]
        shape[2 + i], shape[2 + n + i] = output[i], kernel[i]
        places = places.reshape(shape)
        index = places if index is None else index * sizes[i] + places
    index = index.flatten(-n)  # [N, C, *output, window]
    flat = whole.flatten(2)
    values = torch.gather(flat, 2, index.flatten(2)).reshape(index.shape)
    largest = values.amax(-1)
    number = torch.arange(index.shape[-1], device=x.device)
    equal = (values == largest.unsqueeze(-1)) | torch.isnan(values)
    first = torch.where(equal, number, torch.full_like(number, index.shape[-1] - 1)).amin(-1, keepdim=True)
    picked = torch.gather(index, -1, first).squeeze(-1)
    largest = torch.gather(values, -1, first).squeeze(-1)
    return (largest, picked) if batched else (largest.squeeze(0), picked.squeeze(0))


def fractional_max_pool2d(x: Tensor, kernel, output, samples: Tensor) -> tuple[Tensor, Tensor]:
    return _fractional(x, kernel, output, samples, (1, 0))


def fractional_max_pool3d(x: Tensor, kernel, output, samples: Tensor) -> tuple[Tensor, Tensor]:
    return _fractional(x, kernel, output, samples, (0, 1, 2))


# ---- means


def _avg_backward(n, grad, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor: Optional[int]) -> Tensor:
    kernel, padding = _spread(kernel, n), _spread(padding, n)
    stride = _spread(stride, n) if len(stride) else kernel
    counts = None
    places, insides = [], []
    for i, (size, k, s, p) in enumerate(zip(x.shape[-n:], kernel, stride, padding, strict=True)):
        starts = torch.arange(grad.shape[-n + i], device=x.device) * s - p
        place = starts.unsqueeze(1) + torch.arange(k, device=x.device)
        inside = (place >= 0) & (place < size)
        upto = torch.minimum(starts + k, torch.full_like(starts, size + p))
        count = upto - starts if count_include_pad else inside.sum(1)
        counts = count if counts is None else counts.unsqueeze(-1) * count
        places.append(place.clamp(0, size - 1))
        insides.append(inside)
    grad = grad / (divisor or counts.to(grad.dtype))
    for i, (place, inside) in enumerate(zip(places, insides, strict=True)):
        dim = x.dim() - n + i
        inside = inside.reshape(*inside.shape, *[1] * (x.dim() - 1 - dim))
        spread = grad.unsqueeze(dim + 1)
        values = torch.where(inside, spread, torch.zeros_like(spread)).flatten(dim, dim + 1)
        grad = add_along(values, place.flatten(), x.shape[dim], dim)
    return grad


avg_pool2d_backward, avg_pool3d_backward = _of_dimensions(_avg_backward)
