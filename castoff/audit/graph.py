"""Reads a lazy graph, as IR and as the HLO that it lowers to, and finds its conversions.

torch_xla prints both; ``castoff.audit.watch`` gives every node a scope ``castoff<N>.<M>``, which is
in the IR line and in the metadata of each HLO instruction made from it. So a conversion in the HLO is
traced to the IR line, and to the operation of the program, that it comes from.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from castoff.audit.dtypes import is_exact, is_float, size_of
from castoff.formats.xla_text import Instruction, Module, Node, parse_hlo, parse_ir

SCOPE = "castoff"

_RECORD = re.compile(rf"(?:^|/){SCOPE}(\d+)\.\d+(?=/|$)")

_VIEWS = frozenset(
    {
        *("all-gather", "bitcast", "broadcast", "collective-permute", "copy", "reshape", "reverse", "slice"),
        *("dynamic-slice", "gather", "optimization-barrier", "transpose"),
    }
)
"""Instructions whose every element is an element of their first operand."""

_NO_VIEWS = frozenset({"all-gather", "collective-permute", "gather"})
"""Of these, the ones that are no views in torch."""

_PRODUCTS = ("dot", "convolution")

EXACT_WIDENING = "exact widening"
LOSSY_NARROWING = "lossy narrowing"
EXACT_ROUND_TRIP = "exact round trip"
LOSSY_ROUND_TRIP = "lossy round trip"
EXACTNESS = (EXACT_WIDENING, LOSSY_NARROWING, EXACT_ROUND_TRIP, LOSSY_ROUND_TRIP)


@dataclass(frozen=True)
class Conversion:
    """A conversion between dtypes in the HLO of a graph."""

    node: Node | None  # the IR node that it comes from; None if unknown
    record: int | None  # the number of the operation that it comes from; None if that was not recorded
    hlo: str  # its name in the HLO, such as "convert.38"
    origin: str  # where it comes from by the HLO's metadata, such as "castoff6.6/xla__cast"
    source: str  # the dtype that it converts from
    target: str  # the dtype that it converts to
    shape: tuple[int, ...]  # the sizes of the tensor
    exactness: str  # one of EXACTNESS
    of_product: bool  # whether it widens the rounded result of a matrix product or convolution, ignoring views
    product: int | None  # the number of the operation of that product; None if unknown
    of_view: bool  # whether only views as torch has them are between it and the conversion before, if there is one
    of_input: bool  # whether it converts an input of the graph, ignoring views
    into_product: bool  # whether a matrix product or convolution uses it, ignoring views

    @property
    def bytes(self) -> int:
        """The bytes that it reads and writes."""
        return prod(self.shape) * (size_of(self.source) + size_of(self.target))

    @property
    def floating(self) -> bool:
        """Whether both dtypes are floating point."""
        return is_float(self.source) and is_float(self.target)


@dataclass(frozen=True)
class Graph:
    """A graph that a step ran on the device."""

    reason: str  # why it ran, such as "end of the step"
    place: str  # the line of the program that ran it; "" for the end of the step
    ir: tuple[str, ...]  # the lines of its IR
    hlo: str  # the HLO that it lowers to
    stablehlo: bytes = b""  # the same as portable StableHLO, if requested
    partitions: int = 1  # the devices that its shardings are for
    partitioned: str = ""  # the HLO of one of several devices, if XLA told it

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """Its IR nodes by name, in the order of the text."""
        return {node.name: node for node in parse_ir(self.ir)}

    def conversions(self) -> list[Conversion]:
        """Every conversion that it makes, in the order in which its nodes were lowered."""
        return _Conversions(self).all()

    def bytes_of_a_device(self) -> int:
        """The bytes that the casts between floating point dtypes read and write on one of several devices."""
        of_one = replace(self, ir=(), hlo=self.partitioned)
        return sum(conversion.bytes for conversion in of_one.conversions() if conversion.floating)

    def around(self, node: Node) -> dict[str, list[str]]:
        """The lines of a node, of its operands and of its users."""
        users = [other.line for other in self.nodes.values() if node.name in other.operands]
        operands = [self.nodes[name].line for name in node.operands if name in self.nodes]
        lines = {"operands": operands, "node": [node.line], "users": users}
        return {key: [self.ir[line].strip() for line in value] for key, value in lines.items()}


def record_of(scope: str) -> int | None:
    """Return the number of the operation that a scope belongs to."""
    match = _RECORD.search(scope)
    return int(match[1]) if match else None


def exactness_of(before: str | None, source: str, target: str) -> str:
    """Return which of EXACTNESS a conversion is.

    Args:
        before: The dtype that its operand was converted from; None if it was not.
        source: The dtype that it converts from.
        target: The dtype that it converts to.
    """
    if before == target:
        return EXACT_ROUND_TRIP if is_exact(before, source) else LOSSY_ROUND_TRIP
    return EXACT_WIDENING if is_exact(source, target) else LOSSY_NARROWING


class _Conversions:
    """Finds the conversions of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._by_origin: dict[str, list[Node]] = defaultdict(list)
        for node in graph.nodes.values():
            self._by_origin[_origin(node)].append(node)
        self._instructions: dict[str, Instruction] = {}
        self._users: dict[str, list[str]] = defaultdict(list)
        if graph.hlo:
            for instruction in _told_apart(parse_hlo(graph.hlo)):
                self._instructions[instruction.name] = instruction
                for operand in instruction.operands:
                    self._users[operand].append(instruction.name)

    def all(self) -> list[Conversion]:
        converts = [inner for inner in self._instructions.values() if inner.op == "convert"]
        converts.sort(key=lambda inner: int(inner.name.rpartition(".")[2] or 0))
        taken: dict[str, int] = defaultdict(int)
        found = []
        for convert in converts:
            nodes = self._by_origin.get(convert.op_name, [])
            # Nodes and instructions of one origin come in the same order; a cast is one convert.
            at = taken[convert.op_name]
            taken[convert.op_name] += 1
            node = nodes[min(at, len(nodes) - 1)] if nodes else None
            if (
                self._instructions[convert.operands[0]].dtype != convert.dtype
            ):  # lowerings also write converts to the same dtype
                found.append(self._conversion(convert, node))
        return found

    def _conversion(self, convert: Instruction, node: Node | None) -> Conversion:
        path = self._behind(convert)
        behind = path[-1]
        source = self._instructions[convert.operands[0]].dtype
        before = self._instructions[behind.operands[0]].dtype if behind.op == "convert" else None
        return Conversion(
            node=node,
            record=record_of(convert.op_name),
            hlo=convert.name,
            origin=convert.op_name,
            source=source,
            target=convert.dtype,
            shape=convert.sizes,
            exactness=exactness_of(before, source, convert.dtype),
            of_product=behind.op in _PRODUCTS and is_exact(source, convert.dtype),
            product=record_of(behind.op_name) if behind.op in _PRODUCTS else None,
            of_view=all(inner.op not in _NO_VIEWS for inner in path),
            of_input=behind.op == "parameter",
            into_product=self._feeds_product(convert),
        )

    def _behind(self, convert: Instruction) -> list[Instruction]:
        """Return the views before a conversion, the nearest first, and the instruction that makes the elements."""
        path = [self._instructions[convert.operands[0]]]
        while _is_view(path[-1]):
            path.append(self._instructions[path[-1].operands[0]])
        return path

    def _feeds_product(self, convert: Instruction) -> bool:
        queue, seen = [convert.name], {convert.name}
        while queue:
            for user in self._users[queue.pop()]:
                instruction = self._instructions[user]
                if instruction.op in _PRODUCTS:
                    return True
                if _is_view(instruction) and user not in seen:
                    seen.add(user)
                    queue.append(user)
        return False


def _told_apart(module: Module) -> Iterator[Instruction]:
    """Every instruction by a name of its own.

    A computation that a node brings along has names that others have, too, and says nothing of where it comes from.
    """
    callers = {
        computation: instruction
        for instruction in module.find("call")
        for role, computation in instruction.called
        if role == "to_apply"
    }
    for computation, instructions in module.computations.items():
        caller = callers.get(computation)
        for instruction in instructions:
            if caller is None:
                yield instruction
            else:
                yield replace(
                    instruction,
                    name=f"{computation}/{instruction.name}",
                    operands=tuple(f"{computation}/{name}" for name in instruction.operands),
                    op_name=instruction.op_name or caller.op_name,
                )


def _is_view(instruction: Instruction) -> bool:
    sharding = instruction.op == "custom-call" and len(instruction.operands) == 1
    return bool(instruction.operands) and (instruction.op in _VIEWS or sharding)


def _origin(node: Node) -> str:
    """Return the origin in the metadata of a node's instructions."""
    return (f"{node.scope}/{node.op}" if node.scope else node.op).replace("::", "__")
