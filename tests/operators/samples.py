"""torch's own samples of every operator, for the CPU, for float64 and for XLA.

The samples are those of ``torch.testing._internal.common_methods_invocations.op_db``. One is a call: an input,
positional and keyword arguments, of which the tensors are replaced by such of another dtype, device or layout.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import plan
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

DTYPES = {name: getattr(torch, full) for name, full in plan.DTYPES.items()}
SEED = 20260
_ENOUGH = 400
"""No operator's list of samples is looked at further than this."""


@dataclass
class Call:
    """One call of an operator, with its tensors on the CPU."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    process_output: Callable[[Any], Any]

    def map(self, change: Callable[[Any], Any]) -> Call:
        """The call with every leaf of its arguments changed."""
        arguments, keywords = tree_map(change, (self.arguments, self.keywords))
        return Call(self.function, arguments, keywords, self.process_output)

    def tensors(self) -> list[torch.Tensor]:
        return [x for x in tree_leaves((self.arguments, self.keywords)) if isinstance(x, torch.Tensor)]

    def __call__(self) -> Any:
        torch.manual_seed(SEED)
        return self.function(*self.arguments, **self.keywords)


def operators() -> dict[str, Any]:
    """Every operator of op_db by its full name."""
    return {op.full_name: op for op in op_db}


def supported(op: Any, dtype: torch.dtype) -> bool:
    return op.supports_dtype(dtype, "cpu")


def differentiable(op: Any, dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


def samples(op: Any, dtype: torch.dtype, count: int) -> list[tuple[int, Call]]:
    """At most `count` of an operator's samples with their numbers, spread over all that it has.

    A smaller count gives some of those that `plan.ALL` gives.
    """
    random.seed(SEED)
    torch.manual_seed(SEED)
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.seed(SEED)
    found = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), _ENOUGH))
    return [(i, _call(op, found[i])) for i in plan.chosen(len(found), count)]


def _call(op: Any, sample: Any) -> Call:
    process = getattr(sample, "output_process_fn_grad", None) or (lambda out: out)
    keywords = dict(sample.kwargs)
    if getattr(op, "is_factory_function", False):
        keywords["device"] = "cpu"
    return Call(op.op, (sample.input, *sample.args), keywords, process)


# ---- changes of a call's leaves


def fresh(leaf: Any) -> Any:
    """A copy of a tensor, so that one run cannot see what another wrote."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def wide(leaf: Any) -> Any:
    """Floating-point tensors and dtypes as float64."""
    if isinstance(leaf, torch.Tensor):
        copy = fresh(leaf)
        return copy.double() if leaf.is_floating_point() else copy
    if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
        return torch.float64
    return leaf


def on(device: torch.device) -> Callable[[Any], Any]:
    """Tensors and the names of devices, on another device."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device)
        is_cpu = (isinstance(leaf, str) and leaf == "cpu") or (isinstance(leaf, torch.device) and leaf.type == "cpu")
        return device if is_cpu else leaf

    return change


class Views:
    """Makes each tensor a view, not contiguous where it can be, of a larger or permuted base."""

    def __init__(self, device: torch.device) -> None:
        self.bases: list[torch.Tensor] = []
        self._device = device

    def __call__(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return on(self._device)(leaf)
        t = leaf.detach()
        if t.layout != torch.strided or t.dim() == 0:
            self.bases.append(t.clone().to(self._device))
            return self.bases[-1]
        if t.dim() == 1:
            self.bases.append(t.repeat_interleave(2).to(self._device))
            return self.bases[-1][::2]
        self.bases.append(t.mT.clone(memory_format=torch.contiguous_format).to(self._device))
        return self.bases[-1].mT
