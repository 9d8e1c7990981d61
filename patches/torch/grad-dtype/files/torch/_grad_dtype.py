"""``Tensor.grad_dtype``, as torch has it since 2.10 (pytorch/pytorch#162815; to read it on non-leaf
tensors: 2.14, pytorch/pytorch#190852).

The state and everything on the backward path are in C++, torch/csrc/autograd/grad_dtype.h. Here are
the attribute, the checks of ``.grad = …`` for tensors that have a grad_dtype, and what fake tensors
and compiled autograd ask.
"""

import ctypes
import functools
import warnings
from collections.abc import Callable
from types import CodeType
from typing import Any, Optional

import torch
from torch import _castoff
from torch.overrides import handle_torch_function, has_torch_function_unary

__all__ = ["copy_to_fake", "explicit"]

_OF_TENSOR, _ANY = -1, -2  # codes of the C++ half; every other one is a ScalarType
_ENABLED = _castoff.enabled("grad-dtype")


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_castoff.library(), f"castoff_grad_dtype_{name}")
    function.restype, function.argtypes = result, arguments
    return function


_get = _function("get", ctypes.c_int, ctypes.c_void_p)
_declare = _function("declare", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
_demanded = _function("demanded", ctypes.c_int, ctypes.c_void_p)
_tensors_in_use = ctypes.c_int64.from_address(_function("tensors_in_use", ctypes.c_void_p)())
_of_output = _function("of_output", ctypes.c_int, ctypes.c_void_p)
_set = _function("set", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
_assign = _function("assign", None, ctypes.c_void_p, ctypes.c_void_p)


def _scalar_types() -> dict[torch.dtype, int]:
    """The ScalarType of every dtype, read where THPDtype keeps it: ahead of its name."""
    codes = {}
    for dtype in {d for d in vars(torch).values() if isinstance(d, torch.dtype)}:
        at = id(dtype) + object.__basicsize__
        if f"torch.{ctypes.string_at(at + 1).decode()}" != str(dtype):
            raise ImportError(f"castoff: {dtype} is not laid out as grad-dtype knows it")
        codes[dtype] = ctypes.c_int8.from_address(at).value
    return codes


_CODE = _scalar_types()
_DTYPE = {code: dtype for dtype, code in _CODE.items()}


def _getter(self: torch.Tensor) -> Optional[torch.dtype]:
    if has_torch_function_unary(self):
        return handle_torch_function(torch.Tensor.grad_dtype.__get__, (self,), self)
    code = _get(self._cdata) if self.is_leaf else _of_output(self._cdata)
    return self.dtype if code == _OF_TENSOR else _DTYPE.get(code)


def _setter(self: torch.Tensor, dtype: Optional[torch.dtype]) -> None:
    if has_torch_function_unary(self):
        return handle_torch_function(torch.Tensor.grad_dtype.__set__, (self,), self, dtype)
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise RuntimeError(f"grad_dtype must be a torch.dtype or None, but got {type(dtype).__name__}")
    if not self.is_leaf:
        raise RuntimeError("grad_dtype can only be set on leaf tensors.")
    grad = self.grad
    if dtype is not None and grad is not None and grad.dtype != dtype:
        raise RuntimeError(
            f"grad_dtype cannot become {dtype}: .grad is there and is {grad.dtype}. Clear it first "
            "(.grad = None), or give its dtype."
        )
    error = _set(self._cdata, _ANY if dtype is None else _CODE[dtype])
    if error is not None:
        raise RuntimeError(error.decode())
    if _at_first_use:
        _run_first_uses()


_at_first_use: list[Callable[[], None]] = []


def at_first_use(function: Callable[[], None]) -> None:
    """Call ``function`` when a tensor of this process is first given a grad_dtype; at once if one has it."""
    _at_first_use.append(function)
    if in_use():
        _run_first_uses()


def _run_first_uses() -> None:
    while _at_first_use:
        _at_first_use.pop(0)()


def _wrong_gradient(self: torch.Tensor, grad: torch.Tensor, code: int) -> Optional[str]:
    if code != _ANY and grad.dtype != _DTYPE[code]:
        return (
            f"attempting to assign a gradient of dtype {grad.dtype} to a tensor whose grad_dtype is "
            f"{_DTYPE[code]}. Convert the gradient, or set grad_dtype to its dtype, or to None to "
            "allow any"
        )
    if grad.device != self.device:
        return (
            f"attempting to assign a gradient on device '{grad.device}' to a tensor on device "
            f"'{self.device}'. Move the gradient to the tensor's device"
        )
    if grad.layout not in (self.layout, torch.sparse_coo):
        return (
            f"attempting to assign a gradient with layout {grad.layout} to a tensor with layout "
            f"{self.layout}. Convert the gradient to the tensor's layout"
        )
    if grad.shape != self.shape:
        return (
            f"attempting to assign a gradient of size {list(grad.shape)} to a tensor of size "
            f"{list(self.shape)}. The two must be the same"
        )
    return None


def _assign_grad(self: torch.Tensor, grad: Any) -> bool:
    """Whether ``self.grad = grad`` was done here; else torch's own setter has to, or to refuse."""
    if not isinstance(grad, torch.Tensor) or self is grad or has_torch_function_unary(self):
        return False
    code = _get(self._cdata) if self.is_leaf else _of_output(self._cdata)
    if code == _OF_TENSOR or _DTYPE.get(code) == self.dtype:
        return False
    with torch._C.DisableTorchFunctionSubclass():  # the setter asks self alone
        error = _wrong_gradient(self, grad, code)
        if error is not None:
            raise RuntimeError(error)
        if grad.dtype == self.dtype:
            return False
        _assign(self._cdata, grad._cdata)
    return True


def code(dtype: torch.dtype) -> int:
    """The ScalarType of ``dtype``."""
    return _CODE[dtype]


def explicit(tensor: torch.Tensor) -> Optional[torch.dtype]:
    """The dtype that ``tensor.grad_dtype`` was set to; None if it was not set or set to None."""
    return _DTYPE.get(_get(tensor._cdata))


def is_set(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` was given a grad_dtype, None included."""
    return _get(tensor._cdata) != _OF_TENSOR


def reset(tensor: torch.Tensor) -> None:
    """Make ``tensor.grad_dtype`` what it was before it was set: the tensor's own dtype, whichever it becomes."""
    if is_set(tensor):
        _set(tensor._cdata, _OF_TENSOR)


def carry(source: torch.Tensor, leaf: torch.Tensor) -> None:
    """``leaf``, which ``source`` is about to become, takes over its grad_dtype."""
    if in_use() and is_set(source):
        _set(leaf._cdata, _get(source._cdata))


def testing_overrides() -> dict[Any, Callable[..., Any]]:
    """What torch.overrides.get_testing_overrides has of grad_dtype."""
    return {torch.Tensor.grad_dtype.__get__: lambda self: -1} if _ENABLED else {}


_warned_of_loss = False


def warn_of_loss(source: torch.Tensor, leaf: Optional[torch.Tensor] = None) -> None:
    """Warn, once in a process, that a copy of ``source``, ``leaf`` or what is saved, has no grad_dtype.

    So it is in torch 2.10 to 2.15, too.
    """
    global _warned_of_loss
    if not _warned_of_loss and in_use() and is_set(source) and (leaf is None or not is_set(leaf)):
        _warned_of_loss = True
        warnings.warn(
            f"the grad_dtype {source.grad_dtype} of a tensor of shape {list(source.shape)} is not part of its copy, as "
            "in torch 2.10 to 2.15. Set it again where it is needed (torch_xla.amp.wide_grads(module))",
            stacklevel=3,
        )


def copy_with_gradient(source: torch.Tensor, leaf: torch.Tensor) -> None:
    """``leaf``, a copy of ``source`` that gets its gradient too, takes over a grad_dtype that it needs for that."""
    if in_use() and source.grad is not None and source.grad.dtype != source.dtype:
        _set(leaf._cdata, _get(source._cdata))
    warn_of_loss(source, leaf)


def converted(leaf: torch.Tensor, grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``like``, which is ``grad`` as Module.to and its like convert it, in the dtype that ``leaf`` wants.

    It is not rounded on the way: it comes from ``grad`` where that has the dtype.
    """
    dtype = explicit(leaf) if in_use() else None
    if dtype is None or like.dtype == dtype:
        return like
    whole = grad.dtype == dtype and grad.shape == like.shape and like.device.type != "meta"
    return grad.to(like.device, copy=True) if whole else like.to(dtype)


def copy_to_fake(real: torch.Tensor, fake: torch.Tensor) -> None:
    """A fake tensor takes over the grad_dtype of the plain leaf that it stands for, or is a view of."""
    if not in_use() or type(real) not in (torch.Tensor, torch.nn.Parameter):
        return
    if real._is_view() and fake._is_view():  # the base was made with the view, and will not come here
        copy_to_fake(real._base, fake._base)
    if real.is_leaf and fake.is_leaf and is_set(real):
        _set(fake._cdata, _get(real._cdata))


def copy_to_functional(leaf: torch.Tensor, functional: torch.Tensor) -> None:
    """What AOTAutograd differentiates in place of ``leaf``, not a leaf itself, takes over its grad_dtype."""
    if _ENABLED and functional.grad_fn is not None and leaf.is_leaf and is_set(leaf):
        _declare(functional._cdata, _get(leaf._cdata))


def copy_to_detached(tensor: torch.Tensor, detached: torch.Tensor) -> None:
    """``detached``, a leaf whose gradient will be passed on to ``tensor``, gets it in the dtype wanted there.

    Reentrant checkpointing makes such a leaf of every input of the checkpointed function. A gradient becomes complex,
    or real, at ``tensor`` alone.
    """
    if not _ENABLED or not detached.requires_grad:
        return
    code = _demanded(tensor._cdata)
    dtype = _DTYPE.get(code)
    if code != _OF_TENSOR and dtype != tensor.dtype and (dtype is None or dtype.is_complex == tensor.is_complex()):
        _set(detached._cdata, code)


def in_use() -> bool:
    """Whether any tensor has a grad_dtype."""
    return _ENABLED and _tensors_in_use.value != 0


def demanded(tensor: torch.Tensor) -> Optional[torch.dtype]:
    """The dtype that the engine gives to a gradient of ``tensor``, seen through views; None for as it comes."""
    code = _wanted(tensor)
    return tensor.dtype if code == _OF_TENSOR else _DTYPE.get(code)


# Those of csrc/autograd/view_nodes.cpp that torch's operators leave in the graphs that AOTAutograd traces.
_VIEW_NODES = frozenset(
    f"{name}Backward0"
    for name in (
        *("Alias", "AsStrided", "Diagonal", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split"),
        *("SplitWithSizes", "Squeeze", "T", "Transpose", "Unbind", "Unfold", "UnsafeView", "Unsqueeze", "View"),
    )
) | {"SqueezeBackward1", "SqueezeBackward2"}


def hands_on(node: torch.autograd.graph.Node) -> bool:
    """Whether AOTAutograd has to keep its hooks, which only tell stack traces, off ``node``.

    The gradient of a view that someone looks at has the view's dtype.
    """
    return in_use() and node.name() in _VIEW_NODES


def cast_proxy(tracer: Any, grad: Any, variable: torch.Tensor) -> Any:
    """For compiled autograd: the proxy of ``grad`` in the dtype that ``variable`` wants.

    A backward graph of AOTAutograd is inlined without validate_outputs, so no one else casts it.
    """
    dtype = explicit(variable)
    if dtype is None or grad is None:
        return grad
    return tracer.create_proxy("call_method", "to", (grad, dtype), {})


def accumulate_flags(variable: torch.Tensor) -> tuple[bool, ...]:
    """For compiled autograd: the further arguments of call_accumulate_grad for ``variable``."""
    return (True,) if is_set(variable) else ()


def _guard_in_dynamo() -> None:
    """Let dynamo compile a function again for inputs that want gradients of another dtype.

    What it compiled before a tensor of the process had a grad_dtype has no such guard, and is forgotten. Guards of
    torch 2.1 are text, to which none is added.
    """
    import torch._dynamo
    from torch._dynamo.guards import Guard, GuardBuilder

    if not hasattr(GuardBuilder, "get_guard_manager"):
        return
    from torch._dynamo.guards import get_verbose_code_parts
    from torch.utils.weak import TensorWeakRef

    match = GuardBuilder.TENSOR_MATCH

    @functools.wraps(match)
    def match_with_grad_dtype(self: GuardBuilder, guard: Guard, value: Any = None) -> None:
        match(self, guard, value)
        tensor = value() if isinstance(value, TensorWeakRef) else value
        tensor = self.get(guard.name) if tensor is None else tensor
        wanted = _wanted(tensor)
        text = get_verbose_code_parts(f"grad_dtype of {guard.name} is as before", guard)
        self.get_guard_manager(guard).add_lambda_guard(lambda t: _wanted(t) == wanted, text)

    GuardBuilder.TENSOR_MATCH = match_with_grad_dtype
    torch._dynamo.reset()


def _wanted(tensor: torch.Tensor) -> int:
    """The code of the dtype that the engine gives to a gradient of ``tensor``."""
    return _demanded(tensor._cdata) if tensor.requires_grad else _OF_TENSOR


def _getset_definition(name: str) -> ctypes.c_void_p:
    """The PyGetSetDef of an attribute: the member of its descriptor after type, name and qualname."""
    offset = object.__basicsize__ + 3 * ctypes.sizeof(ctypes.c_void_p)
    return ctypes.c_void_p.from_address(id(vars(torch.Tensor.__base__)[name]) + offset)


def _skip_in_dynamo(code: CodeType) -> None:
    dynamo = torch._C._dynamo.eval_frame
    if hasattr(dynamo, "skip_code"):  # before 2.7
        dynamo.skip_code(code)
    else:
        skip = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.DEFAULT)
        dynamo.set_code_exec_strategy(code, skip)


def _install() -> None:
    at_first_use(_guard_in_dynamo)
    torch.Tensor.grad_dtype = property(
        _getter,
        _setter,
        doc="""The dtype that the gradient of this tensor has.

By default the tensor's own dtype. A :class:`torch.dtype`: the autograd engine casts incoming
gradients to it. None: it does not cast. ``.grad = g`` of a leaf must match, or be anything for None.

It can be set on leaf tensors only, and not to another dtype than that of a ``.grad`` that is there;
both raise RuntimeError. Of a non-leaf it tells what the node that made it takes, see
:meth:`torch.autograd.function.FunctionCtx.set_output_grad_dtype`.""",
    )
    # Dynamo traces the Python code that a setter runs, and would break the graph at the first C function.
    for function in (_assign_grad, _wrong_gradient, _run_first_uses):
        _skip_in_dynamo(function.__code__)
    install = _function("install", ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.py_object] * 2)
    if not install(_getset_definition("grad"), _getset_definition("_grad"), _assign_grad, None):
        raise ImportError(
            "castoff: torch._C.TensorBase.grad is not the attribute that grad-dtype was made for. "
            "CASTOFF_DISABLE=grad-dtype imports torch without the topic."
        )


if _ENABLED:
    _install()
else:  # it is in the class for type checkers
    del torch.autograd.function.FunctionCtx.set_output_grad_dtype
