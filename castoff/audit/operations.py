"""Records the operations of a step, with torch only: their names, places, modules and phases."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from castoff.audit.casts import (
    AVERAGE,
    BACKWARD,
    CAST_NODES,
    CLIPPING,
    FORWARD,
    OPTIMIZER,
    SCALING,
    Frame,
    Receiver,
    Record,
)
from castoff.audit.dtypes import xla_name
from castoff.audit.modules import ModulePaths

_TORCH = Path(torch.__file__).parent
_OURS = (f"{Path(__file__).parents[1]}/", f"{_TORCH}/", f"{_TORCH}_xla/", contextlib.__file__)
_TRACED = ("<frozen", "<eval_with_key>")  # the beginnings of the names of code without a file: Python's own, torch.fx's
_AUTOGRAD = f"{_TORCH}/autograd/"
_BACKWARDS = ("backward", "grad", "_engine_run_backward")
_DEPTH = 12

_PHASES_BY_NAME = (
    # phase, names of functions, names of classes whose methods they are
    (CLIPPING, r"_*(clip|clamp)_(grad|by_norm|by_global_norm)\w*", r"\w*GradientClip\w*"),
    (SCALING, r"_*(unscale|scale_loss|unscale_grad)\w*", r"\w*(Grad|Loss)Scaler\w*"),
    (AVERAGE, r"_*((update|step)_)?(ema|swa|moving_average)(_\w*)?", r"\w*(EMA|Ema(?![a-z])|AveragedModel)\w*"),
)
"""The phases that programs have besides forward, backward and optimizer, and what they call them."""

Handler = Callable[[Record, Any, tuple[Any, ...], dict[str, Any]], Any]
"""Called with the record of an operation, its function and arguments; returns its result."""


class Operations:
    """Records the operations that run within ``noted``."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._records: dict[int, Record] = {}
        self._paths = ModulePaths()
        self._functions = _Functions()
        self._nodes = _Nodes()
        self._optimizers: list[str] = []
        self._after_backward = False
        self._lock = threading.Lock()
        self._copies: dict[int, tuple[Any, ...]] = {}
        self._of_backward = WeakTensorKeyDictionary()  # tensors made in a backward, or of such tensors outside modules
        self._casts: list[Any] | None = None

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Record the operations that run; can be used once."""
        record_casts = getattr(torch.autograd.graph, "record_implicit_casts", contextlib.nullcontext)
        with (
            self._paths.followed(),
            self._optimizer_hooks(),
            record_casts() as self._casts,
            self._functions,
            _Dispatches(self._dispatch),
        ):
            yield

    def records(self) -> dict[int, Record]:
        """Return the operations by number."""
        casts = None if self._casts is None else list(self._casts)
        records = {**self._records, **_recomputed(self._records)}
        return {**records, **_of_the_engine(records, self._copies, casts)}

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        record = self._record(func, args, kwargs)
        result = self._handler(record, func, args, kwargs)
        if record.phase != FORWARD:
            for tensor in tensors([result]):
                self._of_backward[tensor] = None
        return result

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Record:
        call = self._functions.current()
        function = call.function
        in_task = torch._C._current_graph_task_id() != -1
        node = torch._C._current_autograd_node() if in_task else None
        in_backward = in_task or (function in _BACKWARDS and not self._paths.inside())
        if in_backward and function in _BACKWARDS:
            function = ""  # the gradient of the root; on some devices a whole backward runs in the calling thread
        self._after_backward |= in_backward
        phase = BACKWARD if in_backward else self._phase(call, args)
        if phase == OPTIMIZER and self._optimizers:
            function = f"{self._optimizers[-1]}.step"
        origin = self._nodes.origin(node) if node is not None else None
        with self._lock:
            record = Record(
                number=len(self._records) + 1,
                op=str(getattr(func, "overloadpacket", func)),
                phase=phase,
                module=self._paths.current(),
                function=function,
                autocast=call.autocast,
                by_hand=phase == OPTIMIZER and not self._optimizers and torch.is_grad_enabled(),
                node=node.name() if node is not None else "",
                origin=origin,
                stack=tuple(lines()),
                narrow=_narrow(args),
                parameter=next(filter(None, map(self._paths.parameter, tensors(args))), ""),
            )
            self._records[record.number] = record
        if in_backward and record.op == "aten._to_copy" and isinstance(args[0], torch.Tensor):
            self._copies[record.number] = (args[0].dtype, kwargs.get("dtype"), tuple(args[0].shape))
            self._records[record.number] = record = replace(record, receivers=_receivers(node))
        if not in_backward or record.module:
            self._nodes.made(record)
        return record

    def _phase(self, call: _Call, args: tuple[Any, ...]) -> str:
        """Return the phase of an operation outside the backward."""
        if self._paths.inside():
            return FORWARD  # also in an optimizer's closure
        if self._optimizers:
            return OPTIMIZER
        grad = torch.is_grad_enabled()
        named = phase_by_name()
        if named is not None and (named == SCALING or self._after_backward or not grad):
            return named
        if not self._after_backward or call.differentiable:
            return FORWARD
        # What is done with gradients by hand, whether or not under no_grad: they need no gradient themselves.
        by_hand = not grad or any(tensor in self._of_backward for tensor in tensors(args))
        return OPTIMIZER if by_hand else FORWARD

    @contextlib.contextmanager
    def _optimizer_hooks(self) -> Iterator[None]:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        def begin(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            self._optimizers.append(type(optimizer).__name__)

        def end(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            self._optimizers.pop()

        handles = [register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class _Dispatches(TorchDispatchMode):
    """Receives each operation as torch dispatches it to the device, higher-order operators as one."""

    supports_higher_order_operators = True

    def __init__(self, call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()
        self._call = call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._call(func, args, kwargs or {})


@dataclass(frozen=True)
class _Call:
    """A call of the program to torch."""

    function: str = ""  # the function's name; "" if there is none
    autocast: bool = False  # whether autocast was on
    differentiable: bool = False  # whether autograd records it


class _Functions(TorchFunctionMode):
    """Tracks which function of torch the program called, and whether autocast was on."""

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.current()
        needs = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors(args))
        self._here.current = _Call(getattr(func, "__name__", str(func)), _autocast_is_on(), needs)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._here.current = before

    def current(self) -> _Call:
        """Return the call that runs in this thread."""
        current: _Call = getattr(self._here, "current", _Call())
        return current


class _Nodes:
    """Tracks which operation of the forward an autograd node is the derivative of.

    torch numbers the nodes of each thread. A node is made before its operation reaches the device, so
    the newest number then is that of its node.
    """

    def __init__(self) -> None:
        self._made: dict[int, dict[int, Record]] = {}

    def made(self, record: Record) -> None:
        """Record an operation that may have a node."""
        newest = torch.autograd._get_sequence_nr() - 1
        self._made.setdefault(threading.get_ident(), {}).setdefault(newest, record)

    def origin(self, node: Any) -> int | None:
        """Return the number of the operation that a node, which runs in this thread, is the derivative of."""
        return self._find(node.name(), node._sequence_nr(), threading.get_ident())

    def _find(self, name: str, number: int, thread: int) -> int | None:
        threads = sorted(self._made, key=lambda key: key != thread)
        candidates = [self._made[key][number] for key in threads if number in self._made[key]]
        fitting = [record for record in candidates if _fits(record.op, name)]
        return next((record.number for record in fitting or candidates), None)


def _fits(op: str, node: str) -> bool:
    base = op.rpartition(".")[2].replace("_copy", "").replace("_", "").lower()
    return node.lower().startswith(base)


def _recomputed(records: dict[int, Record]) -> dict[int, Record]:
    """Return the operations that a backward computes again, with their records of the forward.

    In a backward torch does not report the function that the program called.
    """
    known = {
        (record.module, record.op, record.stack[:1]): record for record in records.values() if record.phase == FORWARD
    }
    found = {}
    for number, record in records.items():
        first = known.get((record.module, record.op, record.stack[:1]))
        if record.phase == BACKWARD and record.module and not record.function and first is not None:
            found[number] = replace(record, function=first.function, autocast=first.autocast)
    return found


def _of_the_engine(
    records: dict[int, Record], copies: dict[int, tuple[Any, ...]], casts: list[Any] | None
) -> dict[int, Record]:
    """Return the operations of a backward that are the engine's own conversions, marked as such.

    The engine converts what a node returned while the node is still the current one. If the engine
    records its conversions, the record is used; else a conversion that no Python code asked for, in a
    node that is not the derivative of a conversion, counts as the engine's: few formulas make their own.

    Args:
        copies: The dtypes before and after and the shape of each conversion in a backward.
        casts: What the engine recorded; None if it records nothing.
    """
    if casts is None:
        return {
            number: replace(record, engine=True)
            for number in copies
            if not (record := records[number]).function and not record.module and not record.node.startswith(CAST_NODES)
        }
    found = {}
    left = dict(copies)
    for cast in casts:
        wanted = (cast.from_dtype, cast.to_dtype, tuple(cast.shape))
        for number, copy in left.items():
            if copy == wanted and records[number].node == cast.produced_by:
                told = {"produced_by": cast.produced_by, "demanded_by": cast.demanded_by}
                found[number] = replace(records[number], engine=True, implicit=told)
                del left[number]
                break
    return found


def _receivers(node: Any) -> tuple[Receiver, ...]:
    """Return the nodes that get what a node returns; none at the root of a backward."""
    found = []
    for receiver, _ in node.next_functions if node is not None else ():
        if receiver is not None:
            leaf = getattr(receiver, "variable", None)
            found.append(Receiver(receiver.name(), xla_name(str(leaf.dtype)) if leaf is not None else ""))
    return tuple(found)


def _narrow(args: tuple[Any, ...]) -> bool:
    """Tell whether all arguments are tensors of one 16-bit dtype. A number is a tensor without dimensions."""
    dtypes = {arg.dtype if isinstance(arg, torch.Tensor) and arg.device.type != "cpu" else None for arg in args}
    return dtypes in ({torch.bfloat16}, {torch.float16})


def _autocast_is_on() -> bool:
    try:
        return bool(torch.is_autocast_enabled("xla"))
    except TypeError:  # before torch 2.4 there was a function for each device
        return bool(torch.is_autocast_xla_enabled())


def lines() -> Iterator[Frame]:
    """The lines of the program that led here, without torch's and castoff's, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None and count < _DEPTH:
        file = frame.f_code.co_filename
        if file.startswith(_AUTOGRAD) and frame.f_code.co_name in _BACKWARDS:
            return  # the caller of a backward does not make its operations
        if not file.startswith(_OURS) and not file.startswith(_TRACED):
            yield Frame(file, frame.f_lineno, frame.f_code.co_name)
            count += 1
        frame = frame.f_back


def phase_by_name() -> str | None:
    """Return the phase that the innermost function on the stack with such a name stands for; None without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code not in _PHASES_OF_CODE:
            _PHASES_OF_CODE[code] = _phase_of_name(code.co_name, _class_of(frame))
        found = _PHASES_OF_CODE[code]
        if found is not None:
            return found
        frame = frame.f_back
    return None


_PHASES_OF_CODE: dict[CodeType, str | None] = {}


def _class_of(frame: FrameType) -> str:
    return type(frame.f_locals["self"]).__name__ if "self" in frame.f_code.co_varnames[:1] else ""


def _phase_of_name(function: str, of: str) -> str | None:
    for phase, functions, classes in _PHASES_BY_NAME:
        if re.fullmatch(functions, function) or re.fullmatch(classes, of):
            return phase
    return None


def tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors among some values, in lists and tuples too."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += tensors(value)
    return found
