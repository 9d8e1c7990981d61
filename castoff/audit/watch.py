"""Watches a step while it runs on XLA: in the user's environment, with torch_xla and nothing else.

Each operation that reaches the device gets a number and a lazy scope with that number in its name, so
that the IR nodes it makes, and the HLO they lower to, say which operation they come from. The operation
itself is noted with the module, the line, the autograd node and the phase that it belongs to. What is
computed is not changed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
import torch_xla
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from castoff.audit.casts import BACKWARD, CAST_NODES, FORWARD, OPTIMIZER, Frame, Record, Step
from castoff.audit.graph import SCOPE, Graph
from castoff.audit.modules import ModulePaths
from castoff.tpu.trace import program_of

_XLAC = torch_xla._XLAC
_OURS = (str(Path(__file__).parent), *(str(Path(module.__file__).parent) for module in (torch, torch_xla)))
_DEPTH = 12
_SYNCS = ("_xla_step_marker", "_xla_sync_multi")


class Watch:
    """Records what runs while it is active; use it as a context manager, once.

    The tensors that are pending when it begins count as inputs only if they were synced before:
    ``torch_xla.sync()`` first.

    Args:
        stablehlo: Whether to keep each graph as StableHLO too.
    """

    def __init__(self, *, stablehlo: bool = False) -> None:
        self._stablehlo = stablehlo
        self.records: dict[int, Record] = {}
        self.graphs: list[Graph] = []
        self._paths = ModulePaths()
        self._functions = _Functions()
        self._nodes = _Nodes()
        self._optimizers: list[str] = []
        self._after_backward = False
        self._live: dict[int, Any] = {}
        self._exits = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._copies: dict[int, tuple[Any, ...]] = {}
        self._casts: list[Any] | None = None

    def __enter__(self) -> Watch:  # noqa: PYI034 - typing.Self is of Python 3.11
        with contextlib.ExitStack() as stack:
            stack.enter_context(_ir_debug())
            stack.enter_context(self._paths)
            stack.enter_context(self._optimizer_hooks())
            stack.enter_context(self._sync_hooks())
            record_casts = getattr(torch.autograd.graph, "record_implicit_casts", None)
            if record_casts is not None:
                self._casts = stack.enter_context(record_casts())
            stack.enter_context(self._functions)
            stack.enter_context(_Dispatches(self._dispatch))
            self._exits = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.__exit__(kind, error, trace)

    def capture(self, reason: str = "end of the step", tensors: list[torch.Tensor] | None = None) -> None:
        """Keep the graph that is about to run: of ``tensors``, or of all that were made here and are alive."""
        place = "" if tensors is None and reason == "end of the step" else str(next(iter(_stack()), ""))
        tensors = self._pending() if tensors is None else tensors
        if not tensors:
            return
        with _unwatched():
            ir = _XLAC._get_xla_tensors_text(tensors)
            if "::" not in ir.replace("xla::device_data", "").replace("prim::Constant", ""):
                return
            hlo = _XLAC._get_xla_tensors_hlo(tensors)
            stablehlo, partitions = program_of(tensors) if self._stablehlo else (b"", 1)
        self.graphs.append(Graph(reason, place, tuple(ir.splitlines()), hlo, stablehlo, partitions))

    def step(self) -> Step:
        """Return what was recorded."""
        casts = None if self._casts is None else list(self._casts)
        return Step(tuple(self.graphs), {**self.records, **_of_the_engine(self.records, self._copies, casts)})

    def _pending(self) -> list[torch.Tensor]:
        alive = [(key, reference()) for key, reference in list(self._live.items())]
        for key, tensor in alive:
            if tensor is None:
                del self._live[key]
        return [tensor for _, tensor in alive if tensor is not None]

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _reads(func, args, kwargs):
            self.capture(f"{func.overloadpacket} reads a value", [x for x in _tensors(args) if _on_xla(x)])
        record = self._record(func, args, kwargs)
        scope = _XLAC.profiler.scope_pusher(f"{SCOPE}{record.number}")
        try:
            result = func(*args, **kwargs)
        finally:
            del scope
        for tensor in _tensors(result if isinstance(result, (tuple, list)) else (result,)):
            if _on_xla(tensor):
                self._live[id(tensor)] = weakref.ref(tensor)
        return result

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Record:
        in_backward = torch._C._current_graph_task_id() != -1
        node = torch._C._current_autograd_node() if in_backward else None
        function, autocast = self._functions.current()
        if in_backward:
            self._after_backward = True
        origin = self._nodes.origin(node) if node is not None else None
        with self._lock:
            record = Record(
                number=len(self.records) + 1,
                op=str(func.overloadpacket),
                phase=self._phase(in_backward),
                module=self._paths.current(),
                function=function,
                autocast=autocast,
                node=node.name() if node is not None else "",
                origin=origin,
                stack=tuple(_stack()),
                parameter=next(filter(None, map(self._paths.parameter, _tensors(args))), ""),
            )
            self.records[record.number] = record
        if in_backward and record.op == "aten._to_copy" and isinstance(args[0], torch.Tensor):
            self._copies[record.number] = (args[0].dtype, kwargs.get("dtype"), tuple(args[0].shape))
        if self._optimizers:
            record = replace(record, function=f"{self._optimizers[-1]}.step")
            self.records[record.number] = record
        if not in_backward or record.module:
            self._nodes.made(record)
        return record

    def _phase(self, in_backward: bool) -> str:
        if in_backward:
            return BACKWARD
        if self._optimizers:
            return OPTIMIZER
        # Clipping, scaling and updates by hand: after a backward, outside modules, with nothing recorded.
        after = self._after_backward and not torch.is_grad_enabled() and not self._paths.current()
        return OPTIMIZER if after else FORWARD

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

    @contextlib.contextmanager
    def _sync_hooks(self) -> Iterator[None]:
        """See the program's own syncs, which run what is pending."""
        kept = {name: getattr(_XLAC, name) for name in _SYNCS}

        def seen(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                self.capture("sync")
                return function(*args, **kwargs)

            call.__name__ = name
            return call

        for name, function in kept.items():
            setattr(_XLAC, name, seen(name, function))
        try:
            yield
        finally:
            for name, function in kept.items():
                setattr(_XLAC, name, function)


class _Dispatches(TorchDispatchMode):
    """Sees each operation where torch hands it to the device."""

    def __init__(self, call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()
        self._call = call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._call(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Knows which function of torch the program is in, and whether autocast was on when it called it."""

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.current()
        self._here.current = (getattr(func, "__name__", str(func)), _autocast_is_on())
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._here.current = before

    def current(self) -> tuple[str, bool]:
        """Return the function's name, "" if there is none, and whether autocast is on."""
        current: tuple[str, bool] = getattr(self._here, "current", ("", False))
        return current


class _Nodes:
    """Knows which operation of the forward an autograd node is the derivative of.

    torch numbers the nodes of each thread. A node is made before its operation reaches the device, so
    the newest number then is that of its node.
    """

    def __init__(self) -> None:
        self._made: dict[int, dict[int, Record]] = {}

    def made(self, record: Record) -> None:
        """Note an operation that may have a node."""
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


def _of_the_engine(
    records: dict[int, Record], copies: dict[int, tuple[Any, ...]], casts: list[Any] | None
) -> dict[int, Record]:
    """Return those operations of a backward that are the engine's own conversions, marked as such.

    The engine converts what a node returned while the node is still the current one. Where the engine
    records its conversions, they are found there; elsewhere, a conversion that no Python asked for, in a
    node that is not the derivative of a conversion, counts as the engine's: few formulas make their own.

    Args:
        records: The operations.
        copies: The dtypes before and after and the shape of each conversion in a backward.
        casts: What the engine recorded; None if it records nothing.
    """
    if casts is None:
        return {
            number: replace(record, engine=True)
            for number in copies
            if not (record := records[number]).function and not record.node.startswith(CAST_NODES)
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


@contextlib.contextmanager
def _ir_debug() -> Iterator[None]:
    before = _XLAC._get_ir_debug()
    _XLAC._set_ir_debug(True)
    try:
        yield
    finally:
        _XLAC._set_ir_debug(before)


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


def _autocast_is_on() -> bool:
    try:
        return bool(torch.is_autocast_enabled("xla"))
    except TypeError:  # before torch 2.4 there was a function for each device
        return bool(torch.is_autocast_xla_enabled())


def _stack() -> Iterator[Frame]:
    """The lines of the program that led here, without torch's and ours, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None and count < _DEPTH:
        file = frame.f_code.co_filename
        if not file.startswith(_OURS) and not file.startswith("<frozen"):
            yield Frame(file, frame.f_lineno, frame.f_code.co_name)
            count += 1
        frame = frame.f_back


def _tensors(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += _tensors(value)
    return found


def _on_xla(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "xla")


def _reads(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether an operation brings a value to the host, for which its graph runs."""
    name = str(func.overloadpacket)
    if not any(map(_on_xla, _tensors(args))):
        return False
    if name in ("aten._local_scalar_dense", "aten.is_nonzero", "aten.equal"):
        return True
    device = kwargs.get("device")
    if name == "aten._to_copy" and device is not None:
        return bool(torch.device(device).type != "xla")
    copies = name in ("aten.copy_", "aten._copy_from")
    return copies and any(not _on_xla(tensor) for tensor in _tensors(args))
