"""Records a step while it runs on XLA: in the user's environment, with torch_xla only.

Each operation that reaches the device gets a lazy scope with its number in the name, so that its IR nodes and
their HLO name the operation that they come from. The computation is not changed.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_xla
from torch.utils.weak import TensorWeakRef

from castoff.audit.casts import Handed, Record, Step
from castoff.audit.graph import SCOPE, Graph
from castoff.audit.operations import Operations, lines, tensors
from castoff.audit.partitions import partitioned
from castoff.tpu.trace import partitions, program_of

_XLAC = torch_xla._XLAC
_SYNCS = ("_xla_step_marker", "_xla_sync_multi")


class Watch:
    """Records the operations that run within ``watching``.

    Tensors that are pending at the beginning are not inputs: call ``torch_xla.sync()`` before.

    Args:
        stablehlo: Whether to keep each graph as StableHLO too.
    """

    def __init__(self, *, stablehlo: bool = False) -> None:
        self._stablehlo = stablehlo
        self._graphs: list[Graph] = []
        self._operations = Operations(self._run)
        self._handed: list[Handed] = []
        self._live: dict[int, Callable[[], torch.Tensor | None]] = {}
        self._leaves: dict[int, Callable[[], torch.Tensor | None]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Record the operations that run; can be used once."""
        with _ir_debug(), self._sync_hooks(), self._operations.noted():
            yield

    def capture(
        self, reason: str = "end of the step", of: list[torch.Tensor] | None = None, result: object = None
    ) -> None:
        """Store the graph that is about to run.

        Args:
            reason: Why it runs.
            of: The tensors of the graph; all that were made here and are alive if None.
            result: The result of the step.
        """
        gc.collect()  # what only cycles keep alive would be computed too, or not: the collector's moment decides
        roots = self._pending(result) if of is None else of
        if not roots:
            return
        with _unwatched():
            ir = _XLAC._get_xla_tensors_text(roots)
            if "::" not in ir.replace("xla::device_data", "").replace("prim::Constant", ""):
                return
            hlo = _XLAC._get_xla_tensors_hlo(roots)
            stablehlo = program_of(roots)[0] if self._stablehlo else b""
            devices = partitions()
            of_one = partitioned(roots) if devices > 1 else ""
        place = "" if reason == "end of the step" else str(next(lines(), ""))
        self._graphs.append(Graph(reason, place, tuple(ir.splitlines()), hlo, stablehlo, devices, of_one))

    def step(self) -> Step:
        """Return the recorded step."""
        return Step(tuple(self._graphs), self._operations.records(), tuple(self._handed))

    def _pending(self, result: object) -> list[torch.Tensor]:
        """Return the tensors that were made here and are alive.

        If torch keeps a copy that shares a tensor's data, the recorded tensor is dead: so gradients and the
        result of the step are added.
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
        before = _handed_to_the_cpu()
        try:
            with _autocast_within(func, enabled=record.autocast):
                result = func(*args, **kwargs)
        finally:
            del scope
        if operators := _handed_to_the_cpu() - before:
            sizes = (_bytes_on_xla([*args, *kwargs.values()]), _bytes_on_xla([result]))
            self._handed.append(Handed(record.number, operators, *sizes))
        for tensor in tensors([result]):
            if _on_xla(tensor):
                self._live[id(tensor)] = TensorWeakRef(tensor)
        if record.node.endswith("AccumulateGrad"):
            leaf = torch._C._current_autograd_node().variable
            self._leaves[id(leaf)] = TensorWeakRef(leaf)
        return result

    @contextlib.contextmanager
    def _sync_hooks(self) -> Iterator[None]:
        """Record the program's own syncs, which run the pending graph."""
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
def _autocast_within(func: Any, *, enabled: bool) -> Iterator[None]:
    """Let autocast act on the operations that an operation without a kernel of XLA's consists of, as it does unwatched.

    torch switches autocast off while it hands an operation to Python: the softmax within _safe_softmax, which is part
    of scaled_dot_product_attention, would be computed in bfloat16.
    """
    key = torch._C._parse_dispatch_key("AutocastXLA")
    name = func.name() if isinstance(func, torch._ops.OpOverload) else ""
    if not enabled or not name or torch._C._dispatch_has_kernel_for_dispatch_key(name, "XLA"):
        yield
        return
    before = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, before)


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


def _handed_to_the_cpu() -> Counter[str]:
    """Return the operators that torch_xla handed to the CPU since the process began, and how often each."""
    return Counter({name: _XLAC._xla_counter_value(name) for name in _XLAC._get_executed_fallback_ops()})


def _bytes_on_xla(values: list[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(values) if _on_xla(tensor))


def _on_xla(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "xla")


def _reads(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether an operation copies a value to the host, which runs its graph."""
    if not any(map(_on_xla, tensors(args))):
        return False
    if name in ("aten._local_scalar_dense", "aten.is_nonzero", "aten.equal"):
        return True
    device = kwargs.get("device")
    if name == "aten._to_copy" and device is not None:
        return bool(torch.device(device).type != "xla")
    copies = name in ("aten.copy_", "aten._copy_from")
    return copies and any(not _on_xla(tensor) for tensor in tensors(args))
