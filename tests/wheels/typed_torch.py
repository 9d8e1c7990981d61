"""A user's program, for type checkers. On stock wheels each line with "# castoff" must be an error, and no other."""

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import ImplicitCast  # castoff
from torch.autograd.graph import record_implicit_casts  # castoff
from typing_extensions import assert_type


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        ctx.set_output_grad_dtype(torch.float32, None)  # castoff
        ctx.set_output_grad_dtype("float32")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # castoff
        return torch.mul(x, 3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return torch.mul(grads[0], 3)


def accumulate(model: torch.nn.Linear, inputs: list[Tensor]) -> list[str]:
    weight: torch.nn.Parameter = torch.nn.Parameter(model.weight)
    weight.grad_dtype = torch.float32  # castoff
    weight.grad_dtype = None  # castoff
    name: str = weight.grad_dtype  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # castoff
    assert_type(inputs[0].grad_dtype, Optional[torch.dtype])  # castoff
    with record_implicit_casts() as casts:
        for one in inputs:
            torch.autograd.backward(torch.mm(one, weight).sum())  # Tensor.backward has no types, upstream
    assert_type(casts, list[ImplicitCast])  # castoff
    return [name, *(described(cast) for cast in casts)]


def described(cast: ImplicitCast) -> str:
    assert_type(cast.from_dtype, torch.dtype)  # castoff
    assert_type(cast.shape, tuple[int, ...])  # castoff
    assert_type(cast.forward_stack, Optional[str])  # castoff
    return f"{cast.produced_by}[{cast.index}] -> {cast.demanded_by}"
