"""Interpolation, sampling at positions, and sliding windows: each is a sum of gathered slices times weights."""

import itertools
import math
from collections.abc import Sequence
from typing import Optional

import torch
import torch_xla
from torch import Tensor

from . import separable
from .common import add_along, gradients, only

_Tap = tuple[Tensor, Optional[Tensor]]
"""An index for each output position along a dimension, and its weight; None is 1."""


def _positions(size: int, x: Tensor) -> Tensor:
    return torch.arange(size, dtype=x.dtype if x.dtype == torch.float64 else torch.float32, device=x.device)


def _scale(size: int, output: int, scale: Optional[float]) -> float:
    return 1 / scale if scale is not None and scale > 0 else size / output


def _nearest_taps(x: Tensor, size: int, output: int, scale: Optional[float], exact: bool) -> list[_Tap]:
    positions = _positions(output, x)
    # torch multiplies with the scale as float32.
    found = (positions + 0.5 if exact else positions) * torch.tensor(_scale(size, output, scale)).item()
    return [(torch.floor(found).clamp(max=size - 1).long(), None)]


def _nearest_taps_backward(x: Tensor, size: int, output: int, scale: Optional[float]) -> list[_Tap]:
    """torch's backward operators, unlike its forward ones of 1 and 3 dimensions, copy elements to a length of once or
    twice as many, whatever the scale is."""
    return _nearest_taps(x, size, output, None if output in (size, 2 * size) else scale, exact=False)


def _source(x: Tensor, size: int, output: int, align_corners: bool, scale: Optional[float], cubic: bool) -> Tensor:
    positions = _positions(output, x)
    if align_corners:
        return positions * ((size - 1) / (output - 1) if output > 1 else 0.0)
    found = (positions + 0.5) * _scale(size, output, scale) - 0.5
    return found if cubic else found.clamp(min=0)


def _linear_taps(x: Tensor, size: int, output: int, align_corners: bool, scale: Optional[float]) -> list[_Tap]:
    if size == output:
        return []
    source = _source(x, size, output, align_corners, scale, cubic=False)
    first = torch.floor(source).clamp(max=size - 1)
    weight = (source - first).clamp(0, 1)
    second = (first + 1).clamp(max=size - 1)
    return [(first.long(), 1 - weight), (second.long(), weight)]


def _cubic_taps(x: Tensor, size: int, output: int, align_corners: bool, scale: Optional[float]) -> list[_Tap]:
    source = _source(x, size, output, align_corners, scale, cubic=True)
    floor = torch.floor(source)
    return [
        ((floor + i - 1).clamp(0, size - 1).long(), weight) for i, weight in enumerate(_cubic_weights(source - floor))
    ]


def _cubic_weights(t: Tensor) -> list[Tensor]:
    a = -0.75

    def near(x: Tensor) -> Tensor:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Tensor) -> Tensor:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _weighted(x: Tensor, weight: Optional[Tensor], dim: int) -> Tensor:
    return x if weight is None else x * weight.to(x.dtype).reshape([-1] + [1] * (x.dim() - 1 - dim))


def _gathered(x: Tensor, dim: int, taps: list[_Tap]) -> Tensor:
    parts = [_weighted(x.index_select(dim, index), weight, dim) for index, weight in taps]
    return sum(parts[1:], parts[0])


def _resized(x: Tensor, taps: list[list[_Tap]]) -> Tensor:
    """``x`` [N, C, …] with each dimension after the first two resampled, the last first."""
    for dim in range(x.dim() - 1, 1, -1):
        if taps[dim - 2]:
            x = _gathered(x, dim, taps[dim - 2])
    return x.clone() if not any(taps) else x


def _resized_backward(grad: Tensor, sizes: Sequence[int], taps: list[list[_Tap]]) -> Tensor:
    for dim, of_dim in enumerate(taps, 2):
        if not of_dim:
            continue
        index = torch.cat([i for i, _ in of_dim])
        values = torch.cat([_weighted(grad, w, dim) for _, w in of_dim], dim)
        grad = add_along(values, index, sizes[dim], dim)
    return grad


_LARGEST, _LARGEST_ON_CPU = 2048, 512
"""Of larger images products with whole matrices take longer than gathers of a few elements for each."""


def _are_products_sooner(sizes: Sequence[int], output: Sequence[int]) -> bool:
    on_cpu = torch_xla.runtime.device_type() == "CPU"
    largest = max(*sizes, *output)
    grows = all(size <= out for size, out in zip(sizes, output, strict=True))
    return (grows or not on_cpu) and largest <= (_LARGEST_ON_CPU if on_cpu else _LARGEST)


def _windows_of(taps: list[_Tap], size: int) -> separable.Windows:
    """Those of the taps at positions along a dimension, of which several may be at one place."""
    place = torch.arange(size)
    hits = [(index.unsqueeze(1) == place, weight.unsqueeze(1)) for index, weight in taps]
    weights = sum(torch.where(hit, weight, 0.0) for hit, weight in hits)
    up, down = (sum(hit & holds(weight, 0) for hit, weight in hits) > 0 for holds in (torch.ge, torch.le))
    return separable.Windows(weights, up, down)


def _resampling(taps_of, options: int, of_bytes: bool, by_products: bool = False):
    """The forward and backward operators of one way to interpolate; ``options`` arguments come before the scales."""

    def taps(x: Tensor, sizes: Sequence[int], output: Sequence[int], rest: tuple) -> list[list[_Tap]]:
        scales = rest[options:]
        return [taps_of(x, s, o, *rest[:options], scale) for s, o, scale in zip(sizes[2:], output, scales, strict=True)]

    def windows(x: Tensor, sizes: Sequence[int], output: Sequence[int], rest: tuple) -> list[separable.Windows]:
        found = taps(torch.empty(0, dtype=x.dtype, device="cpu"), sizes, output, rest)
        return [_windows_of(of_dim, size) for of_dim, size in zip(found, sizes[2:], strict=True)]

    def forward(x: Tensor, output: Sequence[int], *rest) -> Tensor:
        if not x.is_floating_point() and not (of_bytes and x.dtype == torch.uint8):
            return NotImplemented
        if x.numel() == 0 or x.dim() != len(output) + 2 or min(output) <= 0:
            return NotImplemented
        if by_products and _are_products_sooner(x.shape[2:], output):
            return separable.resampled(x, *windows(x, x.shape, output, rest))
        return _resized(x, taps(x, x.shape, output, rest))

    def backward(grad: Tensor, output: Sequence[int], sizes: Sequence[int], *rest) -> Tensor:
        if grad.numel() == 0 or not grad.is_floating_point():
            return NotImplemented
        if by_products and _are_products_sooner(sizes[2:], output):
            return separable.resampled(grad, *(w.t() for w in windows(grad, sizes, output, rest)))
        return _resized_backward(grad, sizes, taps(grad, sizes, output, rest))

    return forward, backward


nearest, _ = _resampling(lambda x, s, o, scale: _nearest_taps(x, s, o, scale, False), 0, True)
_, nearest_backward = _resampling(_nearest_taps_backward, 0, True)
nearest_exact, nearest_exact_backward = _resampling(lambda x, s, o, scale: _nearest_taps(x, s, o, scale, True), 0, True)
linear, linear_backward = _resampling(_linear_taps, 1, False)
cubic, cubic_backward = _resampling(_cubic_taps, 1, False, by_products=True)


@only(lambda *_: torch_xla.runtime.device_type() != "TPU")  # there torch_xla has a custom call
def nearest2d_backward(*arguments) -> Tensor:
    return nearest_backward(*arguments)


@only(lambda *_: torch_xla.runtime.device_type() != "TPU")
def bilinear2d_backward(*arguments) -> Tensor:
    return linear_backward(*arguments)


# ---- grid_sample


def _unnormalized(x: Tensor, size: int, align_corners: bool) -> Tensor:
    return (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """Positions reflected at ``low / 2`` and ``high / 2``."""
    if low == high:
        return torch.zeros_like(x)
    start, span = low / 2, (high - low) / 2
    distance = torch.where(x < start, start - x, x - start)
    flips = torch.floor(distance / span)
    rest = distance - flips * span
    even = torch.remainder(flips, 2) == 0
    return torch.where(even, rest + start, span - rest + start)


def _padded(x: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """Positions by padding mode: zeros, border, reflection. At the border itself they have no gradient, as in torch."""
    if padding == 2:
        x = _reflected(x, 0, 2 * (size - 1)) if align_corners else _reflected(x, -1, 2 * size - 1)
    if padding in (1, 2):
        x = torch.where(x > 0, torch.where(x < size - 1, x, torch.full_like(x, size - 1)), torch.zeros_like(x))
    return x


def _taken(x: Tensor, positions: Sequence[Tensor]) -> Tensor:
    """``x`` [N, C, …] at whole positions [N, M] for each dimension: [N, C, M]; 0 outside."""
    sizes = x.shape[2:]
    inside, index = None, None
    for position, size in zip(positions, sizes, strict=True):
        here = (position >= 0) & (position <= size - 1)
        clamped = torch.where(here, position, torch.zeros_like(position)).long()
        inside = here if inside is None else inside & here
        index = clamped if index is None else index * size + clamped
    flat = x.flatten(2)
    found = torch.gather(flat, 2, index.unsqueeze(1).expand(-1, flat.shape[1], -1))
    return torch.where(inside.unsqueeze(1), found, torch.zeros_like(found))


def _sampled(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    sizes = x.shape[2:]
    flat = grid.flatten(1, -2)
    # The last coordinate of the grid is that of the first dimension.
    positions = [_unnormalized(flat[..., len(sizes) - 1 - d], size, align_corners) for d, size in enumerate(sizes)]
    if mode == 2:
        return _sampled_cubic(x, positions, padding, align_corners).reshape(*x.shape[:2], *grid.shape[1:-1])
    positions = [_padded(p, size, padding, align_corners) for p, size in zip(positions, sizes, strict=True)]
    if mode == 1:
        found = _taken(x, [torch.round(p) for p in positions])
        return found.reshape(*x.shape[:2], *grid.shape[1:-1])
    floors = [torch.floor(p).detach() for p in positions]
    found = 0
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        weights = [p - f if c else f + 1 - p for c, p, f in zip(corner, positions, floors, strict=True)]
        taken = _taken(x, [f + c for c, f in zip(corner, floors, strict=True)])
        found = taken * math.prod(weights[1:], start=weights[0]).unsqueeze(1) + found
    return found.reshape(*x.shape[:2], *grid.shape[1:-1])


def _sampled_cubic(x: Tensor, positions: list[Tensor], padding: int, align_corners: bool) -> Tensor:
    _rows, _columns = positions
    floors = [torch.floor(p).detach() for p in positions]
    row_weights, column_weights = (_cubic_weights(p - f) for p, f in zip(positions, floors, strict=True))

    def padded(i: int, d: int) -> Tensor:
        return _padded(floors[d] + i - 1, x.shape[d + 2], padding, align_corners)

    found = 0
    for i, row_weight in enumerate(row_weights):
        line = 0
        for j, column_weight in enumerate(column_weights):
            line = _taken(x, [padded(i, 0), padded(j, 1)]) * column_weight.unsqueeze(1) + line
        found = line * row_weight.unsqueeze(1) + found
    return found


def grid_sampler(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    if x.numel() == 0 or grid.numel() == 0 or (mode == 2 and x.dim() != 4):
        return NotImplemented
    return _sampled(x, grid, mode, padding, align_corners)


def grid_sampler_backward(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool, mask: Sequence[bool]
) -> tuple[Optional[Tensor], Tensor]:
    if x.numel() == 0 or grid.numel() == 0:
        return NotImplemented
    of_x, of_grid = gradients(lambda x, grid: _sampled(x, grid, mode, padding, align_corners), [x, grid], [grad])
    return of_x if mask[0] else None, of_grid


# ---- windows


def unfold_copy(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    if x.dim() == 0:
        return x.unsqueeze(0)[:size]
    dim = dim % x.dim()
    windows = (x.shape[dim] - size) // step + 1
    if size > x.shape[dim]:
        return NotImplemented  # an error of torch
    parts = x.index_select(dim, _windows(windows, size, step, 1, x).flatten())
    shape = [*x.shape[:dim], windows, size, *x.shape[dim + 1 :]]
    return parts.reshape(shape).movedim(dim + 1, -1)


def unfold_backward(grad: Tensor, sizes: Sequence[int], dim: int, size: int, step: int) -> Tensor:
    if not sizes:
        return grad.sum().reshape(())
    dim = dim % len(sizes)
    if grad.numel() == 0:
        return grad.new_zeros(sizes)
    windows = grad.shape[dim]
    values = grad.movedim(-1, dim + 1).flatten(dim, dim + 1)
    return add_along(values, _windows(windows, size, step, 1, grad).flatten(), sizes[dim], dim)


def _windows(windows: int, size: int, step: int, dilation: int, x: Tensor) -> Tensor:
    """int64[windows, size]: the positions of each window."""
    starts = torch.arange(windows, device=x.device) * step
    return starts.unsqueeze(1) + torch.arange(size, device=x.device) * dilation


def _blocks(size: int, kernel: int, dilation: int, padding: int, stride: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def im2col(x: Tensor, kernel, dilation, padding, stride) -> Tensor:
    blocks = [_blocks(*args) for args in zip(x.shape[-2:], kernel, dilation, padding, stride, strict=True)]
    if x.dim() not in (3, 4) or 0 in x.shape[-3:] or min(blocks) <= 0 or min(stride) <= 0:
        return NotImplemented
    leading = x.shape[:-3]
    if 0 in leading:
        return x.new_zeros(*leading, x.shape[-3] * kernel[0] * kernel[1], blocks[0] * blocks[1])
    x = torch.constant_pad_nd(x, [padding[1], padding[1], padding[0], padding[0]])
    for dim in (-2, -1):
        places = _windows(blocks[dim], kernel[dim], stride[dim], dilation[dim], x).t().flatten()
        x = x.index_select(dim, places)
    x = x.reshape(*leading, -1, kernel[0], blocks[0], kernel[1], blocks[1])
    return x.transpose(-3, -2).reshape(*leading, -1, blocks[0] * blocks[1])


def col2im(x: Tensor, output, kernel, dilation, padding, stride) -> Tensor:
    blocks = [_blocks(*args) for args in zip(output, kernel, dilation, padding, stride, strict=True)]
    area = kernel[0] * kernel[1]
    good = x.dim() in (2, 3) and 0 not in x.shape[-2:] and min(blocks) > 0 and min(stride) > 0
    if not good or x.shape[-2] % area or x.shape[-1] != blocks[0] * blocks[1]:
        return NotImplemented
    leading = x.shape[:-2]
    if 0 in leading:
        return x.new_zeros(*leading, x.shape[-2] // area, *output)
    x = x.reshape(*leading, -1, kernel[0], kernel[1], blocks[0], blocks[1]).transpose(-3, -2)
    x = x.reshape(*leading, -1, kernel[0] * blocks[0], kernel[1] * blocks[1])
    for dim in (-1, -2):
        places = _windows(blocks[dim], kernel[dim], stride[dim], dilation[dim], x).t().flatten()
        x = add_along(x, places, output[dim] + 2 * padding[dim], dim)
        x = x.narrow(dim, padding[dim], output[dim])
    return x.clone()


# ---- antialiased interpolation


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic_filter(x: Tensor) -> Tensor:
    a, x = -0.5, x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _filter_windows(
    x: Tensor, size: int, output: int, align_corners: bool, scale: Optional[float], support: int, filter_of
) -> separable.Windows:
    """Those of a filter that is as wide as ``support`` positions of the coarser of both."""
    aligned = (size - 1) / (output - 1) if output > 1 else 0.0
    step = aligned if align_corners else _scale(size, output, scale)
    wide = max(step, 1.0)
    centre = ((_positions(output, x) + 0.5) * step).unsqueeze(1)
    place = _positions(size, x).unsqueeze(0)
    first = torch.floor(centre - support / 2 * wide + 0.5)
    last = torch.floor(centre + support / 2 * wide + 0.5)
    weights = filter_of((place - centre + 0.5) / wide)
    inside = (place >= first) & (place < last)
    weights = torch.where(inside, weights, 0.0)
    weights = weights / weights.sum(1, keepdim=True)
    return separable.Windows(weights, inside & (weights >= 0), inside & (weights <= 0))


def _each_alone(size: int, dtype: torch.dtype) -> separable.Windows:
    weights = torch.eye(size, dtype=dtype)
    return separable.Windows(weights, weights > 0, weights < 0)


def _antialiased(support: int, filter_of):
    """The forward and backward operators of one filter."""

    def windows(x: Tensor, sizes, output, align_corners: bool, scales) -> list[separable.Windows]:
        of_host = torch.empty(0, dtype=x.dtype, device="cpu")
        return [
            _filter_windows(of_host, s, o, align_corners, scale, support, filter_of)
            for s, o, scale in zip(sizes[2:], output, scales, strict=True)
        ]

    def forward(x: Tensor, output: Sequence[int], align_corners: bool, *scales) -> Tensor:
        if not x.is_floating_point() or x.numel() == 0 or x.dim() != 4 or min(output) <= 0:
            return NotImplemented
        found = zip(x.shape[2:], output, windows(x, x.shape, output, align_corners, scales), strict=True)
        # torch leaves a dimension of the same length as it is, but not its gradient.
        return separable.resampled(x, *(_each_alone(s, x.dtype) if s == o else w for s, o, w in found))

    def backward(grad: Tensor, output: Sequence[int], sizes: Sequence[int], align_corners: bool, *scales) -> Tensor:
        if not grad.is_floating_point() or grad.numel() == 0:
            return NotImplemented
        return separable.resampled(grad, *(w.t() for w in windows(grad, sizes, output, align_corners, scales)))

    return forward, backward


antialiased_linear, antialiased_linear_backward = _antialiased(2, _triangle)
antialiased_cubic, antialiased_cubic_backward = _antialiased(4, _cubic_filter)
