"""Elementwise functions and small reductions."""

import functools
import math
from collections.abc import Sequence
from typing import Optional, Union

import torch
import torch_xla
from torch import Tensor
from torch_xla import runtime
from torch_xla._hlo_module import Operand

from . import loops
from .common import as_floating, integral, keeps_dtypes, only, promoted, wide_of
from .instructions import bitcast, instruction

_LN2 = math.log(2)


def exp2(x: Tensor) -> Tensor:
    if x.is_complex():
        return torch.exp(x * _LN2)
    x = as_floating(x)
    whole = torch.round(x.clamp(-1000, 1000))
    # 2**whole is exact; the rest is at most a half, so that its rounding does not grow with x.
    scaled = torch.exp((x.clamp(-1100, 1100) - whole) * _LN2) * torch.pow(2.0, whole)
    return torch.where(torch.isfinite(x), scaled, torch.exp(x))


def sinc(x: Tensor) -> Tensor:
    x = as_floating(x)
    angle = x * math.pi
    return torch.where(x == 0, torch.ones_like(x), torch.sin(angle) / torch.where(x == 0, torch.ones_like(x), angle))


def signbit(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x < 0 if x.dtype not in (torch.bool, torch.uint8) else torch.zeros_like(x, dtype=torch.bool)
    bits = torch.int64 if x.dtype == torch.float64 else torch.int32
    return bitcast(x, bits) < 0


def copysign(x: Tensor, y: Tensor) -> Tensor:
    negative = signbit(y)  # the dtype of both may be unsigned
    x, _ = promoted(x, y, floating=True)
    return torch.where(negative, -x.abs(), x.abs())


def _of_the_other(x: Tensor, y: Tensor, chosen: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, chosen))


def fmax(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y)
    return torch.maximum(x, y) if integral(x) else _of_the_other(x, y, torch.where(x >= y, x, y))


def fmin(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y)
    return torch.minimum(x, y) if integral(x) else _of_the_other(x, y, torch.where(x <= y, x, y))


def heaviside(x: Tensor, values: Tensor) -> Tensor:
    if x.dtype != values.dtype or x.is_complex():
        return NotImplemented  # an error of torch
    return torch.where(x == 0, values, (x > 0).to(x.dtype))


def hypot(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y)
    x, y = x.abs(), y.abs()
    large, small = torch.maximum(x, y), torch.minimum(x, y)
    ratio = small / torch.where(large == 0, torch.ones_like(large), large)
    found = large * torch.sqrt(1 + ratio * ratio)
    # Not left to the maximum, which loses NaN on CPU-XLA.
    found = torch.where(torch.isnan(x) | torch.isnan(y), torch.full_like(found, math.nan), found)
    return torch.where(torch.isinf(x) | torch.isinf(y), torch.full_like(found, math.inf), found)


def angle(x: Tensor) -> Tensor:
    if x.is_complex():
        parts = torch.view_as_real_copy(x)
        return torch.atan2(parts[..., 1], parts[..., 0])
    found = as_floating(torch.where(x < 0, 1, 0)) * math.pi
    return torch.where(torch.isnan(x), x, found.to(x.dtype)) if x.is_floating_point() else found


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    if x.is_complex() or y.is_complex():
        return NotImplemented
    x, y = promoted(x, y)
    largest = torch.maximum(x, y)
    found = largest + torch.log1p(torch.exp(-(x - y).abs()))
    return torch.where(torch.isinf(x) & (x == y), x, found)


def logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y)
    largest = torch.maximum(x, y)
    found = largest + torch.log1p(torch.exp(-(x - y).abs() * _LN2)) / _LN2
    return torch.where(torch.isinf(x) & (x == y), x, found)


def nansum(x: Tensor, dim: Optional[Sequence[int]], keepdim: bool, dtype: Optional[torch.dtype]) -> Tensor:
    is_refused = x.is_floating_point() and not (dtype or x.dtype).is_floating_point
    if x.is_complex() or is_refused:
        return NotImplemented
    if x.is_floating_point():
        x = torch.where(torch.isnan(x), torch.zeros_like(x), x)
    # In float32, but of the numbers that the narrow dtype holds.
    found = wide_of(x if dtype is None else x.to(dtype)).sum(dim or None, keepdim)
    return found if dtype is None else found.to(dtype)


def vdot(x: Tensor, y: Tensor) -> Tensor:
    return torch.dot(x.conj_physical() if x.is_complex() else x, y)


def addmv(x: Tensor, matrix: Tensor, vector: Tensor, beta: float, alpha: float) -> Tensor:
    return _weighted(x, beta, torch.mv(matrix, vector).clone(), alpha)


def addbmm(x: Tensor, first: Tensor, second: Tensor, beta: float, alpha: float) -> Tensor:
    batches, rows, inner = first.shape
    product = torch.mm(first.permute(1, 0, 2).reshape(rows, batches * inner), second.reshape(batches * inner, -1))
    return _weighted(x, beta, product, alpha)


def _weighted(x: Tensor, beta: float, product: Tensor, alpha: float) -> Tensor:
    x = x.to(product.dtype)
    if integral(x):  # torch takes them as numbers of the tensors' dtype
        beta, alpha = int(beta), int(alpha)
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return (x if beta == 1 else x * beta) + product


def aminmax(x: Tensor, dim: Optional[int], keepdim: bool) -> tuple[Tensor, Tensor]:
    if x.numel() == 0 and (dim is None or x.shape[dim] == 0):
        return NotImplemented  # an error of torch
    dims = list(range(x.dim())) if dim is None else [dim] if x.dim() else []
    if not dims:
        return x.clone(), x.clone()
    return x.amin(dims, keepdim), x.amax(dims, keepdim)


def renorm(x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    dims = [d for d in range(x.dim()) if d != dim % x.dim()]
    norm = torch.linalg.vector_norm(x, p, dims, keepdim=True)
    return x * torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), torch.ones_like(norm))


def round_decimals(x: Tensor, decimals: int) -> Tensor:
    if integral(x):
        return NotImplemented if decimals < 0 else x.clone()
    if decimals == 0:
        return torch.round(x)
    scale = 10.0 ** abs(decimals)
    # By a constant XLA divides with its reciprocal, which is an ulp away: 0.9 would be 0.90000004.
    divisor = torch.where(x.isnan(), x, scale)
    return torch.round(x * scale) / divisor if decimals > 0 else torch.round(x / divisor) * scale


@only(lambda real, imaginary: real.dtype in (torch.float32, torch.float64) and real.dtype == imaginary.dtype)
def complex(real: Tensor, imaginary: Tensor) -> Tensor:
    real, imaginary = torch.broadcast_tensors(real, imaginary)
    return torch.view_as_complex_copy(torch.stack([real, imaginary], -1))


def polar(absolute: Tensor, angle: Tensor) -> Tensor:
    if absolute.dtype not in (torch.float32, torch.float64) or absolute.dtype != angle.dtype:
        return NotImplemented
    return complex(absolute * torch.cos(angle), absolute * torch.sin(angle))


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    if x.is_complex():
        return NotImplemented
    if x.numel() == 0 or x.dim() == 0:
        return x.clone()
    # Steps of 1, 2, 4, … elements: the exponents are never larger than their sum.
    dim, step = dim % x.dim(), 1
    while step < x.shape[dim]:
        before = torch.cat(
            [torch.full_like(x.narrow(dim, 0, step), -math.inf), x.narrow(dim, 0, x.shape[dim] - step)], dim
        )
        x = logaddexp(x, before)
        step *= 2
    return x


def cumprod(x: Tensor, dim: int, dtype: Optional[torch.dtype]) -> Tensor:
    x = x.to(torch.int64)
    if x.numel() == 0 or x.dim() == 0:
        return x.clone()
    dim, step = dim % x.dim(), 1
    while step < x.shape[dim]:
        before = torch.cat([torch.ones_like(x.narrow(dim, 0, step)), x.narrow(dim, 0, x.shape[dim] - step)], dim)
        x = x * before
        step *= 2
    return x


def isposinf(x: Tensor) -> Tensor:
    return x == math.inf if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


def isneginf(x: Tensor) -> Tensor:
    return isposinf(-x) if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


def _shifted(opcode: str, x: Union[Tensor, int], by: Union[Tensor, int]) -> Tensor:
    given = x if isinstance(x, Tensor) else by
    number = functools.partial(torch.full, (), dtype=given.dtype, device=given.device)
    operands = (t if isinstance(t, Tensor) else number(t) for t in (x, by))
    x, by = torch.broadcast_tensors(*promoted(*operands))
    if not integral(x) or x.dtype == torch.bool or x.numel() == 0:
        return NotImplemented
    if opcode == "shift-right":
        opcode += "-logical" if x.dtype == torch.uint8 else "-arithmetic"
    return instruction("shift", opcode, [x, by], [Operand.of(x)])[0]


def left_shift(x: Union[Tensor, int], by: Union[Tensor, int]) -> Tensor:
    return _shifted("shift-left", x, by)


def right_shift(x: Union[Tensor, int], by: Union[Tensor, int]) -> Tensor:
    return _shifted("shift-right", x, by)


def gcd(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y)
    x, y = (t.abs() for t in torch.broadcast_tensors(x, y))
    if x.numel() == 0:
        return x
    flat = [t.reshape(-1) for t in (x, y)]
    made = loops.greatest_divisor(Operand.of(flat[0]))
    return torch_xla._XLAC._xla_user_computation("xla::gcd", flat, made)[0].reshape(x.shape)


def lcm(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y)
    dtype = x.dtype
    if dtype.itemsize < 4:  # C++ multiplies in int, and truncates the absolute value
        x, y = x.int(), y.int()
    divisor = gcd(x, y)
    zero = divisor == 0
    quotient = torch.div(x, torch.where(zero, torch.ones_like(divisor), divisor), rounding_mode="trunc")
    return torch.where(zero, torch.zeros_like(divisor), (quotient * y).abs()).to(dtype)


def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    narrow = x.dtype == torch.float32
    bits_dtype, digits, bias = (torch.int32, 23, 126) if narrow else (torch.int64, 52, 1022)
    mask = 0xFF if narrow else 0x7FF
    bits = bitcast(x, bits_dtype)
    exponent = (bits >> digits) & mask
    special = (x == 0) | ~torch.isfinite(x) | (exponent == 0)
    cleared = bits & ~(mask << digits)
    mantissa = bitcast(cleared | (bias << digits), x.dtype)
    found = (exponent - bias).to(torch.int32)
    return torch.where(special, x, mantissa), torch.where(special, torch.zeros_like(found), found)


#: The integers of as many bits, and what the next number adds to them: bfloat16 is the upper half of float32.
_NEXT = {torch.bfloat16: (torch.int32, 1 << 16), torch.float32: (torch.int32, 1), torch.float64: (torch.int64, 1)}


@keeps_dtypes
def nextafter(x: Tensor, y: Tensor) -> Tensor:
    dtype = torch.result_type(x, y)
    if dtype not in _NEXT:
        return NotImplemented
    x, y = torch.broadcast_tensors(wide_of(x.to(dtype)), wide_of(y.to(dtype)))
    bits_dtype, step = _NEXT[dtype]
    bits = bitcast(x, bits_dtype)
    away = torch.where(signbit(x), y < x, y > x)
    moved = bitcast(bits + torch.where(away, step, -step).to(bits_dtype), x.dtype)
    info = torch.finfo(dtype)
    smallest = torch.where(y > 0, info.tiny * info.eps, -info.tiny * info.eps).to(x.dtype)
    moved = torch.where(x == 0, smallest, moved)
    moved = torch.where(x == y, y, moved)
    return torch.where(torch.isnan(x) | torch.isnan(y), torch.full_like(x, math.nan), moved).to(dtype)


def cross(x: Tensor, y: Tensor, dim: int) -> Tensor:
    x, y = promoted(x, y)
    if x.dim() != y.dim() or x.shape[dim] != 3 or y.shape[dim] != 3:
        return NotImplemented  # an error of torch
    x, y = torch.broadcast_tensors(x, y)
    return x.roll(-1, dim) * y.roll(-2, dim) - x.roll(-2, dim) * y.roll(-1, dim)


def isin(elements: Tensor, others: Tensor, assume_unique: bool, invert: bool) -> Tensor:
    elements, others = (
        t if isinstance(t, Tensor) else torch.tensor(t, device=_device(elements, others)) for t in (elements, others)
    )
    if others.numel() > 64 and not elements.is_complex():
        from .selection import found_in_sorted

        found = found_in_sorted(elements, others)
    else:
        found = (elements.unsqueeze(-1) == others.reshape(-1)).any(-1)
    return found.logical_not() if invert else found


def _device(*values: Union[Tensor, float]) -> torch.device:
    return next(v.device for v in values if isinstance(v, Tensor))


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    if x.dim() < 3 or groups <= 0 or x.shape[1] % groups or x.numel() == 0:
        return NotImplemented
    split = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return split.transpose(1, 2).reshape(x.shape)


def entr(x: Tensor) -> Tensor:
    x = as_floating(x)
    inside = x > 0
    found = torch.where(inside, -x * torch.log(torch.where(inside, x, torch.ones_like(x))), torch.zeros_like(x))
    return torch.where(x < 0, torch.full_like(x, -math.inf), torch.where(torch.isnan(x), x, found))


def xlog1py(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y, floating=True)
    found = torch.where(x == 0, torch.zeros_like(x), x * torch.log1p(y))
    return torch.where(torch.isnan(y), y, found)


def zeros(size: Sequence[int], dtype, layout, device, pin_memory) -> Tensor:
    return torch.zeros(size, dtype=dtype, device=device)


def _is_hashed(x: Tensor, dims: Sequence[int], keepdim: bool, mode: int) -> bool:
    # TPUs have no bits of a double.
    held = not x.is_complex() and (x.dtype != torch.float64 or runtime.device_type() == "CPU")
    return held and mode == 0 and x.numel() > 0


@only(_is_hashed)
def hash_tensor(x: Tensor, dims: Sequence[int], keepdim: bool, mode: int) -> Tensor:
    dims = sorted({d % x.dim() for d in dims} or range(x.dim()))
    if not dims:
        return hash_tensor(x.reshape(1), [0], False, mode)
    made = loops.exclusive_or(Operand.of(x), tuple(dims))
    found = torch_xla._XLAC._xla_user_computation("xla::exclusive_or", [x], made)[0].to(torch.uint64)
    return found.reshape([1 if d in dims else n for d, n in enumerate(x.shape)]) if keepdim else found
