"""Fourier transforms: HLO has them, and torch_xla's builder does not, so that each comes as a module of HLO."""

import functools
import math
from collections.abc import Sequence

import torch
import torch_xla
from torch import Tensor
from torch_xla._hlo_module import message

_FFT, _IFFT, _RFFT, _IRFFT = range(4)  # xla.FftType
_PRIMITIVE_TYPES = {torch.float32: 11, torch.float64: 12, torch.complex64: 15, torch.complex128: 18}
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {wide: narrow for narrow, wide in _COMPLEX.items()}

_MOST_DIMENSIONS = 3
"""HLO transforms at most so many at once."""


def _shape(dtype: torch.dtype, sizes: Sequence[int]) -> bytes:
    rank = len(sizes)
    layout = message((1, range(rank - 1, -1, -1)))
    return message((2, _PRIMITIVE_TYPES[dtype]), (3, sizes), (6, [0] * rank), (5, layout))


@functools.lru_cache(maxsize=256)
def _computation(kind: int, dtype: torch.dtype, sizes: tuple[int, ...], result: torch.dtype, lengths: tuple[int, ...]):
    """The transform of the last ``len(lengths)`` dimensions as an XlaComputation."""
    from torch_xla.core import xla_builder

    sizes_after = list(sizes)
    if kind == _RFFT:
        sizes_after[-1] = lengths[-1] // 2 + 1
    elif kind == _IRFFT:
        sizes_after[-1] = lengths[-1]
    before, after = _shape(dtype, sizes), _shape(result, sizes_after)
    parameter = message((1, "p0.1"), (2, "parameter"), (3, before), (9, 0), (35, 1))
    root = message((1, "fft.2"), (2, "fft"), (3, after), (35, 2), (36, (1,)), (31, kind), (32, lengths))
    program_shape = message((1, before), (2, after), (3, "p0"))
    entry = message((1, "entry.3"), (2, parameter), (2, root), (4, program_shape), (5, 3), (6, 2))
    module = message((1, "fft"), (2, "entry.3"), (3, entry), (4, program_shape), (5, 1), (6, 3))
    return xla_builder.computation_from_module_proto("fft", module)


def _transformed(x: Tensor, kind: int, lengths: tuple[int, ...]) -> Tensor:
    """``x`` with its last dimensions transformed; the inverse transforms are divided by their lengths."""
    result = {_RFFT: _COMPLEX, _IRFFT: _REAL}.get(kind, {}).get(x.dtype, x.dtype)
    made = _computation(kind, x.dtype, tuple(x.shape), result, lengths)
    return torch_xla._XLAC._xla_user_computation("xla::fft", [x], made)[0]


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
    return x.numel() == 0 or not dims or x.dtype not in _PRIMITIVE_TYPES


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


def conj_physical(x: Tensor) -> Tensor:
    return torch.ops.aten._conj_copy(x) if x.is_complex() else x.clone()
