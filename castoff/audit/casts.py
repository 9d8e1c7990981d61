"""Casts: the conversions of a step, each with its place, reason, exactness, cost and remedy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from castoff.audit.graph import (
    EXACT_ROUND_TRIP,
    LOSSY_ROUND_TRIP,
    Conversion,
    Graph,
)

FORWARD, BACKWARD, OPTIMIZER, UNKNOWN = "forward", "backward", "optimizer", "unknown"
SCALING, CLIPPING, AVERAGE = "loss scaling", "gradient clipping", "moving average"
PHASES = (FORWARD, BACKWARD, SCALING, CLIPPING, OPTIMIZER, AVERAGE, UNKNOWN)

EXPLICIT = "explicit"
AUTOCAST = "autocast"
ENGINE = "autograd engine"
MATH = "op's math type"
PRODUCT = "wider product"
STEP = "optimizer"

NEEDED = "needed"

_CAST_OPS = frozenset({"aten._to_copy", "aten.copy", "aten.copy_", "aten._copy_from", "aten.to"})
_ASKED = frozenset(
    {
        *("to", "type", "type_as", "copy_", "float", "half", "bfloat16", "double", "int", "long", "short", "bool"),
        *("__setitem__", "byte", "char", "tensor", "as_tensor", "view_as", "_to_copy", "astype"),
    }
)
"""Functions of torch by which a program asks for a dtype."""

CAST_NODES = ("ToCopyBackward", "CopyBackwards")
"""The beginnings of the names of nodes whose forward is a cast."""

_PRODUCT_FUNCTIONS = frozenset({"mm", "bmm", "matmul", "addmm", "baddbmm", "linear", "__matmul__", "mv", "out_dtype"})
_OUT_DTYPE = frozenset({"mm", "bmm", "addmm", "baddbmm"})
_OUT_DTYPE_OP = frozenset({"linear", "conv1d", "conv2d", "conv3d"})
_NARROW = ("bf16", "f16")


@dataclass(frozen=True)
class Frame:
    """A line of the program."""

    file: str
    line: int  # the number of the line
    function: str  # the function that it is in

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class Receiver:
    """A node that gets a gradient."""

    node: str  # its name
    leaf: str = ""  # of AccumulateGrad: the dtype of the leaf, by XLA's name


@dataclass(frozen=True)
class Record:
    """An operation of a step, as torch dispatches it to the device."""

    number: int  # its number, from 1
    op: str  # its name, such as "aten._to_copy"
    phase: str  # one of PHASES
    # the path of the module that it ran in, such as "Model.encoder.0"; of an operation of the backward, the one whose
    # forward it belongs to
    module: str = ""
    function: str = ""  # the function of torch that the program called, such as "linear"; "" if none
    autocast: bool = False  # whether autocast was on there
    by_hand: bool = False  # in the optimizer's phase: whether the program does it, with autograd on
    node: str = ""  # the name of the autograd node that made it; "" outside a backward
    engine: bool = False  # whether the autograd engine made it, of a gradient that the node had returned
    origin: int | None = None  # the number of the operation of the forward that it is the derivative of
    stack: tuple[Frame, ...] = ()  # the lines of the program that led to it, torch's own left out, the innermost first
    parameter: str = ""  # the path of the parameter that it takes; "" if none
    narrow: bool = False  # whether it takes nothing but tensors of one of the dtypes bf16 and f16
    implicit: dict[str, str] | None = None  # what the engine recorded of it: "produced_by" and "demanded_by"
    receivers: tuple[Receiver, ...] = ()  # of a conversion in a backward: what may get its result


@dataclass(frozen=True)
class Cast:
    """A conversion of a step."""

    number: int  # its number in the report, from 1
    graph: int  # the number of its graph, from 0
    node: str | None  # the name of its IR node, such as "%20"; None if it is unknown
    line: int | None  # the line of the graph's IR that it stands in
    ir: dict[str, list[str]]  # that line and those around it: "operands", "node" and "users"
    hlo: str  # its name in the HLO
    origin: str  # where it comes from by the HLO's metadata
    operation: int  # the number of the operation of the step that it comes from, in order; 0 if that is not known
    source: str  # the dtype that it converts from, by XLA's name
    target: str  # the dtype that it converts to
    shape: tuple[int, ...]  # the sizes of the tensor
    bytes: int  # what it reads and writes in one step
    floating: bool  # whether both dtypes are floating point
    phase: str  # one of PHASES
    module: str  # the path of the module
    op: str  # the operation: the program's function of torch, or the autograd node
    place: Frame | None  # the innermost line of the program that is not torch's
    program: Frame | None  # the innermost line that is not in an installed package
    why: str  # EXPLICIT or another of these above, or UNKNOWN
    exactness: str  # one of EXACTNESS
    topic: str | None  # the topic that removes it; None if none does
    remedy: str  # what to do, or "needed"
    parameter: str = ""  # the path of the parameter that is converted, or whose gradient is; "" if none
    implicit: dict[str, str] | None = None  # what the engine recorded of it
    # how many converts of the TPU's optimised HLO come from it; None if no TPU compiler was asked
    tpu: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "shape": list(self.shape)}


@dataclass(frozen=True)
class Handed:
    """One operation of a step, for which torch_xla handed operators to the CPU."""

    operation: int  # its number
    operators: Mapping[str, int]  # the operators, such as aten::nonzero, and how often each
    to_host: int  # the bytes of its operands on the device
    to_device: int  # the bytes of its results there


@dataclass(frozen=True)
class Step:
    """What a step did."""

    graphs: tuple[Graph, ...]  # the graphs that it ran on the device, in order
    records: Mapping[int, Record] = field(default_factory=dict)  # its operations, by number
    handed: tuple[Handed, ...] = ()  # those for which torch_xla handed operators to the CPU, in order


def casts_of(step: Step) -> list[Cast]:
    """Return every conversion of a step, in the order of its operations."""
    found: list[Cast] = []
    for number, graph in enumerate(step.graphs):
        conversions = graph.conversions()
        conversions.sort(key=lambda conversion: (conversion.record is None, conversion.record))
        for conversion in conversions:
            found.append(cast_of(len(found) + 1, number, graph, conversion, step.records))
    return found


def cast_of(number: int, at: int, graph: Graph | None, conversion: Conversion, records: Mapping[int, Record]) -> Cast:
    """Return the description of a conversion.

    Args:
        number: Its number in the report.
        at: The number of its graph.
        graph: The graph; None on the meta device, where there is none.
        records: The operations of the step, by number.
    """
    record = records.get(conversion.record or 0)
    node = conversion.node
    origin = records.get(record.origin or 0) if record else None
    stack = record.stack if record and record.stack else origin.stack if origin else ()
    if not stack and node is not None and node.location is not None:
        function, file, line = node.location
        stack = (Frame(file, line, function),)
    why = _why(conversion, record, origin)
    parameter = (record.parameter if record else "") or (origin.parameter if origin else "")
    product = records.get(conversion.product or 0)
    topic, remedy = _remedy(_Case(conversion, record, why, parameter, product.function if product else ""))
    return Cast(
        number=number,
        graph=at,
        node=node.name if node else None,
        line=node.line if node else None,
        ir=graph.around(node) if graph and node else {"operands": [], "node": [], "users": []},
        hlo=conversion.hlo,
        origin=conversion.origin,
        operation=conversion.record or 0,
        source=conversion.source,
        target=conversion.target,
        shape=conversion.shape,
        bytes=conversion.bytes,
        floating=conversion.floating,
        phase=record.phase if record else UNKNOWN,
        module=module_of(record, records) if record else "",
        op=op_of(record),
        place=stack[0] if stack else None,
        program=next((frame for frame in stack if not _installed(frame)), None),
        why=why,
        exactness=conversion.exactness,
        topic=topic,
        remedy=remedy,
        parameter=parameter,
        implicit=record.implicit if record else None,
    )


def module_of(record: Record, records: Mapping[int, Record]) -> str:
    """Return the path of the module that an operation, or the one that it is the derivative of, ran in."""
    origin = records.get(record.origin or 0)
    return record.module or (origin.module if origin else "")


def op_of(record: Record | None) -> str:
    """Return what a person calls an operation: the program's function of torch, or the autograd node."""
    if record is None:
        return ""
    if record.engine:
        return f"after {record.node}" if record.node else "the root of the backward"
    recomputed = bool(record.module and record.function)
    return record.function if recomputed or not record.node else record.node


def _installed(frame: Frame) -> bool:
    return "site-packages" in frame.file or "dist-packages" in frame.file or "<" in frame.file


def _why(conversion: Conversion, record: Record | None, origin: Record | None) -> str:
    """Return the reason of a conversion."""
    if record is None:
        return UNKNOWN
    if record.phase == OPTIMIZER and not record.by_hand:
        return STEP
    if record.engine:
        return ENGINE
    if conversion.of_product and record.function in _PRODUCT_FUNCTIONS and not record.autocast:
        return PRODUCT
    if record.op in _CAST_OPS and record.node.startswith(CAST_NODES) and not record.function:
        # The derivative of a cast is a cast: both have the same reason.
        record = origin or record
    return _why_forward(record)


def _why_forward(record: Record) -> str:
    if record.op not in _CAST_OPS:
        return MATH
    if record.function in _ASKED:
        return EXPLICIT
    if record.autocast:
        return AUTOCAST
    # In a function that torch traced, such as that of scan, the program's conversion is an operator.
    return EXPLICIT if record.function == "_to_copy.default" else MATH


@dataclass(frozen=True)
class _Case:
    """The facts that decide the remedy of a conversion."""

    conversion: Conversion
    record: Record | None
    why: str
    parameter: str
    product: str  # the function of torch whose product it widens the rounded result of; "" if none or unknown

    @property
    def backward(self) -> bool:
        return self.record is not None and self.record.phase == BACKWARD

    @property
    def of_optimizer(self) -> bool:
        return self.record is not None and self.record.phase == OPTIMIZER

    @property
    def widens(self) -> bool:
        return self.conversion.source in _NARROW and self.conversion.target == "f32"

    @property
    def narrow_product(self) -> bool:
        """Whether it is of an elementwise product of narrow tensors, which torch_xla computes in float32.

        A tensor is multiplied by a Python number in float32 with any setting, as the number is not rounded.
        """
        return self.record is not None and self.record.op == "aten.mul" and self.record.narrow

    @property
    def is_wide(self) -> bool:
        """Whether it is in a node of the topic wide-weight-grad, which computes in float32 for the weight."""
        return self.record is not None and re.fullmatch(r"Wide\w+Backward0", self.record.node) is not None

    @property
    def of_the_user(self) -> bool:
        """Whether what gets the gradient is a leaf, whose own dtype it is converted to, or a Function."""
        return bool(self.receivers) and all(
            receiver.leaf == self.conversion.target if receiver.leaf else _of_a_function(receiver.node)
            for receiver in self.receivers
        )

    @property
    def receivers(self) -> list[Receiver]:
        """What may get the gradient that the engine converted: one node if the engine recorded it."""
        assert self.record is not None
        name = (self.record.implicit or {}).get("demanded_by")
        if name is None:
            return list(self.record.receivers)
        fitting = [receiver for receiver in self.record.receivers if receiver.node == name]
        return fitting or [Receiver(name)]

    @property
    def by_grad_dtype(self) -> bool:
        """Whether the grad_dtype of a leaf asks for the conversion."""
        return any(receiver.leaf not in ("", self.conversion.target) for receiver in self.receivers)

    @property
    def of_the_root(self) -> bool:
        return self.record is not None and not self.record.node

    @property
    def asks_to_widen(self) -> bool:
        """Whether the program asks, in its forward, for a rounded product in float32."""
        return self.conversion.of_product and self.widens and self.why == EXPLICIT and not self.backward

    @property
    def casts(self) -> bool:
        return self.record is not None and self.record.op in _CAST_OPS


def _of_a_function(node: str) -> bool:
    """Tell whether an autograd node is of an autograd.Function: torch's own are numbered, or of a C++ namespace."""
    return "::" not in node and not node[-1:].isdecimal()


REMEDIES: tuple[tuple[Callable[[_Case], bool], str | None, str], ...] = (
    (lambda case: not case.conversion.floating, None, NEEDED),
    (
        lambda case: case.narrow_product,
        "native-mul",
        "XLA_NATIVE_MUL=1, or native_mul_context(): multiply in the operands' dtype",
    ),
    (
        lambda case: case.conversion.exactness == EXACT_ROUND_TRIP and case.casts and case.conversion.of_view,
        "exact-casts",
        "castoff's wheels remove the round trip",
    ),
    (
        lambda case: case.conversion.exactness == EXACT_ROUND_TRIP,
        None,
        "none: the round trip is exact; index or gather before it, or leave both casts out",
    ),
    (
        lambda case: (
            case.backward and case.widens and case.conversion.of_product and bool(case.parameter) and not case.is_wide
        ),
        "wide-weight-grad",
        "wide_grads(model), with weights in the narrow dtype: the product gives the float32 gradient",
    ),
    (lambda case: case.why == PRODUCT, "matmul-out-dtype", "castoff's wheels make it one product with a wide result"),
    (
        lambda case: case.asks_to_widen and case.product in _OUT_DTYPE,
        "matmul-out-dtype",
        "out_dtype=torch.float32: one product that accumulates and returns float32",
    ),
    (
        lambda case: case.asks_to_widen and case.product in _OUT_DTYPE_OP,
        "out-dtype-op",
        "torch.ops.higher_order.out_dtype(torch.ops.aten.….default, torch.float32, …): one operation with that result",
    ),
    (
        lambda case: case.of_optimizer and case.widens and case.conversion.of_product and case.casts,
        "wide-weight-grad",
        "wide_grads(model): the gradient is float32 already",
    ),
    (
        lambda case: case.why == ENGINE and case.of_the_root,
        None,
        "pass a gradient of the root's dtype to backward()",
    ),
    (
        lambda case: case.why == ENGINE and case.by_grad_dtype and case.conversion.exactness == LOSSY_ROUND_TRIP,
        None,
        "none: the grad_dtype of the leaf asks for it, but the gradient was rounded before",
    ),
    (
        lambda case: case.why == ENGINE and case.by_grad_dtype,
        None,
        f"{NEEDED}: the grad_dtype of the leaf asks for it",
    ),
    (
        lambda case: case.why == ENGINE and case.of_the_user,
        "grad-dtype",
        "Tensor.grad_dtype of the leaf, or ctx.set_output_grad_dtype of the Function, that gets the gradient",
    ),
    (
        lambda case: (
            case.why == AUTOCAST and not case.backward and bool(case.parameter) and case.conversion.into_product
        ),
        "wide-weight-grad",
        "weights in bfloat16 with wide_grads(model) need no cast in each step",
    ),
    (
        lambda case: case.conversion.exactness == LOSSY_ROUND_TRIP,
        None,
        "none: the value was rounded before; keep it in one dtype",
    ),
    (lambda case: case.why == ENGINE, None, f"{NEEDED}: the operand has that dtype, and its gradient too"),
    (lambda case: case.why == EXPLICIT, None, f"{NEEDED}, if the program wants that dtype here"),
)
"""The topics that remove conversions, and how. The first that fits counts; if none does, the cast is needed."""


def _remedy(case: _Case) -> tuple[str | None, str]:
    """Return the topic that removes a conversion and the remedy, or that it is needed."""
    return next(((topic, text) for applies, topic, text in REMEDIES if applies(case)), (None, NEEDED))


def counted(casts: Sequence[Cast], attribute: str) -> dict[str, int]:
    """Return the number of casts for each value of an attribute, the largest first."""
    counts = Counter(str(getattr(cast, attribute)) for cast in casts)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
