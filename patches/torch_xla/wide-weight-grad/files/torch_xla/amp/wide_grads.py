"""``torch_xla.amp.wide_grads``: float32 gradients for all reduced-precision parameters of a module."""

import sys

import torch
from torch import _castoff as _torch_castoff
from torch import _grad_dtype
from torch.autograd import _implicit_casts
from torch_xla import _wide_fsdp

__all__ = ["wide_grads"]

_REDUCED = (torch.bfloat16, torch.float16)
_NEEDS = ("grad-dtype", "data-setter", "wide-weight-grad")


def wide_grads(module: torch.nn.Module, dtype: torch.dtype = torch.float32, enabled: bool = True) -> list[str]:
    """Let the bfloat16 and float16 parameters of ``module`` have gradients in ``dtype``.

    Sets ``grad_dtype`` of each, those of submodules included; a parameter that has several names is one.
    On XLA the backward pass then makes these gradients in float32 from its own operands and adds them to
    ``.grad`` with no cast in between. Parameters of other dtypes are left alone. Calling it again changes nothing.

    The parameters of an XlaFullyShardedDataParallel are float32 shards; what it computes with, and accumulates
    under ``no_sync()``, are full parameters in its ``compute_dtype``. It is the full ones that are made wide, so
    that the gradients are float32 when they are reduced and scattered, with or without ``fp32_reduce_scatter``.

    Args:
        module: its parameters may be on any device, and trainable or not.
        dtype: torch.float32 or torch.float64.
        enabled: False takes it back: gradients have their parameter's own dtype again.

    Returns:
        The names of the parameters whose grad_dtype changed; of a full parameter, the name of its shard.

    Raises:
        TypeError: ``module`` is no module.
        ValueError: ``dtype`` is another one.
        RuntimeError: a parameter has a ``.grad`` of another dtype, or an XlaFullyShardedDataParallel is between
            its forward and backward pass; then nothing has changed. Or the topics grad-dtype, data-setter or
            wide-weight-grad are switched off.

    Call it when the parameters are on their device, in their dtype. In-place changes (``module.bfloat16()``,
    ``p.data = …``) keep a parameter's grad_dtype, with the dtype that was set. ``module.to("xla")`` from
    another device makes new parameters, which have none, but for those with a gradient of another dtype than their
    own, which they take along. Call this after it.

    What torch.compile compiled before has the old gradient dtypes in it, so it is forgotten if any changed.
    """
    _check(module, dtype)
    named = {name: p for name, p in module.named_parameters() if p.dtype in _REDUCED}
    wanted = {name: dtype if enabled else p.dtype for name, p in named.items()}
    changed = [name for name, p in named.items() if p.grad_dtype != wanted[name]]
    _check_gradients(named, wanted, changed)
    changed += _wide_fsdp.set_grad_dtype(module, dtype if enabled else None)
    for name in changed:
        if name not in named:
            continue
        if enabled:
            named[name].grad_dtype = dtype
        else:
            _grad_dtype.reset(named[name])
    if changed and "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    if changed and enabled:
        _implicit_casts.warn_of_rounding()
    return changed


def _check(module: object, dtype: object) -> None:
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, found {type(module).__name__}")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected torch.float32 or torch.float64 as dtype, found {dtype}")
    if not all(map(_torch_castoff.enabled, _NEEDS)):
        raise RuntimeError(
            f"wide_grads needs the topics {', '.join(_NEEDS)}, and CASTOFF_DISABLE has switched one of them off in "
            "this process"
        )


def _check_gradients(named: dict, wanted: dict, changed: list[str]) -> None:
    found = [
        f"{name} ({named[name].grad.dtype})"
        for name in changed
        if named[name].grad is not None and named[name].grad.dtype != wanted[name]
    ]
    if found:
        raise RuntimeError(
            f"expected no gradients, or gradients of dtype {wanted[changed[0]]}, found {', '.join(found)}; call "
            "module.zero_grad(set_to_none=True) first"
        )
