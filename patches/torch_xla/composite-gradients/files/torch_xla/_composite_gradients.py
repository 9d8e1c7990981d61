"""Gradients of torch's composite operators that torch_xla has kernels for, without a false warning."""

from typing import Optional

import torch

__all__ = ["install"]

#: Operators of which torch_xla's kernel calls differentiable operators.
OPERATORS = (
    "cross",
    "diag",
    "inverse",
    "kl_div",
    "logdet",
    "qr",
    "selu",
    "selu_",
    "silu_backward",
    "std",
    "std.dim",
    "svd",
)

_library: Optional[torch.library.Library] = None


def _is_reported(operator: str) -> bool:
    """Whether a backward through this composite operator of an XLA tensor warns that its gradient may be wrong."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = has_kernel(operator, "CompositeImplicitAutograd")
    return composite and has_kernel(operator, "XLA") and not has_kernel(operator, "AutogradXLA")


def install() -> None:
    """Let autograd pass by these operators to what they are made of. Called once, by ``_castoff``."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    for operator in OPERATORS:
        if _is_reported(f"aten::{operator}"):
            _library.impl(operator, torch.library.fallthrough_kernel, "AutogradXLA")
