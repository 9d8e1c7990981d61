"""torch's own samples of every operator, for the CPU, for float64 and for XLA; and samples that are made.

The samples are those of ``torch.testing._internal.common_methods_invocations.op_db``, or made of them. One is a call:
an input, positional and keyword arguments, of which the tensors are replaced by such of another dtype, device or
layout.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import plan
import random_operators
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

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
    promoted: Call | None = None
    """The call with all floating-point tensors in float64, of one in which one has another dtype."""

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


def has_special(op: Any) -> bool:
    """Whether there are samples of special values: of elementwise operators of one and two tensors, and reductions.

    torch's kernels of orthogonal polynomials take as many steps as the degree says, which would be 2**53.
    """
    return isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)) and "_polynomial_" not in op.name


def special(op: Any, dtype: torch.dtype) -> list[tuple[int, Call]]:
    """Samples of an operator that :func:`has_special`: zeros, infinities, NaN, limits of the dtype and of others.

    The first is a tensor of them; of two operands, each beside each; of a reduction, rows of two neighbours and 1. The
    others are one of 0 dimensions, an empty one, an expanded one, and one of 4 dimensions in the memory format
    channels_last.
    """
    values = special_values(dtype)
    expanded, image = values[:2, None].expand(2, 4), values.repeat(12)[:24].view(1, 2, 3, 4)
    others = [values[-1], values[:0], expanded, image.to(memory_format=torch.channels_last)]
    if isinstance(op, BinaryUfuncInfo):
        inputs = [(values[:, None], values[None, :]), *((other, other) for other in others)]
    elif isinstance(op, ReductionOpInfo):
        rows = torch.stack([values, values.roll(1), torch.ones_like(values)], -1)
        inputs = [(rows,), (values[:1],), *((other,) for other in others)]
    else:
        inputs = [(values,), *((other,) for other in others)]
    keywords = {"dim": -1} if isinstance(op, ReductionOpInfo) else {}
    if isinstance(op, UnaryUfuncInfo):
        keywords = op.sample_kwargs("cpu", dtype, values)[0]
    return [
        (number, Call(op.op, tensors, keywords if tensors[0].dim() else _without_dim(keywords), lambda out: out))
        for number, tensors in enumerate(inputs)
    ]


def _without_dim(keywords: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keywords.items() if name != "dim"}


def other_dtype(op: Any, dtype: torch.dtype) -> list[tuple[int, Call]]:
    """Samples in float32, of which one floating-point tensor is in `dtype`. One of a single tensor, which the operator
    has in `dtype`, is among torch's own.
    """
    found = []
    for _, call in samples(op, torch.float32, plan.QUICK):
        leaves, spec = tree_flatten((call.arguments, call.keywords))
        tensors = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        if len(tensors) > 1 or not supported(op, dtype):
            floats = [i for i in tensors if leaves[i].is_floating_point()]
            found += [_with_leaf(call, leaves, spec, i, leaves[i].to(dtype)) for i in floats]
    return list(enumerate(found))


def _with_leaf(call: Call, leaves: list[Any], spec: Any, i: int, other: torch.Tensor) -> Call:
    """The call with another leaf, which knows itself with that leaf and all floating-point ones in the widest dtype."""
    widest = other.to(torch.complex128 if other.is_complex() else torch.float64)
    wider = tree_unflatten([*map(wide, leaves[:i]), widest, *map(wide, leaves[i + 1 :])], spec)
    arguments, keywords = tree_unflatten([*leaves[:i], other, *leaves[i + 1 :]], spec)
    promoted = Call(call.function, *wider, call.process_output)
    return Call(call.function, arguments, keywords, call.process_output, promoted)


def has_other_dtype(op: Any) -> bool:
    """Whether there are samples in which one tensor has another dtype: of operators that draw no random numbers."""
    return supported(op, torch.float32) and op.full_name not in random_operators.NAMES


def pairs(kind: str) -> list[plan.Pair]:
    """The operators and dtypes of which there are samples of a kind."""
    if kind == "other":
        return [(name, dtype) for name, op in operators().items() if has_other_dtype(op) for dtype in plan.dtypes(kind)]
    named = [(name, op) for name, op in operators().items() if kind == "torch" or has_special(op)]
    return [(name, dtype) for name, op in named for dtype in plan.dtypes(kind) if supported(op, DTYPES[dtype])]


def of_kind(kind: str, op: Any, dtype: torch.dtype, count: int) -> list[tuple[int, Call]]:
    """Samples of one of `plan.KINDS`; the count is that of torch's own."""
    return {"special": special, "other": other_dtype}[kind](op, dtype) if kind != "torch" else samples(op, dtype, count)


def special_values(dtype: torch.dtype) -> torch.Tensor:
    """Zeros, infinities, NaN, the limits of a dtype, and integers that float32 or float64 has not; 1-d."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        info, inf = torch.finfo(dtype), float("inf")
        small = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 100.0, info.eps, info.smallest_normal, info.max, inf]
        return torch.tensor([*small, *(-value for value in small), float("nan")], dtype=torch.float64).to(dtype)
    info = torch.iinfo(dtype)
    wanted = [0, 1, 2, 3, 7, 100, 2**24 + 1, 2**31 - 1, 2**53 + 1, info.max]
    wanted += [-value for value in wanted[1:]]  # not the smallest, which torch cannot divide by -1
    return torch.tensor(sorted({value for value in wanted if info.min <= value <= info.max}), dtype=dtype)


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
