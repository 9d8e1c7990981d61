"""XLA's lazy IR and HLO as text that tests can state: what is computed, in which dtype and shape.

Left out is what differs from version to version or from run to run: layouts, node ids, computation and
module names, source locations, and all attributes but the dimension numbers of HLO.
"""

import sys
from pathlib import Path

import torch
import torch_xla
from expecttest import assert_expected_inline

sys.path.append(str(Path(__file__).resolve().parents[2]))  # castoff, which test environments do not have

from castoff.formats.xla_text import parse_hlo, parse_ir

__all__ = ["hlo", "ir", "normalize_hlo", "normalize_ir"]


class Text(str):
    """Text that a test states."""

    def expect(self, text: str) -> None:
        """``text`` is a literal, which ci/accept.sh writes anew."""
        assert_expected_inline(self, text, skip=1)


class _Numbers:
    """Gives names the numbers %0, %1, … in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        return self._numbers.setdefault(name, f"%{len(self._numbers)}")


def normalize_ir(text: str) -> str:
    """The nodes of ``_get_xla_tensors_text``, in its order, then the roots. ``%5.2`` is the third output of ``%5``."""
    number, lines, roots = _Numbers(), [], {}
    for node in parse_ir(text.splitlines()):
        name = number(node.name)
        operands = (
            number(operand) if output is None else f"{number(operand)}.{output}"
            for operand, output in zip(node.operands, node.outputs)  # noqa: B905 - CPython 3.10, on pin 2.1
        )
        lines.append(f"{name} = {node.shape} {node.op}({', '.join(operands)})")
        if node.root is not None:
            roots[node.root] = name
    return "\n".join([*lines, "return " + ", ".join(roots[i] for i in sorted(roots))]) + "\n"


def normalize_hlo(text: str) -> str:
    """The instructions of ``_get_xla_tensors_hlo``, computation by computation, the entry last."""
    return "\n".join(map(_computation, parse_hlo(text).computations.values()))


def _computation(instructions) -> str:
    number, lines = _Numbers(), []
    for inner in instructions:
        inside = inner.argument or ", ".join(map(number, inner.operands))
        value = ", ".join([f"{inner.op}({inside})", *inner.dimensions])
        lines.append(f"{'ROOT ' * inner.root}{number(inner.name)} = {inner.shape} {value}\n")
    return "".join(lines)


def ir(*tensors: torch.Tensor) -> Text:
    """The pending IR graph of ``tensors``, normalised."""
    return Text(normalize_ir(torch_xla._XLAC._get_xla_tensors_text(list(tensors))))


def hlo(*tensors: torch.Tensor) -> Text:
    """The HLO that the pending graph of ``tensors`` lowers to, normalised."""
    return Text(normalize_hlo(torch_xla._XLAC._get_xla_tensors_hlo(list(tensors))))
