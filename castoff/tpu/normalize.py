"""Writes optimised HLO as text that tests can state.

The HLO text of different libtpus and TPUs differs in many details that do not affect arithmetic: names,
layouts and tiling, prefetches between memories, bitcasts, computations with nothing else. What is kept is
what is computed, from what, in which dtype and shape, and in which fusion.
"""

from __future__ import annotations

from castoff.formats.xla_text import Instruction, Module, parse_hlo

_SAME_VALUE = frozenset({"bitcast", "copy", "copy-start", "copy-done", "optimization-barrier"})
"""Instructions that give their first operand's value, in another place or layout."""

_CALLING = frozenset({"call", "conditional", "while"})

_COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


def normalize(text: str) -> str:
    """Return HLO as text that tests can state: one line a value, fusions as blocks.

    Values are numbered in the order in which they are used first. Prefetches, copies and bitcasts are
    left out; a fusion within a fusion counts as part of the outer one.
    """
    return _Writer(parse_hlo(text)).write()


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
            # Parameters and constants are written where they are used first.
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
        """Write an instruction, unless it computes nothing, and return its value."""
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
        """Write a fusion as a block; one that computes nothing is left out."""
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
