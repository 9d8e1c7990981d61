"""Fourier transforms: HLO has them, and torch_xla's builder does not, so that each comes as a module of HLO."""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch_xla import runtime
from torch_xla._hlo_module import Operand

from .instructions import exact_matmul, instruction

_FFT, _IFFT, _RFFT, _IRFFT = range(4)  # xla.FftType
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {wide: narrow for narrow, wide in _COMPLEX.items()}

_MOST_DIMENSIONS = 3
"""HLO transforms at most so many at once."""


# ---- by products of matrices: XLA gathers what its own instruction transforms, along whatever dimension it is sharded.

_DENSE = 128
"""Lengths up to which, and factors of lengths, a transform is one product."""


@functools.lru_cache
def _factor(length: int) -> int:
    return next(n for n in range(min(length, _DENSE), 0, -1) if length % n == 0)


def _roots(like: Tensor, rows: int, columns: int, length: int, sign: int) -> tuple[Tensor, Tensor]:
    """cos and sin of ± 2 π i k / length, i below the rows and k below the columns."""
    turns = torch.outer(torch.arange(rows), torch.arange(columns)) % length
    angles = turns.double() * (sign * 2 * math.pi / length)
    return tuple(t.to(like.dtype).to(like.device) for t in (angles.cos(), angles.sin()))


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    return exact_matmul(x.reshape(1, -1, x.shape[-1]), matrix.unsqueeze(0)).reshape(x.shape)


def _by_products(real: Tensor, imaginary: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """The transform of the last dimension, of length n1 n2: of the columns, and then of the rows."""
    length = real.shape[-1]
    first = _factor(length)
    if first == 1 < length:
        return _by_convolution(real, imaginary, sign)
    second = length // first
    parts = [t.reshape(*t.shape[:-1], first, second).mT for t in (real, imaginary)]
    cos, sin = _roots(real, first, first, first, sign)
    real = _product(parts[0], cos) - _product(parts[1], sin)
    imaginary = _product(parts[0], sin) + _product(parts[1], cos)
    if second > 1:
        cos, sin = _roots(real, second, first, length, sign)
        real, imaginary = real * cos - imaginary * sin, real * sin + imaginary * cos
        real, imaginary = (t.mT for t in _by_products(real.mT, imaginary.mT, sign))
    return tuple(t.reshape(*t.shape[:-2], length) for t in (real, imaginary))


def _times(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def _by_convolution(real: Tensor, imaginary: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """That of a length with a large prime factor, by Bluestein: with i k = (i² + k² - (k - i)²) / 2 it is a convolution
    with a wave, which transforms of another length make."""
    length = real.shape[-1]
    padded = 2 ** (2 * length - 2).bit_length()
    angles = torch.arange(length).square().remainder(2 * length).double() * (sign * math.pi / length)
    cos, sin = (t.to(real.dtype).to(real.device) for t in (angles.cos(), angles.sin()))
    gap = cos.new_zeros(padded - 2 * length + 1)
    wave = _by_products(*(torch.cat([t, gap, t[1:].flip(0)]).unsqueeze(0) for t in (cos, -sin)), -1)
    spread = [torch.constant_pad_nd(t, [0, padded - length]) for t in _times((real, imaginary), (cos, sin))]
    found = _by_products(*_times(_by_products(*spread, -1), wave), 1)
    return _times(tuple(t[..., :length] * (1 / padded) for t in found), (cos, sin))


def _whole_spectrum(x: Tensor, length: int) -> Tensor:
    """Of the half of it that determines a real result."""
    rest = x[..., 1 : length - x.shape[-1] + 1].flip(-1)
    return torch.cat([x, torch.ops.aten._conj_copy(rest)], -1)


def _transformed_by_products(x: Tensor, kind: int, lengths: tuple[int, ...]) -> Tensor:
    if kind == _RFFT:
        x = torch.complex(x, torch.zeros_like(x))
    elif kind == _IRFFT:
        x = _whole_spectrum(x, lengths[-1])
    is_inverse = kind in (_IFFT, _IRFFT)
    for dim in range(-1, -len(lengths) - 1, -1):
        real, imaginary = torch.view_as_real_copy(x.transpose(dim, -1)).unbind(-1)
        x = torch.complex(*_by_products(real, imaginary, 1 if is_inverse else -1)).transpose(dim, -1)
    if kind == _RFFT:
        return x[..., : lengths[-1] // 2 + 1]
    x = x * (1 / math.prod(lengths)) if is_inverse else x
    return torch.view_as_real_copy(x)[..., 0] if kind == _IRFFT else x


def _transformed(x: Tensor, kind: int, lengths: tuple[int, ...]) -> Tensor:
    """``x`` with its last dimensions transformed; the inverse transforms are divided by their lengths."""
    if runtime.is_spmd():
        return _transformed_by_products(x, kind, lengths)
    sizes = list(x.shape)
    if kind == _RFFT:
        sizes[-1] = lengths[-1] // 2 + 1
    elif kind == _IRFFT:
        sizes[-1] = lengths[-1]
    dtype = {_RFFT: _COMPLEX, _IRFFT: _REAL}.get(kind, {}).get(x.dtype, x.dtype)
    return instruction("fft", "fft", [x], [Operand(dtype, tuple(sizes))], (31, kind), (32, lengths))[0]


def _along(x: Tensor, dims: Sequence[int], kind: int, last: int = 0) -> Tensor:
    """``x`` transformed along ``dims``; ``last`` is the length of the last one after it, where that differs."""
    dims = [d % x.dim() for d in dims]
    others = [d for d in range(x.dim()) if d not in dims]
    order = [*others, *dims]
    lengths = [x.shape[d] for d in dims]
    if last:
        lengths[-1] = last
    if order == sorted(order):
        return _transformed(x, kind, tuple(lengths))
    found = _transformed(x.permute(order), kind, tuple(lengths))
    return found.permute([order.index(d) for d in range(x.dim())])


def _scaled(x: Tensor, normalization: int, lengths: Sequence[int], inverse: bool) -> Tensor:
    """By torch's normalization: 0 none, 1 by the root of the number of elements, 2 by it."""
    count = math.prod(lengths)
    wanted = {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[normalization]
    factor = wanted * count if inverse else wanted
    return x if factor == 1 else x * factor


def _refused(x: Tensor, dims: Sequence[int]) -> bool:
    return x.numel() == 0 or not dims or x.dtype not in (*_COMPLEX, *_REAL)


def fft_c2c(x: Tensor, dims: Sequence[int], normalization: int, forward: bool) -> Tensor:
    if _refused(x, dims):
        return NotImplemented
    lengths = [x.shape[d] for d in dims]
    for i in range(0, len(dims), _MOST_DIMENSIONS):
        x = _along(x, dims[i : i + _MOST_DIMENSIONS], _FFT if forward else _IFFT)
    return _scaled(x, normalization, lengths, not forward)


def fft_r2c(x: Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    if _refused(x, dims):
        return NotImplemented
    lengths = [x.shape[d] for d in dims]
    if not onesided:
        return fft_c2c(x.to(_COMPLEX[x.dtype]), dims, normalization, True)
    found = _along(x, dims[-1:], _RFFT)
    return _scaled(fft_c2c(found, dims[:-1], 0, True) if dims[:-1] else found, normalization, lengths, False)


def fft_c2r(x: Tensor, dims: Sequence[int], normalization: int, last: int) -> Tensor:
    if _refused(x, dims) or last < 1:
        return NotImplemented
    lengths = [*(x.shape[d] for d in dims[:-1]), last]
    for i in range(0, len(dims) - 1, _MOST_DIMENSIONS):
        x = _along(x, dims[:-1][i : i + _MOST_DIMENSIONS], _IFFT)
    # Only the half that determines a real result is read.
    x = x.narrow(dims[-1], 0, last // 2 + 1) if x.shape[dims[-1]] > last // 2 + 1 else x
    return _scaled(_along(x, dims[-1:], _IRFFT, last), normalization, lengths, True)


def conj_copy(x: Tensor) -> Tensor:
    if not x.is_complex():
        return NotImplemented
    real, imaginary = torch.view_as_real_copy(x).unbind(-1)
    return torch.complex(real, -imaginary)


def conj_physical(x: Tensor) -> Tensor:
    return torch.ops.aten._conj_copy(x) if x.is_complex() else x.clone()
