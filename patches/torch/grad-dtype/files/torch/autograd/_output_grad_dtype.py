"""``ctx.set_output_grad_dtype`` of autograd Functions, as torch has it since 2.14 (pytorch/pytorch#189634).

A Function declares while its forward runs; the node can take the declaration once its ``apply`` has
come back, because only then the outputs are known. Between the two it waits in ``pending``, under the
frame of that ``apply``. Until the first declaration of a process an ``apply`` pays for one test of
a global of its own module, ``_output_grad_dtypes_declared``.
"""

import ctypes
import sys
from types import FrameType
from typing import Any, Optional

import torch
from torch import _castoff

__all__ = ["apply", "as_declared", "declare", "forget", "pending"]

_KEY = "_output_grad_dtypes"  # in ctx.__dict__

# By id of a frame that runs Function.apply or apply(): the frame itself and the ctx of its forward.
pending: dict[int, tuple[FrameType, Any]] = {}


def set_output_grad_dtype(self: Any, *dtypes: Optional[torch.dtype]) -> None:
    r"""Declare the dtypes of the gradients that flow into the outputs of this Function.

    To be called at most once, from :func:`forward` or :func:`setup_context`, with one argument for
    each value that forward returns, in order:

    * a :class:`torch.dtype`: the engine converts the gradient of that output to it before
      :func:`backward` gets it. Only for a differentiable Tensor; floating point or complex.
    * None: the engine does not convert, the gradient arrives in the dtype that it has. The one choice
      for what is no Tensor or not differentiable. If several uses of the output send gradients of
      several dtypes, the engine may add them up in any of these: declare a dtype there.

    Without a call each gradient is converted to the dtype of its output. Between the output and its
    user there may be views (``t``, ``view``, ``permute``, ``expand``, slices, …): they hand a gradient
    of the declared dtype on if it is not the narrower one and no hook looks at it there. Other ops,
    in-place ones and views of several outputs (``split``, ``unbind``) do not.

    Raises RuntimeError for a second call, a call from elsewhere, arguments that are neither dtypes nor
    None and, from ``apply``, a number of dtypes other than the number of returned values or a dtype
    that an output cannot have.

    Example: a bfloat16 Function that takes and gives float32 gradients::

        >>> class Scale(torch.autograd.Function):
        >>>     @staticmethod
        >>>     def forward(ctx, x):  # x: (n,) bfloat16
        >>>         ctx.set_output_grad_dtype(torch.float32)
        >>>         return x * 3
        >>>
        >>>     @staticmethod
        >>>     def backward(ctx, grad):  # (n,) float32
        >>>         return grad * 3
    """
    for dtype in dtypes:
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise RuntimeError(f"set_output_grad_dtype takes torch.dtypes and None, but got {type(dtype).__name__}")
    if _KEY in self.__dict__:
        raise RuntimeError(
            f"set_output_grad_dtype was called twice on the ctx of {_name(self)}. Call it once, with "
            "one dtype or None for each returned value"
        )
    frame = _frame_of_apply(type(self), sys._getframe(1))
    if frame is None:
        raise RuntimeError(
            f"set_output_grad_dtype of {_name(self)} was called while its forward does not run. Call "
            "it from forward() or setup_context()"
        )
    self.__dict__[_KEY] = dtypes
    torch.autograd.function._output_grad_dtypes_declared = True
    pending[id(frame)] = (frame, self)


def apply(cls: type, operands: tuple[Any, ...]) -> Any:
    """``cls.apply(*operands)`` for a Function of functorch's, whose own ``apply`` is C++."""
    try:
        outputs = cls.apply(*operands)  # type: ignore[attr-defined]
    except BaseException:
        forget()
        raise
    if pending:
        declare(outputs)
    return outputs


def forget() -> None:
    """Drop what the forward that the caller's frame ran has declared before it raised."""
    if pending:
        pending.pop(id(sys._getframe(1)), None)


def declare(outputs: Any) -> None:
    """Give the nodes of ``outputs`` what the forward that the caller's frame ran has declared."""
    _, ctx = pending.pop(id(sys._getframe(1)), (None, None))
    if ctx is None:
        return
    dtypes = ctx.__dict__[_KEY]
    values = outputs if isinstance(outputs, tuple) else (outputs,)
    if len(dtypes) != len(values):
        raise RuntimeError(
            f"set_output_grad_dtype of {_name(ctx)}: expected {len(values)} dtypes, one for each "
            f"returned value, but found {len(dtypes)}. Pass None for values without a declaration"
        )
    has_node = torch.is_grad_enabled() and any(ctx.needs_input_grad)
    for index, (value, dtype) in enumerate(zip(values, dtypes, strict=True)):
        error = has_node and (_error(value, dtype) or _give(ctx, value, dtype))
        if error:
            raise RuntimeError(f"set_output_grad_dtype of {_name(ctx)}: output {index} {error}")


def as_declared(ctx: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """``grads`` of a backward, in which zeros for outputs without a gradient have the declared dtype."""
    dtypes = ctx.__dict__.get(_KEY)
    if dtypes is None:
        return grads
    return tuple(
        grad if dtype is None or grad is None or grad.dtype == dtype else grad.to(dtype)
        for grad, dtype in zip(grads, dtypes, strict=True)
    )


def _name(ctx: Any) -> str:
    return type(ctx).__name__.removesuffix("Backward")


def _frame_of_apply(backward_cls: type, frame: Optional[FrameType]) -> Optional[FrameType]:
    """The innermost frame that runs ``apply`` of the Function whose ctx is a ``backward_cls``."""
    codes = (torch.autograd.Function.apply.__func__.__code__, apply.__code__)  # type: ignore[attr-defined]
    while frame is not None:
        if frame.f_code in codes and frame.f_locals["cls"]._backward_cls is backward_cls:
            return frame
        frame = frame.f_back
    return None


def _error(value: Any, dtype: Optional[torch.dtype]) -> Optional[str]:
    """Why the gradient of ``value`` cannot have ``dtype``."""
    if dtype is None:
        return None
    if not isinstance(value, torch.Tensor):
        return f"is a {type(value).__name__} and has no gradient that could be {dtype}. Pass None for it"
    if not (value.is_floating_point() or value.is_complex()) or not value.requires_grad:
        return f"is not differentiable and has no gradient that could be {dtype}. Pass None for it"
    if not (dtype.is_floating_point or dtype.is_complex):
        return f"is {value.dtype}: expected a floating point or complex dtype for its gradient, but found {dtype}"
    return None


def _give(ctx: Any, value: Any, dtype: Optional[torch.dtype]) -> Optional[str]:
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return None
    if value.grad_fn is not ctx:
        return (
            "is a view that was modified in place: its gradient goes through the base of the view, "
            "which has a dtype of its own. Return a tensor that is no view"
        )
    error = _declare(value._cdata, -2 if dtype is None else torch._grad_dtype.code(dtype))
    return None if error is None else f"cannot have a declared gradient dtype: {error.decode()}"


if _castoff.enabled("grad-dtype"):
    _declare = _castoff.library().castoff_grad_dtype_declare
    _declare.restype, _declare.argtypes = ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_int)
