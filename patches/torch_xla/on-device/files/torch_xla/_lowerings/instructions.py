"""Instructions of HLO that torch_xla's builder does not have: each comes as a module of HLO."""

import functools
from collections.abc import Sequence

import torch
import torch_xla
from torch import Tensor
from torch_xla._hlo_module import PRIMITIVE_TYPES, Operand, computation, message

_TYPES = {**PRIMITIVE_TYPES, torch.complex64: 15, torch.complex128: 18}
_TUPLE = 13


def _shape(array: Operand) -> bytes:
    rank = len(array.sizes)
    layout = message((1, range(rank - 1, -1, -1)))
    return message((2, _TYPES[array.dtype]), (3, array.sizes), (6, [0] * rank), (5, layout))


@functools.lru_cache(maxsize=1024)
def _computation(opcode: str, operands: tuple, results: tuple, attributes: tuple):
    """One instruction as an XlaComputation; ``attributes`` are the fields that only ``opcode`` has."""
    from torch_xla.core import xla_builder

    shapes = [_shape(array) for array in operands]
    parts = [_shape(array) for array in results]
    after = parts[0] if len(parts) == 1 else message((2, _TUPLE), *((4, part) for part in parts))
    last = len(operands) + 1
    # Every name ends in a number, as XLA's builder demands.
    parameters = [
        message((1, f"p{i}.{i + 1}"), (2, "parameter"), (3, shape), (9, i), (35, i + 1))
        for i, shape in enumerate(shapes)
    ]
    inputs = message((1, f"{opcode}.{last}"), (2, opcode), (3, after), (35, last), (36, range(1, last)), *attributes)
    names = ((3, f"p{i}") for i in range(len(shapes)))
    program_shape = message(*((1, shape) for shape in shapes), (2, after), *names)
    instructions = ((2, instruction) for instruction in (*parameters, inputs))
    entry = message((1, f"entry.{last + 1}"), *instructions, (4, program_shape), (5, last + 1), (6, last))
    module = message((1, opcode), (2, f"entry.{last + 1}"), (3, entry), (4, program_shape), (5, 1), (6, last + 1))
    return xla_builder.computation_from_module_proto(opcode, module)


def instruction(name: str, opcode: str, operands: Sequence[Tensor], results: Sequence[Operand], *attributes: tuple):
    """The results of one instruction: an IR node ``xla::<name>``."""
    made = _computation(opcode, tuple(map(Operand.of, operands)), tuple(results), attributes)
    return torch_xla._XLAC._xla_user_computation(f"xla::{name}", list(operands), made)


def bitcast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits of ``x`` as another dtype of the same width."""
    return instruction("bitcast", "bitcast-convert", [x], [Operand(dtype, tuple(x.shape))])[0]


@functools.lru_cache(maxsize=1024)
def exact_dot(lhs: Operand, rhs: Operand):
    """[B, m, k] by [B, k, n] as an XlaComputation, with all digits: a TPU's dots round float32 to bfloat16."""
    dimensions = message((1, [2]), (2, [1]), (3, [0]), (4, [0]))
    result = Operand(lhs.dtype, (*lhs.sizes[:2], rhs.sizes[2]))
    return computation("dot", lhs, rhs, result, message((30, dimensions)), "highest")


def exact_matmul(x: Tensor, y: Tensor) -> Tensor:
    """x [..., m, k] by y [..., k, n], with all digits."""
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (t.expand(*batch, *t.shape[-2:]) for t in (x, y))
    if x.numel() == 0 or y.numel() == 0:
        return x.new_zeros(*batch, x.shape[-2], y.shape[-1])
    left, right = (t.reshape(-1, *t.shape[-2:]) for t in (x, y))
    made = exact_dot(Operand.of(left), Operand.of(right))
    found = torch_xla._XLAC._xla_user_computation("xla::dot", [left, right], made)[0]
    return found.reshape(*batch, x.shape[-2], y.shape[-1])
