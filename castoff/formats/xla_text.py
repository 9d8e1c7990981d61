"""Reads the two texts that torch_xla prints of a graph: its lazy IR, and the HLO that it lowers to.

Standard library of Python 3.10 only: tests and audits import it in the environment of a user's torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

_NODE = re.compile(r"^\s*(%\d+) = (\([^()]*\)|\S+) ([\w:]+)\((.*?)\)(?:, |$)(.*)$")
_OPERAND = re.compile(r"(%\d+)(?:\.(\d+))?")
_SCOPE = re.compile(r"\bscope=(\S+?)(?:,|$)")
_LOCATION = re.compile(r"\blocation=(\S+?)@(\S+?):(\d+)")
_ROOT = re.compile(r"\bROOT=(\d+)")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_CALL = re.compile(r"\s*([\w\-]+)\(")
_LAYOUT = re.compile(r"\{[^{}]*\}")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_INDEX = re.compile(r"\bindex=(\d+)")
_OP_NAME = re.compile(r'\bop_name="([^"]*)"')
_GROUPS = re.compile(r"\breplica_groups=(\{(?:\{[\d,]*\},?)*\}|\[[\d,]*\]<=\[[^ ]*\])")
_DIMENSIONS = re.compile(r"(?:dimensions|\w+_(?:contracting|batch)_dims)=\{[^}]*\}")
_DTYPE = re.compile(r"[a-z]\w*(?=\[)")
_SIZES = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True)
class Node:
    """A node of the IR."""

    name: str  # such as "%20"
    line: int  # the line of the text that it stands in, from 0
    shape: str  # without layouts, such as "f32[8,16]"; of a node with several outputs, "(f32[8], s32[])"
    op: str  # such as "xla::cast"
    operands: tuple[str, ...]  # the names of the nodes that it takes
    outputs: tuple[int | None, ...]  # which output of each operand it takes; None if that has one output
    root: int | None  # which result of the graph it is
    scope: str  # the scope that it was made in; "" for none
    location: tuple[str, str, int] | None  # the function, file name and line that torch_xla noted


def parse_ir(lines: Sequence[str]) -> Iterator[Node]:
    """Read IR text, line by line; lines that are not nodes are skipped."""
    for number, line in enumerate(lines):
        match = _NODE.match(line)
        if match is None:
            continue
        name, shape, op, operands, attributes = match.groups()
        scope, location, root = (pattern.search(attributes) for pattern in (_SCOPE, _LOCATION, _ROOT))
        taken = _OPERAND.findall(operands)
        yield Node(
            name=name,
            line=number,
            shape=_without_layouts(shape),
            op=op,
            operands=tuple(operand for operand, _ in taken),
            outputs=tuple(int(output) if output else None for _, output in taken),
            root=int(root[1]) if root else None,
            scope=scope[1] if scope else "",
            location=(location[1], location[2], int(location[3])) if location else None,
        )


@dataclass(frozen=True)
class Instruction:
    """An instruction of HLO."""

    name: str
    op: str  # its opcode, such as "convert"
    shape: str  # without layouts, such as "f32[8,16]"; of a tuple, "(f32[8], s32[])"
    with_layouts: str  # its shape as it is written, such as "f32[8,16]{1,0:T(8,128)S(1)}"
    operands: tuple[str, ...]  # their names
    argument: str  # the text in the parentheses of a parameter or a constant
    dimensions: tuple[str, ...]  # attributes that number dimensions, such as "lhs_contracting_dims={1}"
    called: tuple[tuple[str, str], ...]  # the computations that it calls, by role (calls, to_apply, body, ...)
    index: int  # which element of a tuple it takes
    groups: str  # the devices that a collective works among
    root: bool  # whether it is its computation's result
    attributes: str  # the text after its operands
    op_name: str  # where it comes from by its metadata, such as "scope.1/xla__cast"; "" if that does not say

    @property
    def dtype(self) -> str:
        """Its dtype, such as "bf16"; of a tuple, that of the first element."""
        match = _DTYPE.search(self.shape)
        return match[0] if match else ""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of its dimensions, the largest of one whose size varies; of a tuple, those of the first element."""
        match = _SIZES.search(self.shape)
        return tuple(int(size.lstrip("<=")) for size in match[1].split(",") if size) if match else ()


@dataclass(frozen=True)
class Module:
    """A module of HLO."""

    computations: dict[str, tuple[Instruction, ...]]  # by name, in the order of the text
    entry: str  # the name of the computation that is run

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction of every computation."""
        for computation in self.computations.values():
            yield from computation

    @cached_property
    def named(self) -> dict[str, Instruction]:
        """Every instruction by its name."""
        return {instruction.name: instruction for instruction in self.instructions()}

    def find(self, *ops: str) -> list[Instruction]:
        """The instructions with one of these opcodes."""
        return [instruction for instruction in self.instructions() if instruction.op in ops]

    def converts(self) -> list[tuple[str, str]]:
        """The conversions between dtypes: (from, to), in the order of the text."""
        found = []
        for computation in self.computations.values():
            dtypes = {instruction.name: instruction.dtype for instruction in computation}
            found += [(dtypes[inner.operands[0]], inner.dtype) for inner in computation if inner.op == "convert"]
        return found


def parse_hlo(text: str) -> Module:
    """Read HLO text.

    Args:
        text: What XLA prints of a module.

    Raises:
        ValueError: It has no entry computation.
    """
    computations: dict[str, list[Instruction]] = {}
    entry = name = ""
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header is not None:
            name = header[2]
            computations[name] = []
            entry = name if header[1] else entry
        elif name and (match := _INSTRUCTION.match(line)) is not None:
            computations[name].append(_instruction(match))
        elif line.startswith("}"):
            name = ""
    if not entry:
        raise ValueError("expected HLO with an ENTRY computation, found none: is the graph of these tensors pending?")
    return Module({key: tuple(value) for key, value in computations.items()}, entry)


def _instruction(match: re.Match[str]) -> Instruction:
    root, name, rest = match.groups()
    with_layouts, rest = _shape(rest)
    call = _CALL.match(rest)
    op = call[1] if call else rest.strip()
    inside, attributes = _parenthesised(rest[call.end() :]) if call else ("", "")
    called = [(role, computation) for role, computation in _CALLED.findall(attributes)]
    for names in _BRANCHES.findall(attributes):
        called += [("branch", branch.strip().lstrip("%")) for branch in names.split(",")]
    index, groups, op_name = (pattern.search(attributes) for pattern in (_INDEX, _GROUPS, _OP_NAME))
    return Instruction(
        name=name,
        op=op,
        shape=_without_layouts(with_layouts),
        with_layouts=with_layouts,
        operands=tuple(_NAME.findall(inside)) if op not in ("parameter", "constant") else (),
        argument=inside if op in ("parameter", "constant") else "",
        dimensions=tuple(_DIMENSIONS.findall(attributes)),
        called=tuple(called),
        index=int(index[1]) if index else 0,
        groups=groups[1] if groups else "",
        root=bool(root),
        attributes=attributes,
        op_name=op_name[1] if op_name else "",
    )


def _shape(text: str) -> tuple[str, str]:
    """Split ``shape op(…)`` and return the shape, and the rest."""
    if text.startswith("("):
        inside, rest = _parenthesised(text[1:])
        return "(" + re.sub(r"/\*.*?\*/", "", inside) + ")", rest
    shape, _, rest = text.partition(" ")
    return shape, rest


def _without_layouts(text: str) -> str:
    return _LAYOUT.sub("", text)


def _parenthesised(text: str) -> tuple[str, str]:
    """Split what follows an opening parenthesis at the closing one."""
    depth = 1
    for at, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return text[:at], text[at + 1 :]
    raise ValueError(f"no closing parenthesis in {text!r}")
