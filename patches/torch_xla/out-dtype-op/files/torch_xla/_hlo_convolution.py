"""One convolution as an HLO module, in XLA's own interchange form: a serialised HloModuleProto.

torch_xla's builder (``torch_xla.core.xla_builder``) makes convolutions whose result has the operands'
dtype and offers no other. A module that comes as a proto may have what HLO has: a wider result, and
operands of two dtypes. The numbers of the fields below are those of ``xla/service/hlo.proto`` and
``xla/xla_data.proto``, which keep them for good because HLO is stored in files.
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple, Union

import torch
from torch_xla.core import xla_builder

__all__ = ["DimensionNumbers", "Operand", "Window", "convolution"]

# xla.PrimitiveType
_PRIMITIVE_TYPES = {
    torch.int8: 2,
    torch.int32: 4,
    torch.float16: 10,
    torch.float32: 11,
    torch.float64: 12,
    torch.bfloat16: 16,
}

_NAME = "convolution"
_VARINT, _BYTES = 0, 2  # wire types


class Operand(NamedTuple):
    """An array: what HLO writes as ``bf16[2,3]``."""

    dtype: torch.dtype
    sizes: tuple[int, ...]


class Window(NamedTuple):
    """What one spatial dimension of the kernel does: a ``WindowDimension``."""

    size: int
    stride: int
    padding_low: int
    padding_high: int
    window_dilation: int = 1
    base_dilation: int = 1
    reversal: bool = False


class DimensionNumbers(NamedTuple):
    """Which of the first two dimensions is which. The spatial ones are 2, 3, … everywhere."""

    input_batch: int
    input_feature: int
    kernel_input_feature: int
    kernel_output_feature: int
    output_batch: int
    output_feature: int


_Value = Union[int, str, bytes, Iterable[int]]


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1  # negative ones take two's complement of 64 bits
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _message(*fields: tuple[int, _Value]) -> bytes:
    """A protobuf message of (field number, value) pairs; several ints make a packed field."""
    encoded = b""
    for number, value in fields:
        if isinstance(value, int):
            encoded += _varint(number << 3 | _VARINT) + _varint(value)
            continue
        if isinstance(value, str):
            value = value.encode()
        elif not isinstance(value, bytes):
            value = b"".join(map(_varint, value))
        encoded += _varint(number << 3 | _BYTES) + _varint(len(value)) + value
    return encoded


def _shape(operand: Operand) -> bytes:
    rank = len(operand.sizes)
    layout = _message((1, range(rank - 1, -1, -1)))
    element_type = _PRIMITIVE_TYPES.get(operand.dtype)
    if element_type is None:
        known = ", ".join(map(str, _PRIMITIVE_TYPES))
        raise TypeError(
            f"expected a convolution of one of {known}, but found {operand.dtype}. Convert the operand first"
        )
    return _message((2, element_type), (3, operand.sizes), (6, [0] * rank), (5, layout))


def _window(dimensions: tuple[Window, ...]) -> bytes:
    return _message(*((1, _message(*enumerate(dimension, start=1))) for dimension in dimensions))


def _dimension_numbers(numbers: DimensionNumbers, spatial_rank: int) -> bytes:
    spatial = range(2, 2 + spatial_rank)
    return _message(
        (7, numbers.input_batch),
        (8, numbers.input_feature),
        (11, spatial),
        (3, numbers.kernel_input_feature),
        (4, numbers.kernel_output_feature),
        (6, spatial),
        (9, numbers.output_batch),
        (10, numbers.output_feature),
        (12, spatial),
    )


def _module(lhs: bytes, rhs: bytes, result: bytes, attributes: bytes) -> bytes:
    """A module whose entry computes, of two parameters, the convolution with these attributes.

    Every name ends in a number, as XLA's builder demands.
    """
    parameters = [
        _message((1, f"p{i}.{i + 1}"), (2, "parameter"), (3, shape), (9, i), (35, i + 1))
        for i, shape in enumerate((lhs, rhs))
    ]
    root = _message((1, "convolution.3"), (2, "convolution"), (3, result), (35, 3), (36, (1, 2))) + attributes
    program_shape = _message((1, lhs), (1, rhs), (2, result), (3, "p0"), (3, "p1"))
    entry = _message((1, "entry.4"), *((2, i) for i in (*parameters, root)), (4, program_shape), (5, 4), (6, 3))
    return _message((1, _NAME), (2, "entry.4"), (3, entry), (4, program_shape), (5, 1), (6, 4))


@functools.lru_cache(maxsize=4096)
def convolution(
    lhs: Operand,
    rhs: Operand,
    result: Operand,
    window: tuple[Window, ...],
    numbers: DimensionNumbers,
    feature_groups: int = 1,
    batch_groups: int = 1,
):
    """The ``XlaComputation`` of a convolution of ``lhs`` with the kernel ``rhs``, one for each argument list.

    All sizes are in elements. ``result`` states the shape and the dtype in which XLA accumulates and
    returns; XLA checks both against the operands when the graph that uses the computation is built.
    Raises TypeError for a dtype that is none of int8, int32, bfloat16, float16, float32 and float64.
    """
    attributes = _message(
        (15, _window(window)),
        (16, _dimension_numbers(numbers, len(window))),
        (50, feature_groups),
        (58, batch_groups),
        (51, _message((1, (0, 0)))),  # precision: default for either operand
    )
    module = _module(_shape(lhs), _shape(rhs), _shape(result), attributes)
    return xla_builder.computation_from_module_proto(_NAME, module)
