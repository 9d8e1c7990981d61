"""Wide gradients of what an XlaFullyShardedDataParallel computes with.

Its full parameters say float32, which the shards are, but hold ``compute_dtype`` while they are gathered.
So stock makes each gradient in ``compute_dtype`` and casts it to float32 when it has been rounded. A full
parameter that says what it holds, and has a grad_dtype, is a wide weight like any other.
"""

from collections.abc import Iterator
from typing import Optional

import torch
from torch import _grad_dtype

__all__ = ["set_grad_dtype"]

_REDUCED = (torch.bfloat16, torch.float16)


def _narrow_ones(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The XlaFullyShardedDataParallel within ``module`` that compute in bfloat16 or float16."""
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    for part in module.modules():
        if isinstance(part, XlaFullyShardedDataParallel) and part.compute_dtype in _REDUCED:
            yield part


def set_grad_dtype(module: torch.nn.Module, dtype: Optional[torch.dtype]) -> list[str]:
    """Let the full parameters within ``module`` have gradients in ``dtype``; None takes that back.

    Returns the names of the shards of those that changed. Raises RuntimeError, and changes nothing, between a
    forward and its backward pass, and where gradients of another dtype have been accumulated.
    """
    sharded = list(_narrow_ones(module))
    _check(sharded, dtype or torch.float32)
    names = {id(p): name for name, p in module.named_parameters()} if sharded else {}
    changed = []
    for fsdp in sharded:
        fsdp._free_full_params(apply_opt_barrier=False)  # the next forward pass gathers them again
        for full in fsdp.full_params:
            if full.grad_dtype != (dtype or torch.float32) or (dtype is None) == _grad_dtype.is_set(full):
                _declare(fsdp, full, dtype)
                changed.append(names[id(full._sharded_param)])
    return changed


def _check(sharded: list[torch.nn.Module], dtype: torch.dtype) -> None:
    for fsdp in sharded:
        state = fsdp.training_state.name
        if state != "IDLE":
            raise RuntimeError(f"expected an XlaFullyShardedDataParallel at rest, found one in state {state}")
        for full in fsdp.full_params:
            if full.grad is not None and full.grad.dtype != dtype:
                raise RuntimeError(
                    f"expected no gradients, or gradients of dtype {dtype}, found {full._sharded_param._orig_name} "
                    f"({full.grad.dtype}), accumulated under no_sync(); run the backward pass that reduces them first"
                )


def _declare(fsdp: torch.nn.Module, full: torch.Tensor, dtype: Optional[torch.dtype]) -> None:
    """Make a full parameter say ``compute_dtype``, or what FSDP made it say, float32. It is not gathered afterwards."""
    grad, full.grad = full.grad, None
    if dtype is None:
        _grad_dtype.reset(full)
    else:
        full.grad_dtype = dtype
    held = torch.float32 if dtype is None else fsdp.compute_dtype
    full.data = torch.zeros(full._sharded_param._orig_size, dtype=held, device=full.device)
    full._has_full_param = True
    fsdp._free_full_params([full], apply_opt_barrier=False)
    full.grad = grad
