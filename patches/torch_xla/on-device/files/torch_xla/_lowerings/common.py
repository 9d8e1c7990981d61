"""What the functions of the table share."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def only(condition: Callable) -> Callable:
    """A decorator: the function is for the calls whose arguments meet the condition.

    For operators with a kernel of torch_xla's own, which is to answer all others as soon as without castoff.
    """

    def decorated(function: Callable) -> Callable:
        function.condition = condition
        return function

    return decorated


def prepared(prepare: Callable) -> Callable:
    """A decorator: the function takes the tuple that ``prepare`` makes of the operator's arguments.

    That is made anew for each call, the function's graph of what it holds only once.
    """

    def decorated(function: Callable) -> Callable:
        function.prepare = prepare
        return function

    return decorated


def keeps_dtypes(function: Callable) -> Callable:
    """A decorator: the function takes bfloat16 and float16 as they are, and returns what is to be returned."""
    function.keeps_dtypes = True
    return function


def drawn(draw: Callable) -> Callable:
    """A decorator: in place of the generator, its last argument, the function takes what ``draw`` gives of all."""
    return prepared(lambda *arguments: (*arguments[:-1], draw(*arguments)))


def tensors_in(arguments: Iterable) -> list[Tensor]:
    """Those of an operator's arguments; torch's pytree, which knows more containers, takes much longer."""
    found: list[Tensor] = []
    for value in arguments:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


def integral(x: Tensor) -> bool:
    return not x.is_floating_point() and not x.is_complex()


def wide_of(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def as_floating(x: Tensor) -> Tensor:
    return x.to(torch.get_default_dtype()) if integral(x) else x


def promoted(x: Tensor, y: Tensor, floating: bool = False) -> tuple[Tensor, Tensor]:
    """Both in the dtype of ``x + y``; with ``floating``, in the default dtype if that is an integer."""
    dtype = torch.result_type(x, y)
    if floating and not dtype.is_floating_point and not dtype.is_complex:
        dtype = torch.get_default_dtype()
    return x.to(dtype), y.to(dtype)


def add_along(values: Tensor, index: Tensor, size: int, dim: int) -> Tensor:
    """The adjoint of ``index_select(dim, index)``: sums of the slices of ``values`` with the same index."""
    dim = dim % values.dim()
    shape = [*values.shape[:dim], size, *values.shape[dim + 1 :]]
    return values.new_zeros(shape).index_add(dim, index, values)


_AUTOGRAD = (torch._C.DispatchKey.AutogradXLA, torch._C.DispatchKey.AutogradFunctionality)


@contextlib.contextmanager
def _autograd() -> Iterator[None]:
    """Autograd within a kernel, which the dispatcher calls with autograd off."""
    excluded = [torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in _AUTOGRAD]
    for key in _AUTOGRAD:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for key, was in zip(_AUTOGRAD, excluded, strict=True):
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, was)


def gradients(function: Callable, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[Any, ...]:
    """The gradients of ``inputs`` of a differentiable function of them; zeros where it does not use one."""
    with _autograd():
        inputs = [t.detach().requires_grad_() for t in inputs]
        outputs = function(*inputs)
        found = torch.autograd.grad(outputs, inputs, grads, allow_unused=True)
    return tuple(torch.zeros_like(t) if g is None else g for t, g in zip(inputs, found, strict=True))
