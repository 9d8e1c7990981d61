"""Module.to("xla") keeps the module's parameters, as Module.cuda() does.

`Module._apply` assigns to ``.data`` where the old and the new tensor have compatible implementations. Those of XLA and
of other devices have not, so torch makes a new Parameter for every reference there: tied weights become two, and an
optimizer that was made before holds parameters that nothing uses. Here the Parameter, and its gradient, take the new
implementation instead.
"""

import ctypes
import warnings
from collections.abc import Callable

import torch
from torch import _castoff

__all__ = ["in_place"]

_ENABLED = _castoff.enabled("module-to")
if _ENABLED:
    _carry = _castoff.library().castoff_module_to_carry
    _carry.restype, _carry.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p)

_warned = False


def in_place(param: torch.Tensor, applied: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """What `Module._apply` goes on with in place of ``applied``, which is ``fn(param)``.

    That is ``param`` itself, which then is what ``applied`` was, with its gradient, hooks and node; or ``applied``,
    where torch keeps the parameter anyway or was asked not to.

    Raises RuntimeError for a gradient that is not a leaf.
    """
    if (
        not _ENABLED
        or "xla" not in (param.device.type, applied.device.type)
        or not _torch_would_replace(param, applied)
    ):
        return applied
    grad = param.grad
    with torch.inference_mode(False), torch.no_grad():
        new = _like(param, applied)
        torch._grad_dtype.carry(param, new)
        new_grad = None if grad is None else _new_gradient(param, grad, fn)
        if not _take_implementation(param, new):
            return applied
        _carry(new._cdata, param._cdata)
        _register_hooks_again(param)
        if grad is not None:
            param.grad = grad if grad is new_grad or _take_implementation(grad, new_grad) else new_grad
    return param


def _torch_would_replace(param: torch.Tensor, applied: torch.Tensor) -> bool:
    future = torch.__future__
    return not (
        applied is param
        or torch._has_compatible_shallow_copy_type(param, applied)
        or future.get_overwrite_module_params_on_conversion()
        or future.get_swap_module_params_on_conversion()
        or _dispatches_in_python(param)
        or _dispatches_in_python(applied)
    )


def _dispatches_in_python(tensor: torch.Tensor) -> bool:
    return type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def _like(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """A leaf with the data of ``new`` that nobody else has, and that requires a gradient if ``old`` does."""
    own = new.clone() if new.is_inference() else new.detach()
    return own.requires_grad_(old.requires_grad)


def _new_gradient(param: torch.Tensor, grad: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    if not grad.is_leaf:
        raise RuntimeError(
            "expected gradients that are leaves, to move a module to or from an XLA device; found one of shape "
            f"{list(grad.shape)} with a graph (create_graph=True). Clear it: zero_grad()"
        )
    applied = torch._grad_dtype.converted(param, grad, fn(grad))
    return grad if applied is grad else _like(grad, applied)


def _take_implementation(tensor: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether ``tensor`` and ``new`` have exchanged their implementations: not if C++ has weak references to one."""
    global _warned
    try:
        torch._C._swap_tensor_impl(tensor, new)
    except RuntimeError as error:
        if not _warned:
            _warned = True
            warnings.warn(
                f"a tensor of shape {list(tensor.shape)} cannot be moved in place ({str(error).splitlines()[0]}). Its "
                "module gets a new one: tie weights and make optimizers after this",
                stacklevel=6,
            )
        return False
    return True


def _register_hooks_again(param: torch.Tensor) -> None:
    """The Python object has kept its hooks; what the engine calls went with the old implementation."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(param, name)
        if hooks is not None:
            setattr(param, name, hooks)
