"""``xm.reduce_scatter``, ``all_to_all`` and ``collective_permute`` with gradients, where their input needs one.

And what collectives write to is seen by what shares its memory.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from . import runtime

__all__ = ["install"]

_IDS = ("channel_id", "use_global_device_ids")
"""Arguments that torch_xla 2.6 does not have."""


def _scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
    """A tensor of its own; a scale of 1 is no product in the graph."""
    return x * scale if scale != 1 else x.clone()


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
        return _scaled(grad, given["scale"]), None, None


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


class _CollectivePermute(torch.autograd.Function):
    """Tensors go from the first rank of each pair to the second, and their gradients back; other ranks get zeros."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, call: Callable, given: dict[str, Any]) -> torch.Tensor:
        ctx.call, ctx.pairs = call, given["pairs"]
        return call(tensor, ctx.pairs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return ctx.call(grad, [[target, source] for source, target in ctx.pairs]), None, None


def _is_sum(given: dict[str, Any]) -> bool:
    return given["reduce_type"] == "sum" and given["output"] is None


# Under SPMD the program is one rank, whatever the number of devices. XLA's partitioner refuses the instructions.


def _refuse_more_than_one(call: str, argument: str, count: int) -> None:
    if count != 1:
        raise ValueError(
            f"xm.{call}: expected {argument} 1 under SPMD, where the program is one rank, and found {count}. Mark how "
            "tensors are sharded instead (torch_xla.distributed.spmd.mark_sharding)."
        )


def _reduce_scatter_alone(x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    _refuse_more_than_one("reduce_scatter", "shard_count", given["shard_count"])
    return _scaled(x, given["scale"])


def _all_to_all_alone(x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    _refuse_more_than_one("all_to_all", "split_count", given["split_count"])
    return x.clone()


def _collective_permute_alone(x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    ranks = {rank for pair in given["pairs"] for rank in pair}
    _refuse_more_than_one("collective_permute", "a number of ranks of", len(ranks | {0}))
    return x.clone() if ranks else torch.zeros_like(x)


def _differentiable(
    call: Callable,
    of: type[torch.autograd.Function],
    name: str,
    alone: Callable[[torch.Tensor, dict[str, Any]], torch.Tensor],
    is_served: Callable[[dict[str, Any]], bool] = lambda given: True,
) -> Callable:
    """``call`` by ``of``, where its argument ``name`` is a tensor that needs a gradient; by ``alone`` under SPMD."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def differentiable(*args: Any, **kwargs: Any) -> Any:
        is_spmd = runtime.is_spmd()
        if not torch.is_grad_enabled() and not is_spmd:
            return call(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        tensor = given[name]
        if is_spmd and isinstance(tensor, torch.Tensor) and given.get("output") is None:
            return alone(tensor, given)
        if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad or not is_served(given):
            return call(*args, **kwargs)
        del given[name]
        return of.apply(tensor, call, given)

    return differentiable


# torch_xla writes to tensors that are given to be written to beneath functionalization, which knows of no other.


def _publishing(call: Callable, name: str) -> Callable:
    """``call``, whose argument ``name`` may be a tensor or a list of tensors that it writes to.

    The tensors that these are views of, and their other views, see what was written.
    """
    signature = inspect.signature(call)
    position = list(signature.parameters).index(name)

    @functools.wraps(call)
    def publishing(*args: Any, **kwargs: Any) -> Any:
        written = args[position] if len(args) > position else kwargs.get(name)
        if written is None or torch.compiler.is_compiling():
            return call(*args, **kwargs)
        tensors = written if isinstance(written, (list, tuple)) else (written,)
        views = [x for x in tensors if isinstance(x, torch.Tensor) and torch._is_functional_tensor(x)]
        for view in views:
            torch._functionalize_sync(view)
        result = call(*args, **kwargs)
        for view in views:
            torch._functionalize_commit_update(view)
            torch._functionalize_sync(view)
        return result

    return publishing


def _publishing_lists(call: Callable) -> Callable:
    """``xm.all_reduce``, which writes to its inputs if they are a list."""
    publishing = _publishing(call, "inputs")

    @functools.wraps(call)
    def all_reduce(*args: Any, **kwargs: Any) -> Any:
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
        return (call if isinstance(inputs, torch.Tensor) else publishing)(*args, **kwargs)

    return all_reduce


def install() -> None:
    """Stand before functions of ``torch_xla.core.xla_model``. Called once, by ``_castoff``."""
    from .core import xla_model as xm

    xm.all_reduce = _publishing_lists(xm.all_reduce)
    xm.all_gather = _publishing(xm.all_gather, "output")
    xm.reduce_scatter = _publishing(xm.reduce_scatter, "output")
    xm.reduce_scatter = _differentiable(xm.reduce_scatter, _ReduceScatter, "input", _reduce_scatter_alone, _is_sum)
    xm.all_to_all = _differentiable(xm.all_to_all, _AllToAll, "value", _all_to_all_alone)
    xm.collective_permute = _differentiable(
        xm.collective_permute, _CollectivePermute, "value", _collective_permute_alone
    )
