"""``torch_xla.replay``: a step that is traced twice, and whose graph is then run again without tracing it."""

import functools
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, Optional

import _XLAC
import torch
import torch_xla.runtime as xr
from torch import _castoff
from torch.utils import _pytree as pytree
from torch_xla._castoff import matmul_precision

from . import device as runtime
from .capture import Call, Refused, Traced, trace
from .guards import is_scalar
from .plan import Plan
from .tensors import modes

__all__ = ["Replay"]

_MOST_PLANS = 8  # graphs of one signature
_MOST_SIGNATURES = 16
_MOST_UNSETTLED = 4  # calls in a row that make something new

#: The modes of topics that this build has.
_OF_TOPICS = [
    getattr(sys.modules[module], name)
    for module, name in (
        ("torch_xla._native_mul", "is_native_mul"),
        ("torch_xla._native_attention", "is_narrow_attention"),
    )
    if module in sys.modules
]

_running = threading.local()


class Replay:
    """A step that replays; call it as the function that it was made of."""

    def __init__(self, step: Callable, check_every: int, refused: str) -> None:
        if not callable(step):
            raise TypeError(f"expected a function to replay; found {type(step).__name__}")
        functools.update_wrapper(self, step, updated=())
        self._step, self._check_every, self._mode = step, check_every, refused
        self._is_enabled = _castoff.enabled("step-replay")
        self._plans: dict[tuple, list[Plan]] = {}
        self._unsettled: dict[tuple, int] = {}
        self._refusals: dict[tuple, str] = {}
        self._traced_calls = self._replayed_calls = self._checks = 0
        self._traced_seconds = self._replayed_seconds = 0.0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(_running, "step", None) is not None:
            raise RuntimeError(
                f"expected one replayed step at a time; found {_name(self._step)} called within {_running.step}. Call "
                "the function that it was made of there: replayed steps have it as __wrapped__"
            )
        call = Call.of(args, kwargs)
        if not self._is_enabled:
            return _plain(self._step, call)
        _check_process()
        device = runtime.device_name()
        arguments, signature = _signature(call, device, self._step)
        if signature in self._refusals:
            return _plain(self._step, call)
        started = time.perf_counter()
        _running.step = _name(self._step)
        try:
            return self._called(call, signature, arguments, device, started)
        finally:
            _running.step = None

    def _called(self, call: Call, signature: tuple, arguments: list, device: str, started: float) -> Any:
        known: dict[tuple, bytes] = {}  # what the step reads
        for plan in self._plans.get(signature, ()):
            if plan.traces < 2:
                continue
            plan.adopt()
            if not plan.holds(arguments):
                continue
            sources = plan.sources()
            numbers = None if sources is None else plan.numbers(sources)
            if numbers is None:
                continue
            inputs = plan.inputs(arguments, numbers)
            if plan.is_spmd and not plan.has_shardings(inputs, device):
                continue
            if not (plan.shared_hold(inputs, arguments) and plan.reads_hold(inputs, device, known)):
                continue
            if self._check_every and plan.replays % self._check_every == 0:
                del inputs  # it would keep gradients that the step drops
                return self._check(plan, call, numbers, signature)
            result = plan.run(inputs, arguments, device)
            self._replayed_calls += 1
            self._replayed_seconds += time.perf_counter() - started
            return result
        return self._trace(call, signature, arguments)

    def _trace(self, call: Call, signature: tuple, arguments: list[torch.Tensor]) -> Any:
        candidates = [plan for plan in self._plans.get(signature, ()) if plan.holds(arguments)]
        traced = trace(self._step, call)
        self._traced_calls += 1
        self._traced_seconds += traced.seconds
        result = traced.result
        reason = traced.refusal or self._learn(traced, signature, candidates)
        if reason is not None:
            self._refuse(reason, signature)
        return result

    def _learn(self, traced: Traced, signature: tuple, candidates: list[Plan]) -> Optional[str]:
        """Keep what a trace showed; why the step is refused, if it is. Candidates are plans whose guards held."""
        if traced.unsettled is not None:
            self._unsettled[signature] = self._unsettled.get(signature, 0) + 1
            if self._unsettled[signature] < _MOST_UNSETTLED:
                return None
            return f"{traced.unsettled}, in each call"
        self._unsettled[signature] = 0
        plans = self._plans.setdefault(signature, [])
        plans[:] = [plan for plan in plans if plan in candidates or not plan.is_stale()]
        structure = traced.structure()
        try:
            for plan in candidates:
                if plan.structure == structure:
                    plan.take(traced)
                    return None
                if plan.structure[:3] == structure[:3] and plan.structure[3] != structure[3]:
                    return "it returns a Python value that is another one in each call: return a tensor"
            objection = _too_many(plans, traced)
            if objection is not None:
                return objection
            plans.append(Plan(traced))
        except Refused as error:
            return str(error)
        if len(self._plans) > _MOST_SIGNATURES:
            return f"it was called with more than {_MOST_SIGNATURES} combinations of shapes, values and modes"
        return None

    def _check(self, plan: Plan, call: Call, numbers: list, signature: tuple) -> Any:
        """A traced call, which has to be the one that would have been replayed."""
        self._checks += 1

        def judge(traced: Traced) -> Optional[str]:
            difference = plan.difference(traced, numbers)
            if difference is None:
                return None
            return f"castoff: the step is not the one that would be replayed: {difference}. Nothing was executed"

        traced = trace(self._step, call, judge)
        plan.replays += 1
        self._traced_calls += 1
        self._traced_seconds += traced.seconds
        result = traced.result
        plan.take(traced)
        return result

    def _refuse(self, reason: str, signature: tuple) -> None:
        where = getattr(self._step, "__code__", None)
        line = f" ({where.co_filename}:{where.co_firstlineno})" if where is not None else ""
        text = (
            f"castoff: {_name(self._step)}{line} cannot be replayed: {reason}. This call was executed as it is written"
        )
        self._refusals[signature] = reason
        self._plans.pop(signature, None)
        if self._mode == "raise" and not self._replayed_calls:
            raise Refused(text)
        warnings.warn(text + "; so are later ones of its kind, traced each time", stacklevel=4)

    def reset(self) -> None:
        """Forget all graphs, and the tensors and objects that they keep alive."""
        self._plans.clear()
        self._refusals.clear()
        self._unsettled.clear()

    def report(self) -> dict[str, Any]:
        """How many calls were traced, replayed and checked, what was refused, and the host's time that was saved.

        "inputs" is how many tensors the largest graph takes, "reads" how many values of the device a call reads.
        """
        plans = [plan for of_signature in self._plans.values() for plan in of_signature]
        traced_ms = self._traced_seconds * 1e3 / max(self._traced_calls, 1)
        replayed_ms = self._replayed_seconds * 1e3 / max(self._replayed_calls, 1)
        return {
            "traced": self._traced_calls,
            "replayed": self._replayed_calls,
            "checked": self._checks,
            "graphs": len(plans),
            "inputs": max((plan.input_count for plan in plans), default=0),
            "reads": max((plan.read_count for plan in plans), default=0),
            "refused": list(self._refusals.values()),
            "ms_traced": traced_ms,
            "ms_replayed": replayed_ms,
            "ms_saved": max(traced_ms - replayed_ms, 0.0) * self._replayed_calls,
        }


def _name(step: Callable) -> str:
    return getattr(step, "__qualname__", type(step).__name__)


def _too_many(plans: list[Plan], traced: Traced) -> Optional[str]:
    """Why the graph of a trace should not be one more of these."""
    changed = [(read, plan) for plan in plans if (read := plan.changed_read(traced)) is not None]
    for read, plan in changed:
        if plan.traces < 2 and not read.is_discrete():
            return f"it reads a value of the device that changes from call to call: {read.line}"
    if len(plans) < _MOST_PLANS:
        return None
    number = next((number for plan in reversed(plans) if (number := plan.changed_number(traced)) is not None), None)
    why = f": {number} is a part of them, and changes" if number is not None else ""
    why = ": an argument is a new view in each call of what the step writes; keep the view" if traced.views else why
    why = f", as it reads other values of the device: {changed[0][0].line}" if changed else why
    return f"it has had more than {_MOST_PLANS} graphs for arguments of the same shapes and values{why}"


def _plain(step: Callable, call: Call) -> Any:
    """The step as it is written, with what a replay's calls have: a sync before and after it, results without graph."""
    import torch_xla

    runtime.settle(runtime.device_name())
    result = call.run(step)
    result = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.detach() if tensor.grad_fn is not None else tensor, result
    )
    torch_xla.sync()
    return result


def _check_process() -> None:
    """Refuse what has not been shown to be right, before anything runs."""
    processes = max(xr.process_count(), xr.world_size())
    if processes > 1:
        raise Refused(f"expected one process; found {processes}, in which steps are not replayed")
    if _XLAC._get_use_eager_mode():
        raise Refused("expected lazy tensors; found torch_xla.experimental.eager_mode: turn it off, or do not replay")


def _signature(call: Call, device: str, step: Callable) -> tuple[list[torch.Tensor], tuple]:
    """The tensors among the arguments, and what two calls that can have one graph have in common."""
    arguments: list[torch.Tensor] = []
    kinds, first, there = [], {}, torch.device(device)
    for i, leaf in enumerate(call.leaves):
        if isinstance(leaf, torch.Tensor):
            if leaf.device != there:
                raise ValueError(
                    f"expected tensors on {device} as arguments of {_name(step)}; found one of shape "
                    f"{tuple(leaf.shape)} on {leaf.device} (number {i + 1} of its values): move it "
                    "there before the call"
                )
            number = first.setdefault(id(leaf), len(arguments))
            kinds.append((leaf.dtype, leaf.shape, leaf.requires_grad, type(leaf), number))
            arguments.append(leaf)
        elif is_scalar(leaf):
            kinds.append((type(leaf), repr(leaf)))
        else:
            kinds.append((type(leaf), id(leaf)))
    return arguments, (call.form, tuple(kinds), _modes())


def _modes() -> tuple:
    """What changes the graphs of this thread."""
    return (modes(), matmul_precision(), *[get() for get in _OF_TOPICS])
