"""Runs a program on XLA without computing: its graphs need shapes and dtypes, and no values.

torch_xla computes the pending graph at a sync. Here a sync hands the graph on, and every tensor that it would have
computed becomes a placeholder: data with a shape and a dtype. Large tensors are not made on the host either: they
are made on the meta device, and their copies on XLA are placeholders. Imported in the user's environment, with
torch and torch_xla only.

A program that reads a value which was not computed ends: torch_xla aborts the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch_xla
import torch_xla.runtime
from torch.overrides import TorchFunctionMode
from torch_xla.core import xla_builder

_XLAC = torch_xla._XLAC

LARGE = 1 << 20
"""From so many elements on a tensor of the host is not made: parameters, and not indices or scalars."""

_FACTORIES = frozenset(
    (torch.empty, torch.full, torch.ones, torch.rand, torch.randint, torch.randn, torch.zeros, torch.normal)
)


class NeedsValuesError(RuntimeError):
    """The program's graphs cannot be had without computing."""


def needs_values(error: BaseException) -> bool:
    """Tell whether a program would not have raised an exception if its tensors had values."""
    seen: BaseException | None = error
    while seen is not None:  # a backend of torch.compile is wrapped
        told = str(seen)
        if isinstance(seen, NeedsValuesError) or "meta" in told or "async operation is in flight" in told:
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@contextlib.contextmanager
def nothing_computed(seen: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Let a program's syncs compute nothing.

    Args:
        seen: Called at each sync of a pending graph, before its tensors become placeholders.

    Raises:
        NeedsValuesError: The program shards its graphs, or syncs some of its tensors only; or this torch_xla has no
            placeholders (needs torch_xla ≥ 2.7: xla_builder.create_placeholder_tensor).
    """
    if not hasattr(xla_builder, "create_placeholder_tensor"):
        raise NeedsValuesError("needs torch_xla ≥ 2.7: xla_builder.create_placeholder_tensor")
    faulthandler.enable()  # names the line that reads a value
    step_marker, sync_multi = _XLAC._xla_step_marker, _XLAC._xla_sync_multi

    def sync(*args: Any, **kwargs: Any) -> object:
        if torch_xla.runtime.is_spmd():
            raise NeedsValuesError("the program shards its tensors, and only a computed tensor has a sharding")
        seen()
        _XLAC._clear_pending_irs(str(torch_xla.device()))
        return step_marker(*args, **kwargs)  # nothing is pending; it begins the next step

    def sync_some(*_args: Any, **_kwargs: Any) -> object:
        raise NeedsValuesError("the program syncs some of its tensors only")

    _XLAC._xla_step_marker, _XLAC._xla_sync_multi = sync, sync_some
    try:
        with _SmallTensorsOnly():
            yield
    finally:
        _XLAC._xla_step_marker, _XLAC._xla_sync_multi = step_marker, sync_multi


class _SmallTensorsOnly(TorchFunctionMode):
    """Makes large tensors of the host on the meta device, and copies of them on XLA placeholders."""

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values()))
        if func in _FACTORIES and not tensors and _on_host(kwargs.get("device")):
            others = {key: value for key, value in kwargs.items() if key not in ("generator", "pin_memory")}
            made = func(*args, **{**others, "device": "meta"})
            return made if made.numel() >= LARGE else func(*args, **kwargs)
        if func is torch.Tensor.to and _large(args[0]):
            others = {key: value for key, value in kwargs.items() if key != "copy"}
            device, dtype = torch._C._nn._parse_to(*args[1:4], **others)[:2]
            if device is not None and device.type == "xla":
                return _placeholder(args[0], dtype or args[0].dtype)
        if func is torch.Tensor.copy_ and args[0].device.type == "xla" and len(args) > 1 and _large(args[1]):
            return func(args[0], _placeholder(args[1], args[0].dtype), *args[2:], **kwargs)
        return func(*args, **kwargs)


def _on_host(device: Any) -> bool:
    return bool(torch.device(torch.get_default_device() if device is None else device).type == "cpu")


def _large(tensor: Any) -> bool:
    """Tell whether a tensor is on the meta device, or on the host and large."""
    if not isinstance(tensor, torch.Tensor):
        return False
    return bool(tensor.device.type == "meta" or (tensor.device.type == "cpu" and tensor.numel() >= LARGE))


def _placeholder(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on XLA with the shape of another one and data without a value. The host converts the dtype."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise NeedsValuesError("a large tensor is copied to XLA under autograd")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise NeedsValuesError(f"a large {type(tensor).__name__} is copied to XLA")
    if tensor.numel() == 1:
        raise NeedsValuesError("a number computed of large tensors is copied to XLA")
    try:
        made: torch.Tensor = xla_builder.create_placeholder_tensor(tensor.shape, dtype)
    except Exception as error:
        raise NeedsValuesError(f"torch_xla has no placeholder of dtype {dtype}") from error
    return made
