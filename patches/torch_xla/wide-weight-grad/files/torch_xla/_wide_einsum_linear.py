"""Wide gradients of XLAPatchedLinear (torch_xla/distributed/spmd/xla_sharding.py), whose backward is its own."""

from typing import Optional

import torch
from torch import _castoff as _torch_castoff
from torch import _grad_dtype

__all__ = ["backward"]

Gradients = tuple[Optional[torch.Tensor], ...]


def _is_wide(operand: Optional[torch.Tensor], needs_grad: bool) -> bool:
    """Whether the gradient of ``operand``, a saved one, is wanted in float32 or wider."""
    if operand is None or not needs_grad or operand.dtype not in (torch.bfloat16, torch.float16):
        return False
    return _grad_dtype.demanded(operand) in (torch.float32, torch.float64)


def _narrow(grad_output, input, weight, bias, wanted: tuple[bool, bool, bool]) -> Gradients:
    """Those of the gradients that are wanted, as stock makes them."""
    if hasattr(torch.ops.xla, "einsum_linear_backward"):
        return torch.ops.xla.einsum_linear_backward(grad_output, input, weight, bias, *wanted)
    # torch_xla 2.6
    return (
        torch.einsum("...o,oi->...i", grad_output, weight) if wanted[0] else None,
        torch.einsum("...o,...i->oi", grad_output, input) if wanted[1] else None,
        torch.einsum("...o->o", grad_output) if wanted[2] else None,
    )


def backward(ctx, grad_output: torch.Tensor) -> Optional[Gradients]:
    """The gradients of input, weight and bias; None if neither of the latter has a wide grad_dtype.

    The wide ones are float32: the weight's is one dot over all leading dimensions of ``grad_output``
    (…, out) and the input (…, in), which keeps the shardings of the two.
    """
    if not _torch_castoff.enabled("wide-weight-grad") or not _grad_dtype.in_use():
        return None
    needs = ctx.needs_input_grad
    input, weight, bias = ctx.saved_tensors
    wide_weight, wide_bias = _is_wide(weight, needs[1]), _is_wide(bias, len(needs) > 2 and needs[2])
    if not wide_weight and not wide_bias:
        return None
    narrow_weight, narrow_bias = needs[1] and not wide_weight, bias is not None and needs[2] and not wide_bias
    of_input, of_weight, of_bias = _narrow(grad_output, input, weight, bias, (needs[0], narrow_weight, narrow_bias))
    leading = list(range(grad_output.dim() - 1))
    if wide_weight:
        of_weight = torch.ops.castoff.dot_general(grad_output, input, leading, leading, [], [], torch.float32)
    if wide_bias:
        of_bias = grad_output.sum(leading, dtype=torch.float32) if leading else grad_output.float()
    return of_input, of_weight, of_bias
