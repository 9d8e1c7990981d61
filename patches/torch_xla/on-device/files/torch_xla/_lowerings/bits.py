"""``x.view(dtype)``: the bits of a tensor as elements of another dtype."""

import torch
from torch import Tensor
from torch_xla import runtime
from torch_xla._hlo_module import PRIMITIVE_TYPES, Operand

from .common import keeps_dtypes, only
from .instructions import bitcast, instruction


@only(lambda x, dtype: x.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2))  # of which torch_xla makes no graphs
@keeps_dtypes
def view_as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dim() == 0 and (x.is_complex() or dtype.is_complex):
        return NotImplemented
    if x.is_complex():
        x = torch.stack([x.real, x.imag], -1).flatten(-2)
    elif x.dtype == torch.bool:
        x = x.to(torch.uint8)
    if not dtype.is_complex:
        return _with_bits_of(x, dtype)
    if x.shape[-1] * x.element_size() % dtype.itemsize:
        return NotImplemented
    parts = _with_bits_of(x, torch.float32 if dtype == torch.complex64 else torch.float64)
    return NotImplemented if parts is NotImplemented else torch.complex(*parts.unflatten(-1, (-1, 2)).unbind(-1))


def _with_bits_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.bool:
        found = _with_bits_of(x, torch.uint8)
        return NotImplemented if found is NotImplemented else found != 0
    kinds = {x.dtype, dtype}
    if not kinds <= PRIMITIVE_TYPES.keys() or (torch.float64 in kinds and runtime.device_type() == "TPU"):
        return NotImplemented  # a TPU has two numbers for a float64
    own, other = x.element_size(), dtype.itemsize
    if own == other:
        return x.clone() if x.dtype == dtype else bitcast(x, dtype)
    if x.dim() == 0 or x.shape[-1] * own % other:
        return NotImplemented
    *rest, size = x.shape
    if own > other:
        parts = Operand(dtype, (*rest, size, own // other))
        return instruction("bitcast", "bitcast-convert", [x], [parts])[0].flatten(-2)
    x = x.unflatten(-1, (size * own // other, other // own))
    return instruction("bitcast", "bitcast-convert", [x], [Operand(dtype, tuple(x.shape[:-1]))])[0]
