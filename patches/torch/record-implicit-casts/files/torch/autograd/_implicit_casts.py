"""``torch.autograd.graph.record_implicit_casts``: what the autograd engine converts without being asked.

The records are made in C++, torch/csrc/autograd/implicit_casts.h, with no Python on the way of the
backward; here they become Python objects when someone looks.
"""

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import _castoff

__all__ = ["ImplicitCast", "record_implicit_casts"]


@dataclass(frozen=True)
class ImplicitCast:
    """One gradient that the engine converted from the dtype that it had to the one that was asked for.

    Attributes:
        from_dtype: what a node returned.
        to_dtype: what the next node gets.
        shape: of the gradient as the next node gets it; -1 for sizes that are symbolic.
        produced_by: name of the node whose backward returned the gradient; "" for a gradient that
            ``backward`` or ``grad`` was called with.
        demanded_by: name of the node that asked for ``to_dtype``: that of the op that made the tensor
            whose gradient this is, or of the leaf.
        index: which of the gradients that ``produced_by`` returned.
        forward_stack: the Python stack of the forward op whose node is ``produced_by`` (for "":
            ``demanded_by``), if anomaly mode was on when it ran, else None.
        leaves: ``_cdata`` of the leaves with a ``grad_dtype`` whose gradients it is part of. Like ``rounded`` for
            ``torch_xla.amp.wide_grads_report``: with torch's own ``grad_dtype`` it is empty, and ``rounded`` False.
        rounded: whether ``produced_by`` computed the gradient in a narrower floating point dtype than the one that
            was asked for, and did not just hand on what came.
    """

    from_dtype: torch.dtype
    to_dtype: torch.dtype
    shape: tuple[int, ...]
    produced_by: str
    demanded_by: str
    index: int
    forward_stack: Optional[str]
    leaves: tuple[int, ...] = field(default=(), repr=False, compare=False)
    rounded: bool = field(default=False, repr=False, compare=False)


class _View(ctypes.Structure):
    _fields_ = [
        ("from_dtype", ctypes.c_char_p),
        ("to_dtype", ctypes.c_char_p),
        ("index", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("dimensions", ctypes.c_int64),
        ("produced_by", ctypes.c_char_p),
        ("demanded_by", ctypes.c_char_p),
        ("leaves", ctypes.POINTER(ctypes.c_void_p)),
        ("leaf_count", ctypes.c_int64),
        ("has_stack", ctypes.c_bool),
        ("rounded", ctypes.c_bool),
    ]


def _dtype(name: bytes) -> torch.dtype:
    """The dtype that C++ calls ``name``: "BFloat16", "ComplexFloat"."""
    return getattr(torch, name.decode().lower().replace("complex", "c"))


def _take(recorder: int) -> Optional[ImplicitCast]:
    view, forward = _View(), torch.empty(0)
    cast = _c_take(recorder, ctypes.byref(view), forward._cdata)
    if cast is None:
        return None
    try:
        stack = forward.grad_fn.metadata.get("traceback_") if view.has_stack else None  # type: ignore[union-attr]
        return ImplicitCast(
            from_dtype=_dtype(view.from_dtype),
            to_dtype=_dtype(view.to_dtype),
            shape=tuple(view.shape[: view.dimensions]),
            produced_by=view.produced_by.decode(),
            demanded_by=view.demanded_by.decode(),
            index=view.index,
            forward_stack="".join(stack) if stack else None,
            leaves=tuple(view.leaves[: view.leaf_count]),
            rounded=view.rounded,
        )
    finally:
        _c_drop(cast)


class _Casts(list):
    """A list that takes over what its recorder has whenever someone looks into it."""

    def __init__(self, recorder: int) -> None:
        self._recorder = recorder

    def _fill(self) -> None:
        while (cast := _take(self._recorder)) is not None:
            list.append(self, cast)


def _filled_first(name: str) -> Any:
    of_list = getattr(list, name)

    def method(self: _Casts, *args: Any, **kwargs: Any) -> Any:
        self._fill()
        return of_list(self, *args, **kwargs)

    method.__name__ = name
    return method


for _name in (
    *("__len__", "__iter__", "__reversed__", "__getitem__", "__contains__", "__repr__", "__eq__", "__ne__"),
    *("__lt__", "__le__", "__gt__", "__ge__", "__add__", "__delitem__", "__setitem__"),
    *("append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"),
):
    setattr(_Casts, _name, _filled_first(_name))


@contextlib.contextmanager
def record_implicit_casts() -> Iterator[list[ImplicitCast]]:
    """Record every dtype conversion that the autograd engine makes, in any thread, while this is active.

    The engine converts a gradient where the node that returns it and the node that gets it differ in
    dtype: an op whose backward does not keep to the dtype of its input, a ``grad_dtype``, an output
    dtype that a Function declared. Gives a list of :class:`ImplicitCast`, which grows while the context
    is active and stays as it is after it. Contexts may be nested, and run in several threads: each gets
    everything that is made while it is active. What is inside a compiled backward is no conversion of
    the engine's and not here.

    Example::

        >>> with torch.autograd.graph.record_implicit_casts() as casts:
        >>>     loss.backward()
        >>> for cast in casts:
        >>>     print(cast.produced_by, cast.from_dtype, "->", cast.to_dtype, cast.demanded_by)
    """
    recorder = _c_start()
    casts = _Casts(recorder)
    try:
        yield casts
    finally:
        casts._fill()
        _c_stop(recorder)


def warn_of_rounding() -> None:
    """Let the first gradient that an operator rounds, of a leaf that asked for a wider one, be warned of."""
    if _castoff.enabled("record-implicit-casts"):
        _castoff.library().castoff_implicit_casts_warn_of_rounding()


if _castoff.enabled("record-implicit-casts"):
    _library = _castoff.library()
    _c_start, _c_stop = _library.castoff_implicit_casts_start, _library.castoff_implicit_casts_stop
    _c_take, _c_drop = _library.castoff_implicit_casts_take, _library.castoff_implicit_casts_drop
    _c_start.restype, _c_start.argtypes = ctypes.c_int64, ()
    _c_stop.restype, _c_stop.argtypes = None, (ctypes.c_int64,)
    _c_take.restype, _c_take.argtypes = ctypes.c_void_p, (ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    _c_drop.restype, _c_drop.argtypes = None, (ctypes.c_void_p,)
    for _api in (ImplicitCast, record_implicit_casts):
        _api.__module__ = "torch.autograd.graph"
        setattr(torch.autograd.graph, _api.__name__, _api)
        torch.autograd.graph.__all__ += [_api.__name__]
