"""Reads optimised HLO, and writes it as text that tests can state.

HLO text differs from libtpu to libtpu and from TPU to TPU in much that says nothing about arithmetic:
names, layouts and tiling, prefetches between memories, bitcasts, computations that hold nothing but
such. What is kept is what is computed, from what, in which dtype and shape, and in which fusion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_CALL = re.compile(r"\s*([\w\-]+)\(")
_LAYOUT = re.compile(r"\{[^{}]*\}")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_INDEX = re.compile(r"\bindex=(\d+)")
_OP_NAME = re.compile(r'\bop_name="([^"]*)"')
_GROUPS = re.compile(r"\breplica_groups=(\{(?:\{[\d,]*\},?)*\}|\[[^ ,]*\]<=\[[^ ]*\])")
_DTYPE = re.compile(r"[a-z]\w*(?=\[)")

_SAME_VALUE = frozenset({"bitcast", "copy", "copy-start", "copy-done", "optimization-barrier"})
"""Instructions that give their first operand's value, in another place or layout."""

_CALLING = frozenset({"call", "conditional", "while"})

_COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


@dataclass(frozen=True)
class Instruction:
    """An instruction of HLO.

    Attributes:
        name: Its name.
        op: Its opcode, such as "convert".
        shape: Its shape without layouts, such as "f32[8,16]"; of a tuple, "(f32[8], s32[])".
        operands: The names of its operands.
        argument: What stands in the parentheses of a parameter or a constant.
        called: The computations that it calls, by role (``calls``, ``to_apply``, ``body``, …).
        index: Which element of a tuple it takes.
        groups: The devices that a collective works among.
        root: Whether it is its computation's result.
        op_name: What its metadata says that it comes from, such as "scope.1/xla__cast"; "" if nothing.
    """

    name: str
    op: str
    shape: str
    operands: tuple[str, ...]
    argument: str
    called: tuple[tuple[str, str], ...]
    index: int
    groups: str
    root: bool
    op_name: str = ""

    @property
    def dtype(self) -> str:
        """Its dtype, such as "bf16"; of a tuple, that of the first element."""
        match = _DTYPE.search(self.shape)
        return match[0] if match else ""


@dataclass(frozen=True)
class Module:
    """A module of HLO.

    Attributes:
        computations: The instructions of each computation, by name, in the order of the text.
        entry: The name of the computation that is run.
    """

    computations: dict[str, tuple[Instruction, ...]]
    entry: str

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction of every computation."""
        for computation in self.computations.values():
            yield from computation

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


def parse(text: str) -> Module:
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
        raise ValueError("no ENTRY computation in this HLO")
    return Module({key: tuple(value) for key, value in computations.items()}, entry)


def _instruction(match: re.Match[str]) -> Instruction:
    root, name, rest = match.groups()
    shape, rest = _shape(rest)
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
        shape=shape,
        operands=tuple(_NAME.findall(inside)) if op not in ("parameter", "constant") else (),
        argument=inside if op in ("parameter", "constant") else "",
        called=tuple(called),
        index=int(index[1]) if index else 0,
        groups=groups[1] if groups else "",
        root=bool(root),
        op_name=op_name[1] if op_name else "",
    )


def _shape(text: str) -> tuple[str, str]:
    """Split ``shape op(…)`` and return the shape without layouts, and the rest."""
    if text.startswith("("):
        inside, rest = _parenthesised(text[1:])
        return "(" + re.sub(r"/\*.*?\*/", "", _without_layouts(inside)) + ")", rest
    shape, _, rest = text.partition(" ")
    return _without_layouts(shape), rest


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


def normalize(text: str) -> str:
    """Return HLO as text that tests can state: one line a value, fusions as blocks.

    Values are numbered in the order in which they are used first. Prefetches, copies and bitcasts are
    left out; a fusion within a fusion counts as part of the outer one.

    Args:
        text: Optimised HLO.
    """
    return _Writer(parse(text)).write()


Value = str | list["Value"]
"""A number such as "%3", or the values of a tuple."""


class _Writer:
    """Writes a module; its state is the numbering and the lines so far."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._lines: list[str] = []
        self._count = 0

    def write(self) -> str:
        parameters: dict[int, Value] = {}
        result = self._body(self._module.entry, parameters, "")
        self._lines.append(f"return {_flat(result)}")
        return "\n".join(self._lines) + "\n"

    def _body(self, name: str, parameters: dict[int, Value], indent: str) -> Value:
        """Write a computation and return its result."""
        values: dict[str, Value] = {}
        result: Value = "()"
        by_name = {instruction.name: instruction for instruction in self._module.computations[name]}

        def value(operand: str) -> Value:
            # What is free (parameters, constants) is written where it is used first.
            if operand not in values:
                values[operand] = self._value(by_name[operand], [], parameters, indent)
            return values[operand]

        for instruction in by_name.values():
            if instruction.op not in ("parameter", "constant"):
                operands = [value(operand) for operand in instruction.operands]
                values[instruction.name] = self._value(instruction, operands, parameters, indent)
            if instruction.root:
                result = value(instruction.name)
        return result

    def _value(
        self, instruction: Instruction, operands: list[Value], parameters: dict[int, Value], indent: str
    ) -> Value:
        """Write an instruction, unless it is one that computes nothing, and return its value."""
        op = instruction.op
        if op == "parameter" and int(instruction.argument) in parameters:
            return parameters[int(instruction.argument)]
        if op == "get-tuple-element" and isinstance(operands[0], list):
            return operands[0][instruction.index]
        if op in _SAME_VALUE:
            return operands[0]
        if op == "fusion":
            return self._fusion(instruction, operands, indent)
        if op in _CALLING:
            return self._nested(instruction, operands, indent)
        return (
            operands if op == "tuple" else self._line(indent, instruction.shape, self._called_op(instruction, operands))
        )

    def _fusion(self, instruction: Instruction, operands: list[Value], indent: str) -> Value:
        """Write a fusion as a block; one that computes nothing vanishes."""
        inside = indent if indent.endswith("| ") else indent + "| "
        at = len(self._lines)
        result = self._body(instruction.called[0][1], dict(enumerate(operands)), inside)
        if len(self._lines) > at and inside != indent:
            self._lines.insert(at, f"{indent}fusion:")
        return result

    def _nested(self, instruction: Instruction, operands: list[Value], indent: str) -> Value:
        """Write a call, loop or branch, and below it the computations that it calls."""
        result = self._line(indent, instruction.shape, f"{instruction.op}({_flat(operands)})")
        for role, computation in instruction.called:
            self._lines.append(f"{indent}  {role}:")
            inner = self._body(computation, {}, f"{indent}    ")
            self._lines.append(f"{indent}    return {_flat(inner)}")
        return result

    def _called_op(self, instruction: Instruction, operands: list[Value]) -> str:
        op = instruction.op
        if op in ("parameter", "constant"):
            return f"{op}({instruction.argument})"
        reducers = [name for role, name in instruction.called if role == "to_apply"]
        if reducers:
            root = next(inner for inner in self._module.computations[reducers[0]] if inner.root)
            op = f"{op}[{root.op} {root.dtype}]"
        more = ""
        if instruction.op.startswith(_COLLECTIVES):
            more = f", groups={instruction.groups}"
        elif instruction.op == "get-tuple-element":
            more = f", index={instruction.index}"
        return f"{op}({_flat(operands)}){more}"

    def _line(self, indent: str, shape: str, what: str) -> str:
        number = f"%{self._count}"
        self._count += 1
        self._lines.append(f"{indent}{number} = {shape} {what}")
        return number


def _flat(value: Value) -> str:
    if isinstance(value, str):
        return value
    return ", ".join(_flat(element) for element in value)
