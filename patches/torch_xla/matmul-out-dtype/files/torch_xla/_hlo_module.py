"""One dot or convolution as an HLO module, in XLA's own interchange form: a serialised HloModuleProto.

What torch_xla makes of these by itself lacks something: its builder (``torch_xla.core.xla_builder``) gives
convolutions the dtype of their operands and no other, and ``_xla_dot_general`` takes no precision. A module
that comes as a proto may have all that HLO has. The numbers of the fields below are those of
``xla/service/hlo.proto`` and ``xla/xla_data.proto``, which keep them for good because HLO is stored in files.
"""

from collections.abc import Iterable
from typing import NamedTuple, Union

import torch
import torch_xla
from torch_xla.core import xla_builder

__all__ = ["PRIMITIVE_TYPES", "Operand", "computation", "message", "run"]

# xla.PrimitiveType
PRIMITIVE_TYPES = {
    torch.int8: 2,
    torch.int16: 3,
    torch.int32: 4,
    torch.int64: 5,
    torch.uint8: 6,
    torch.float16: 10,
    torch.float32: 11,
    torch.float64: 12,
    torch.bfloat16: 16,
    torch.float8_e5m2: 19,
    torch.float8_e4m3fn: 20,
}

# xla.PrecisionConfig.Precision, by what torch_xla.backends.set_mat_mul_precision calls it
_PRECISIONS = {"default": 0, "high": 1, "highest": 2}

_VARINT, _BYTES = 0, 2  # wire types


class Operand(NamedTuple):
    """An array: what HLO writes as ``bf16[2,3]``."""

    dtype: torch.dtype
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Operand":
        return cls(tensor.dtype, tuple(tensor.shape))


_Value = Union[int, str, bytes, Iterable[int]]


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1  # negative ones take two's complement of 64 bits
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def message(*fields: tuple[int, _Value]) -> bytes:
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
    layout = message((1, range(rank - 1, -1, -1)))
    element_type = PRIMITIVE_TYPES.get(operand.dtype)
    if element_type is None:
        known = ", ".join(map(str, PRIMITIVE_TYPES))
        raise TypeError(f"expected an operand of one of {known}, but found {operand.dtype}. Convert it first")
    return message((2, element_type), (3, operand.sizes), (6, [0] * rank), (5, layout))


def computation(opcode: str, lhs: Operand, rhs: Operand, result: Operand, attributes: bytes, precision: str):
    """The ``XlaComputation`` that is one instruction of two parameters.

    ``attributes`` are the fields of its HloInstructionProto that only ``opcode`` has. ``result`` states the
    shape, and the dtype in which XLA accumulates and returns; XLA checks both against the operands when the
    graph that uses the computation is built. ``precision`` is "default", "high" or "highest", for either
    operand. Raises TypeError for a dtype that is not in PRIMITIVE_TYPES.
    """
    shapes = _shape(lhs), _shape(rhs)
    precisions = message((1, [_PRECISIONS[precision]] * 2))
    # Every name ends in a number, as XLA's builder demands.
    parameters = [
        message((1, f"p{i}.{i + 1}"), (2, "parameter"), (3, shape), (9, i), (35, i + 1))
        for i, shape in enumerate(shapes)
    ]
    root = message((1, f"{opcode}.3"), (2, opcode), (3, _shape(result)), (35, 3), (36, (1, 2)), (51, precisions))
    instructions = (*parameters, root + attributes)
    program_shape = message((1, shapes[0]), (1, shapes[1]), (2, _shape(result)), (3, "p0"), (3, "p1"))
    entry = message((1, "entry.4"), *((2, i) for i in instructions), (4, program_shape), (5, 4), (6, 3))
    module = message((1, opcode), (2, "entry.4"), (3, entry), (4, program_shape), (5, 1), (6, 4))
    return xla_builder.computation_from_module_proto(opcode, module)


def run(name: str, made: object, lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    """One IR node ``xla::<name>`` that is the computation ``made`` of two XLA tensors."""
    return torch_xla._XLAC._xla_user_computation(f"xla::{name}", [lhs, rhs], made)[0]
