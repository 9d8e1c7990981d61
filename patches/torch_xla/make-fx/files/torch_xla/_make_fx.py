"""make_fx of functions of XLA tensors.

An XLA tensor is a wrapper of functionalization's. What ``make_fx`` records is below that, and sees the tensor within.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import _MakefxTracer
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

__all__ = ["install"]


def _is_wrapped(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla" and torch._is_functional_tensor(value)


def _unwrapped(value: Any) -> Any:
    if not _is_wrapped(value):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value)


def _of_unwrapped(function: Callable, arguments: tuple) -> Callable:
    """``function``, but of the tensors within the wrappers of ``arguments``, and returning those within its own."""
    given = tree_leaves(arguments)
    wrapped = [_is_wrapped(leaf) for leaf in given]
    differentiated = [isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in given]

    def functional(*inner: Any) -> Any:
        leaves, spec = tree_flatten(inner)
        outer = [
            torch._to_functional_tensor(leaf).requires_grad_(grad) if is_wrapped else leaf
            for leaf, is_wrapped, grad in zip(leaves, wrapped, differentiated, strict=True)
        ]
        result = function(*tree_unflatten(outer, spec))
        with torch.no_grad():
            for before, wrapper in zip(leaves, outer, strict=True):
                after = _unwrapped(wrapper)
                if after is not before:
                    before.copy_(after)
        return tree_map(_unwrapped, result)

    return functional


def install() -> None:
    """Let ``make_fx`` trace functions of XLA tensors. Called once, by ``_castoff``."""
    trace = _MakefxTracer.trace

    def of_xla_tensors(self: _MakefxTracer, f: Callable, *args: Any) -> torch.fx.GraphModule:
        if self.tracing_mode == "real" and any(map(_is_wrapped, tree_leaves(args))):
            return trace(self, _of_unwrapped(f, args), *tree_map(_unwrapped, args))
        return trace(self, f, *args)

    _MakefxTracer.trace = of_xla_tensors
