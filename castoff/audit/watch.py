"""Watches a step while it runs on XLA: in the user's environment, with torch_xla and nothing else.

Each operation that reaches the device gets a lazy scope with its number in the name, so that the IR nodes it
makes, and the HLO they lower to, say which operation they come from. What is computed is not changed.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_xla

from castoff.audit.casts import Record, Step
from castoff.audit.graph import SCOPE, Graph
from castoff.audit.operations import Operations, lines, tensors
from castoff.tpu.trace import program_of

_XLAC = torch_xla._XLAC
_SYNCS = ("_xla_step_marker", "_xla_sync_multi")


class Watch:
    """Records what runs within ``watching``.

    The tensors that are pending when it begins count as inputs only if they were synced before:
    ``torch_xla.sync()`` first.

    Args:
        stablehlo: Whether to keep each graph as StableHLO too.
    """

    def __init__(self, *, stablehlo: bool = False) -> None:
        self._stablehlo = stablehlo
        self._graphs: list[Graph] = []
        self._operations = Operations(self._run)
        self._live: dict[int, Callable[[], torch.Tensor | None]] = {}
        self._leaves: dict[int, Callable[[], torch.Tensor | None]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Record what runs; once."""
        with _ir_debug(), self._sync_hooks(), self._operations.noted():
            yield

    def capture(
        self, reason: str = "end of the step", of: list[torch.Tensor] | None = None, result: object = None
    ) -> None:
        """Keep the graph that is about to run.

        Args:
            reason: What makes it run.
            of: The tensors whose graph it is; all that were made here and are alive if None.
            result: What the step returned.
        """
        roots = self._pending(result) if of is None else of
        if not roots:
            return
        with _unwatched():
            ir = _XLAC._get_xla_tensors_text(roots)
            if "::" not in ir.replace("xla::device_data", "").replace("prim::Constant", ""):
                return
            hlo = _XLAC._get_xla_tensors_hlo(roots)
            stablehlo, partitions = program_of(roots) if self._stablehlo else (b"", 1)
        place = "" if reason == "end of the step" else str(next(lines(), ""))
        self._graphs.append(Graph(reason, place, tuple(ir.splitlines()), hlo, stablehlo, partitions))

    def step(self) -> Step:
        """Return what was recorded."""
        return Step(tuple(self._graphs), self._operations.records())

    def _pending(self, result: object) -> list[torch.Tensor]:
        """Return what is alive of what was made here.

        Where torch keeps a copy of a tensor that shares its data, what was seen of it is gone: gradients and
        what the step returned are asked for themselves.
        """
        self._live = {key: reference for key, reference in self._live.items() if reference() is not None}
        found = [tensor for reference in self._live.values() if (tensor := reference()) is not None]
        leaves = [leaf for reference in self._leaves.values() if (leaf := reference()) is not None]
        found += [leaf.grad for leaf in leaves if leaf.grad is not None]
        found += tensors([result])
        return list({_XLAC._xla_get_tensor_id(tensor): tensor for tensor in found if _on_xla(tensor)}.values())

    def _run(self, record: Record, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _reads(record.op, args, kwargs):
            self.capture(f"{record.op} reads a value", [tensor for tensor in tensors(args) if _on_xla(tensor)])
        scope = _XLAC.profiler.scope_pusher(f"{SCOPE}{record.number}")
        try:
            result = func(*args, **kwargs)
        finally:
            del scope
        for tensor in tensors([result]):
            if _on_xla(tensor):
                self._live[id(tensor)] = weakref.ref(tensor)
        if record.node.endswith("AccumulateGrad"):
            leaf = torch._C._current_autograd_node().variable
            self._leaves[id(leaf)] = weakref.ref(leaf)
        return result

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


def _on_xla(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "xla")


def _reads(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether an operation brings a value to the host, for which its graph runs."""
    if not any(map(_on_xla, tensors(args))):
        return False
    if name in ("aten._local_scalar_dense", "aten.is_nonzero", "aten.equal"):
        return True
    device = kwargs.get("device")
    if name == "aten._to_copy" and device is not None:
        return bool(torch.device(device).type != "xla")
    copies = name in ("aten.copy_", "aten._copy_from")
    return copies and any(not _on_xla(tensor) for tensor in tensors(args))
