"""Checkpoints: shards are written once, whatever holds a copy of them, and safetensors can ask where a tensor is."""

import dataclasses
import functools
from collections.abc import Callable

import torch
from torch.distributed.checkpoint.planner import SavePlan

__all__ = ["install", "one_of_each_instead_of"]

#: Whether the topic is on: the module with the planners is imported later than it is installed, if at all.
_installed = False


def install() -> None:
    """Let torch_xla's planners of checkpoints and safetensors use this module. Called once, by ``_castoff``."""
    global _installed
    _installed = True
    torch.UntypedStorage.data_ptr = _of_any_storage(torch.UntypedStorage.data_ptr)


def _of_any_storage(data_ptr: Callable[[torch.UntypedStorage], int]) -> Callable[[torch.UntypedStorage], int]:
    """``data_ptr``, which is 0 of a storage on XLA, as on the meta device and as ``Tensor.data_ptr()``.

    safetensors compares pointers to find tensors that share memory, and takes 0 for none.
    """

    @functools.wraps(data_ptr)
    def of_any_storage(self: torch.UntypedStorage) -> int:
        try:
            return data_ptr(self)
        except RuntimeError:
            if self.device.type != "xla":
                raise
            return 0

    return of_any_storage


def one_of_each_instead_of(stock: Callable) -> Callable:
    """Return `_one_of_each` if the topic is on, else torch_xla's own."""
    return _one_of_each if _installed else stock


def _one_of_each(all_plans: list[SavePlan]) -> list[SavePlan]:
    """Plans without the items that are in them before: the same piece of the same tensor.

    A tensor that is sharded over some axes of a mesh has copies of each piece, on several devices of one process, too.
    """
    seen = set()

    def first_of_each(plan: SavePlan) -> SavePlan:
        items = []
        for item in plan.items:
            if item.index not in seen:
                seen.add(item.index)
                items.append(item)
        return dataclasses.replace(plan, items=items)

    return [first_of_each(plan) for plan in all_plans]
