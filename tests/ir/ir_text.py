"""XLA's lazy IR and HLO as text that tests can state: what is computed, in which dtype and shape.

Left out is what differs from version to version or from run to run: layouts, node ids, computation and
module names, source locations, and all attributes but the dimension numbers of HLO.
"""

import re

import torch
import torch_xla

__all__ = ["hlo", "ir", "normalize_hlo", "normalize_ir"]

_LAYOUT = re.compile(r"(?<=\])\{[^}]*\}")
_VALUE = re.compile(r"%[\w.\-]+")
_OUTPUT = re.compile(r"(%\d+)(\.\d+)?")
_DIMENSIONS = re.compile(r"(?:dimensions|\w+_(?:contracting|batch)_dims)=\{[^}]*\}")
_SHAPE = r"(?:\([^()]*\)|\w+\[[^\]]*\])"
_IR_LINE = re.compile(rf"^\s*(%\d+) = ({_SHAPE}) ([\w:]+)\((.*?)\)(.*)$")
_HLO_LINE = re.compile(rf"^\s*(ROOT )?(%[\w.\-]+) = ({_SHAPE}) ([\w\-]+)\((.*?)\)(?:, (.*))?$")


class _Numbers:
    """Gives names the numbers %0, %1, … in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        return self._numbers.setdefault(name, f"%{len(self._numbers)}")

    def operands(self, text: str) -> str:
        return ", ".join(self(name) for name in _VALUE.findall(text))

    def outputs(self, text: str) -> str:
        """Operands in IR's form, where ``%5.2`` is the third output of ``%5``."""
        return ", ".join(self(name) + output for name, output in _OUTPUT.findall(text))


def normalize_ir(text: str) -> str:
    """The nodes of ``_get_xla_tensors_text``, in its order, then the roots."""
    number, lines, roots = _Numbers(), [], {}
    for line in text.splitlines():
        match = _IR_LINE.match(_LAYOUT.sub("", line))
        if match is None:
            continue
        name, shape, op, operands, attributes = match.groups()
        lines.append(f"{number(name)} = {shape} {op}({number.outputs(operands)})")
        if (root := re.search(r"\bROOT=(\d+)", attributes)) is not None:
            roots[int(root[1])] = number(name)
    return "\n".join([*lines, "return " + ", ".join(roots[i] for i in sorted(roots))]) + "\n"


def normalize_hlo(text: str) -> str:
    """The instructions of ``_get_xla_tensors_hlo``, computation by computation, the entry last."""
    lines: list[str] = []
    number = _Numbers()
    for line in text.splitlines():
        if line.rstrip().endswith("{"):
            number = _Numbers()
            if lines:
                lines.append("")
            continue
        match = _HLO_LINE.match(_LAYOUT.sub("", line))
        if match is None:
            continue
        root, name, shape, op, operands, attributes = match.groups()
        inside = operands if op in ("parameter", "constant") else number.operands(operands)
        kept = [f"{op}({inside})", *_DIMENSIONS.findall(attributes or "")]
        lines.append(f"{root or ''}{number(name)} = {shape} {', '.join(kept)}")
    return "\n".join(lines) + "\n"


def ir(*tensors: torch.Tensor) -> str:
    """The pending IR graph of ``tensors``, normalised."""
    return normalize_ir(torch_xla._XLAC._get_xla_tensors_text(list(tensors)))


def hlo(*tensors: torch.Tensor) -> str:
    """The HLO that the pending graph of ``tensors`` lowers to, normalised."""
    return normalize_hlo(torch_xla._XLAC._get_xla_tensors_hlo(list(tensors)))
