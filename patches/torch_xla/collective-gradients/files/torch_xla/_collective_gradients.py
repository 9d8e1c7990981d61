"""``xm.reduce_scatter`` and ``xm.all_to_all`` with gradients, where their input needs one."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["install"]

_IDS = ("channel_id", "use_global_device_ids")
"""Arguments that torch_xla 2.6 does not have."""


class _ReduceScatter(torch.autograd.Function):
    """The sum over the group, times the scale: each rank gets a shard. Its gradient is the shards', gathered."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, call: Callable, given: dict[str, Any]) -> torch.Tensor:
        ctx.given = given
        return call(**{**given, "input": tensor})

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        from .core import xla_model as xm

        given = ctx.given
        if given["shard_count"] > 1:
            grad = xm.all_gather(
                grad,
                given["scatter_dim"],
                given["groups"],
                pin_layout=False,
                **{name: given[name] for name in _IDS if name in given},
            )
        return grad * given["scale"] if given["scale"] != 1 else grad.clone(), None, None


class _AllToAll(torch.autograd.Function):
    """An exchange of parts. Its gradient goes back where it came from."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, call: Callable, given: dict[str, Any]) -> torch.Tensor:
        ctx.call, ctx.given = call, given
        return call(**{**given, "value": tensor})

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        given = dict(ctx.given, value=grad)
        given["split_dimension"], given["concat_dimension"] = given["concat_dimension"], given["split_dimension"]
        return ctx.call(**given), None, None


def _is_sum(given: dict[str, Any]) -> bool:
    return given["reduce_type"] == "sum" and given["output"] is None


def _differentiable(
    call: Callable, of: type[torch.autograd.Function], name: str, is_served: Callable[[dict[str, Any]], bool]
) -> Callable:
    """``call`` by ``of``, where its argument ``name`` is a tensor that needs a gradient."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def differentiable(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return call(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        tensor = given[name]
        if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad or not is_served(given):
            return call(*args, **kwargs)
        del given[name]
        return of.apply(tensor, call, given)

    return differentiable


def install() -> None:
    """Stand before the two functions of ``torch_xla.core.xla_model``. Called once, by ``_castoff``."""
    from .core import xla_model as xm

    xm.reduce_scatter = _differentiable(xm.reduce_scatter, _ReduceScatter, "input", _is_sum)
    xm.all_to_all = _differentiable(xm.all_to_all, _AllToAll, "value", lambda given: True)
