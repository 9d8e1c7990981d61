"""torch.optim's optimizers refuse parameters whose gradients are wider than they are, where their state would not be.

Most make their state in the parameter's dtype. Of these some raise at the first step ("expected dtype
c10::BFloat16 for `end` but got dtype float"), the others keep rounded moments and say nothing.
"""

import inspect
from typing import Any, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

__all__ = ["install"]

#: Those whose state is in the parameter's dtype. That of SGD, Adafactor, Muon and LBFGS is in the gradient's.
_NARROW_STATE = (
    *("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SparseAdam"),
)


def install() -> None:
    """Look at every step of every optimizer from now on."""
    register_optimizer_step_pre_hook(_refuse)


def _refuse(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Raise RuntimeError where ``optimizer`` cannot keep float32 state for its float32 gradients."""
    from torch_xla.amp import MasterWeights

    if isinstance(optimizer, MasterWeights):
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            grad = p.grad
            if grad is None or grad.dtype == p.dtype or grad.dtype.itemsize <= p.dtype.itemsize:
                continue
            what = "a fused step needs gradients in the parameter's dtype" if group.get("fused") else _keeps(optimizer)
            if what is not None:
                name = type(optimizer).__name__
                raise RuntimeError(
                    f"{name}: {what}, and a parameter of dtype {p.dtype} has a gradient of dtype {grad.dtype}. Let the "
                    "optimizer work on float32 copies of the parameters: "
                    f"torch_xla.amp.MasterWeights(params, {type(optimizer).__module__}.{name}, …)"
                )


def _keeps(optimizer: torch.optim.Optimizer) -> Optional[str]:
    """What is wrong with the state of ``optimizer``; None if nothing is, or its step is not torch's."""
    step = inspect.unwrap(type(optimizer).step)
    for name in _NARROW_STATE:
        if inspect.unwrap(getattr(torch.optim, name).step) is step:
            return "its state has the dtype of its parameters"
    return None
