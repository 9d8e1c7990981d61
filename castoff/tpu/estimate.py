"""What the TPU compiler estimates of a program, and what it does not.

The compiler writes an estimate of cycles to most instructions that compute. It has none for some, such as a sort or a
fusion that is too large, nor for transfers between memories, which run beside the rest. Here the estimates are summed
as often as their instructions run, of a choice those of one branch. A large copy without an estimate takes the time
that its bytes take at full bandwidth. What all move is a lower limit of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from castoff.formats.xla_text import Instruction, Module, parse_hlo

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NO_ESTIMATE = 2**63 - 1
"""What the compiler writes for an instruction that it cannot estimate, such as a softmax over 8192 columns."""
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_TARGET = re.compile(r'\bcustom_call_target="([^"]*)"')
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
_NEAR = re.compile(r"[a-z]\w*\[[\d,<=]*\]\{[^{}]*S\(\d+\)[^{}]*\}")
"""An array that is not in the chip's memory: most are next to its cores."""

_TRANSFERS = frozenset({"copy-start", "slice-start"})
_FREE = frozenset(
    {"after-all", "bitcast", "constant", "copy-done", "get-tuple-element", "opt-barrier", "optimization-barrier"}
    | {"parameter", "partition-id", "slice-done", "tuple"}
)
"""Instructions that take no time of their own."""
_SAME_BYTES = frozenset({"AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast"})
"""Targets of custom calls that move nothing."""
_HALVES = frozenset({"X64Combine", "X64SplitHigh", "X64SplitLow"})
"""Targets of custom calls that only move: 64-bit numbers to two of 32 bits, and back."""
_NESTED = frozenset({"call", "conditional", "while"})

_SMALL = 4096
"""Bytes of one vector register: what is no larger takes a few cycles, and is no gap."""

_BITS = {"pred": 8, "token": 0, "s4": 4, "u4": 4}

BYTES_A_CYCLE = {
    "v4": 1228e9 / 1.05e9,
    "v5e": 819e9 / 1.5e9,
    "v5p": 2765e9 / 1.75e9,
    "v6e": 1640e9 / 1.75e9,
    "tpu7x": 7370e9 / 2 / 2.2e9,  # of a device: a chip has two
}
"""Of a chip's memory, by generation: its published bandwidth over the clock that its published FLOPs imply."""


Choice = Callable[..., str]
"""``max`` or ``min``, of the names of a choice's branches by their cycles."""


@dataclass
class Estimate:
    """What one run of a program takes, as far as the compiler says."""

    compute: int = 0  # the sum of the compiler's estimates, each as often as its instruction runs
    moved: int = 0  # bytes that transfers and custom calls move to and from the chip's memory, beside what computes
    copied: int = 0  # such bytes of large copies without an estimate, which nothing runs beside
    without: Counter[str] = field(default_factory=Counter)  # instructions without an estimate, by opcode
    loops: int = 0  # loops whose trips the compiler does not know; their bodies count once
    branch: Choice = max  # which branch of a choice counts

    def cycles(self, topology: str) -> int:
        """Return what computes and what is copied take, or what all moved bytes take, if that is more.

        Args:
            topology: Such as "v5e:2x2". Of a generation whose bandwidth is not known it is the sum.
        """
        rate = BYTES_A_CYCLE.get(topology.split(":", maxsplit=1)[0])
        if rate is None:
            return self.compute
        return round(max(self.compute, self.moved / rate) + self.copied / rate)

    def gaps(self) -> str:
        """Return what has no estimate, in a few words; "" if everything has one."""
        found = [f"{count} {op}" for op, count in sorted(self.without.items())]
        if self.loops:
            found.append(f"{self.loops} while whose trips are not known")
        return ", ".join(found)


def estimate(hlo: str, branch: Choice = max) -> Estimate:
    """Return what a program takes by the TPU compiler's estimates.

    Args:
        branch: Of a choice that branch counts whose cycles this function chooses.

    Raises:
        ValueError: It is no HLO.
    """
    module, found = parse_hlo(hlo), Estimate(branch=branch)
    _add(module, module.entry, 1, found)
    return found


def _add(module: Module, computation: str, times: int, found: Estimate) -> None:
    """Add what a computation takes that runs so many times."""
    for instruction in module.computations[computation]:
        if instruction.op in _NESTED:
            _add_nested(module, instruction, times, found)
            continue
        cycles = _cycles(instruction)
        if cycles is not None:
            found.compute += times * cycles
            continue
        found.moved += times * _moved(module, instruction)
        found.copied += times * _copied(module, instruction)
        if _is_gap(module, instruction):
            found.without[instruction.op] += 1


def _add_nested(module: Module, instruction: Instruction, times: int, found: Estimate) -> None:
    """Add a call, a loop as often as it runs, or one branch of a choice."""
    called = [computation for _, computation in instruction.called]
    if instruction.op == "while":
        trips = _trips(module, instruction)
        found.loops += trips is None
        times *= 1 if trips is None else trips
    elif instruction.op == "conditional":
        called = [found.branch(called, key=lambda name: _alone(module, name, found.branch).compute)]
    for computation in called:
        _add(module, computation, times, found)


def _alone(module: Module, computation: str, branch: Choice) -> Estimate:
    found = Estimate(branch=branch)
    _add(module, computation, 1, found)
    return found


def _trips(module: Module, loop: Instruction) -> int | None:
    """How often a loop runs that counts to a constant in steps of one; None of any other."""
    called = dict(loop.called)
    test, end = (module.computations[called[role]][-1] for role in ("condition", "body"))
    if test.op == "or":
        return _trips_of_64_bits(module, test)
    direction = _DIRECTION.search(test.attributes)
    if test.op != "compare" or direction is None or end.op != "tuple":
        return None
    counter, limit = (module.named[name] for name in test.operands)
    if counter.op == "constant":
        counter, limit = limit, counter
    if counter.op != "get-tuple-element":
        return None
    step = _step(module, module.named[end.operands[counter.index]])
    first = _number(module, module.named[loop.operands[0]], counter.index)
    last = _number(module, limit)
    if step is None or first is None or last is None or direction[1] == "EQ":
        return None
    return max((last - first) * step + (direction[1] in ("LE", "GE")), 0)


def _trips_of_64_bits(module: Module, test: Instruction) -> int | None:
    """How often a loop runs whose counter has 64 bits, two numbers of 32: high < 0 or high == 0 and low < limit.

    Such is torch_xla's scan. Its counter is an argument of the program; it begins with 0.
    """
    below, both = (module.named[name] for name in test.operands)
    if both.op != "and":
        return None
    limits = {}
    for compare in (below, *(module.named[name] for name in both.operands)):
        direction = _DIRECTION.search(compare.attributes)
        if compare.op != "compare" or direction is None:
            return None
        limits[direction[1], module.named[compare.operands[0]].op] = _number(module, module.named[compare.operands[1]])
    ends = limits.get(("LT", "bitcast-convert")), limits.get(("EQ", "get-tuple-element"))
    return limits.get(("LT", "get-tuple-element")) if ends == (0, 0) else None


def _step(module: Module, instruction: Instruction) -> int | None:
    """1 or -1 if that is what an instruction adds to its other operand."""
    if instruction.op not in ("add", "subtract"):
        return None
    sign = 1 if instruction.op == "add" else -1
    numbers = [_number(module, module.named[name]) for name in instruction.operands]
    return next((sign * number for number in numbers if number in (1, -1)), None)


def _number(module: Module, instruction: Instruction, index: int | None = None) -> int | None:
    """The constant that an instruction is, or that is an element of it; None if it is no constant."""
    while instruction.op in ("copy", "tuple"):
        instruction = module.named[instruction.operands[(index or 0) if instruction.op == "tuple" else 0]]
    is_number = instruction.op == "constant" and re.fullmatch(r"-?\d+", instruction.argument)
    return int(instruction.argument) if is_number else None


def _cycles(instruction: Instruction) -> int | None:
    match = _CYCLES.search(instruction.attributes)
    cycles = int(match[1]) if match else _NO_ESTIMATE
    return None if cycles == _NO_ESTIMATE else cycles


def _target(instruction: Instruction) -> str:
    match = _TARGET.search(instruction.attributes)
    return match[1] if match else ""


def _operands(module: Module, instruction: Instruction) -> int:
    """The bytes of its operands."""
    return sum(_bytes(module.named[name].shape) for name in instruction.operands)


def _moved(module: Module, instruction: Instruction) -> int:
    """The bytes that a transfer moves, or that a custom call reads and writes; 0 of all others."""
    arrays = [_size(*array) for array in _ARRAY.findall(instruction.shape)]
    if instruction.op == "copy-start":
        return arrays[0]
    if instruction.op == "slice-start":
        return arrays[len(instruction.operands)]  # its result begins with its operands
    if instruction.op != "custom-call" or _target(instruction) in _SAME_BYTES:
        return 0
    return _operands(module, instruction) + sum(arrays)


def _copied(module: Module, instruction: Instruction) -> int:
    """The bytes of the chip's memory that a large copy reads and writes; 0 of all others."""
    if instruction.op != "copy" or not _is_large(module, instruction):
        return 0
    ends = instruction, module.named[instruction.operands[0]]
    return sum(_bytes(_NEAR.sub("", each.with_layouts)) for each in ends)


def _is_gap(module: Module, instruction: Instruction) -> bool:
    """Whether an instruction without an estimate takes time that nothing here counts."""
    if instruction.op in _FREE or instruction.op in _TRANSFERS or _copied(module, instruction):
        return False
    if instruction.op == "custom-call":
        return _target(instruction) not in _SAME_BYTES | _HALVES
    return _is_large(module, instruction)


def _is_large(module: Module, instruction: Instruction) -> bool:
    return max(_bytes(instruction.shape), _operands(module, instruction)) > _SMALL


def _bytes(shape: str) -> int:
    """The bytes of an array, or of a tuple's arrays."""
    return sum(_size(*array) for array in _ARRAY.findall(shape))


def _size(dtype: str, sizes: str) -> int:
    width = re.search(r"\d+", dtype)
    bits = _BITS.get(dtype, int(width[0]) if width else 0)
    elements = 1
    for size in filter(None, sizes.split(",")):
        elements *= int(size.lstrip("<="))
    return elements * bits // 8
