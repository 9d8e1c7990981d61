"""Wide gradients of weights that torch_xla.experimental.scan runs over, as scan_layers stacks those of its layers.

Scan traces one iteration with tensors of its own in place of the slices. They are given the gradient dtypes that the
sequences are asked for, so that the traced backward makes these gradients in them.
"""

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import _grad_dtype
from torch.utils._pytree import tree_leaves

__all__ = ["declare", "key"]


def declare(slices: Any, xs: Any) -> None:
    """Give the leaves of the pytree ``slices`` the gradient dtypes of those of ``xs``, one dimension larger."""
    if not _grad_dtype.in_use():
        return
    for one, sequence in zip(tree_leaves(slices), tree_leaves(xs), strict=True):
        dtype = _grad_dtype.demanded(sequence)
        if sequence.requires_grad and dtype not in (None, sequence.dtype):
            one.grad_dtype = dtype


def key(slices: Sequence[torch.Tensor]) -> tuple[Optional[torch.dtype], ...]:
    """What a trace with ``slices`` depends on besides their shapes and dtypes."""
    return tuple(map(_grad_dtype.explicit, slices)) if _grad_dtype.in_use() else ()
