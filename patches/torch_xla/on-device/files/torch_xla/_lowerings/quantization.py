"""Numbers rounded to those that a quantized dtype holds."""

import functools

import torch
from torch import Tensor

from .common import keeps_dtypes, only, prepared, wide_of

Rounded = tuple[Tensor, Tensor]


def _rounded(x: Tensor, scale: Tensor, zero: Tensor, least: int, most: int) -> Rounded:
    """The nearest of the numbers, and which are within them. As on the CPU, NaN is the least one."""
    scale, zero = scale.float(), zero.float()
    place = torch.round(wide_of(x) * (1 / scale)) + zero
    inside = (place >= least) & (place <= most)
    held = torch.where(torch.isnan(place), float(least), place).clamp(least, most)
    return ((held - zero) * scale).to(x.dtype), inside


@functools.lru_cache(maxsize=256)
def _on(device: torch.device, scale: float, zero: int) -> Rounded:
    return torch.tensor(scale).to(device), torch.tensor(zero, dtype=torch.int32).to(device)


@only(lambda x, *_: x.is_floating_point())
@keeps_dtypes
@prepared(lambda x, scale, zero, *ends: (x, *_on(x.device, scale, zero), *ends))
def per_tensor(x: Tensor, scale: Tensor, zero: Tensor, least: int, most: int) -> Rounded:
    return _rounded(x, scale, zero, least, most)


@only(lambda x, scale, zero, *_: x.is_floating_point() and not zero.is_floating_point())
@keeps_dtypes
def per_tensor_of_tensors(x: Tensor, scale: Tensor, zero: Tensor, is_on: Tensor, least: int, most: int) -> Rounded:
    found, inside = _rounded(x, scale.reshape(()), zero.reshape(()), least, most)
    is_off = is_on.reshape(-1)[0] == 0
    return torch.where(is_off, x, found), inside | is_off


def _is_per_channel(x: Tensor, scale: Tensor, zero: Tensor, axis: int, *_: object) -> bool:
    fits = scale.dim() == 1 and scale.shape == zero.shape and zero.dtype == torch.int32
    return x.is_floating_point() and fits and -x.dim() <= axis < x.dim() and x.shape[axis] == scale.shape[0]


@only(_is_per_channel)
@keeps_dtypes
def per_channel(x: Tensor, scale: Tensor, zero: Tensor, axis: int, least: int, most: int) -> Rounded:
    sizes = [-1 if d == axis % x.dim() else 1 for d in range(x.dim())]
    return _rounded(x, scale.reshape(sizes), zero.reshape(sizes), least, most)
