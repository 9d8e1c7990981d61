"""The steps of nn.GRU, scanned, with the products of all steps in one, where a step does not wait for another.

torch_xla's own scan multiplies the input in each step, keeps the weights, transposed, once for each step until the
backward pass, and sums their gradients step by step, rounded. Here the input's product is one for all steps, and so is
each gradient of a weight, summed in float32, as in ``recurrent_layers.cpp``. The gates, which the backward pass needs,
are computed again from the states, of all steps at once, so that a step of it has one product and little besides.
"""

from collections.abc import Callable
from typing import Any, Optional

import torch
import torch_xla
from torch import Tensor
from torch.nn import functional

from . import _control_flow, runtime

__all__ = ["instead_of"]


def instead_of(scan: Callable) -> Callable:
    """Return a function in the place of that by which torch_xla's GRU runs over the steps of one layer."""

    def scan_or_steps(fn: Callable, init: dict[str, Tensor], xs: Tensor, **options: Any) -> tuple[Any, Tensor]:
        if not _is_taken(init, xs):
            return scan(fn=fn, init=init, xs=xs, **options)
        products = functional.linear(xs, init["w_ih"], init.get("b_ih"))
        bias = init.get("b_hh")
        needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (products, *init.values()))
        operands = products, init["h"], init["w_hh"], bias
        outputs = _Steps.apply(*operands) if needs_grad else _scanned(*operands)
        return {**init, "h": outputs[-1]}, outputs

    return scan_or_steps


def _is_taken(init: dict[str, Tensor], xs: Tensor) -> bool:
    """Several steps of tensors that nothing but autograd looks at; others are torch_xla's."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("xla"):
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        return False
    if runtime.is_spmd():
        return False
    tensors = [xs, *init.values()]
    plain = all(type(t) in (Tensor, torch.nn.Parameter) and t.device.type == "xla" for t in tensors)
    return plain and {t.dtype for t in tensors} == {xs.dtype} and len(xs) > 1 and xs.numel() > 0


def _gates(given: Tensor, own: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """torch's formula, from the products of an input and of the state before it.

    Returns:
        The reset gate, the update gate, the candidate, and the part of ``own`` that the reset gate multiplies.
    """
    given, own = given.chunk(3, -1), own.chunk(3, -1)
    reset, update = (own[0] + given[0]).sigmoid(), (own[1] + given[1]).sigmoid()
    return reset, update, (given[2] + own[2] * reset).tanh(), own[2]


def _state(given: Tensor, own: Tensor, before: Tensor) -> Tensor:
    """The state after a step, by torch's formula."""
    _, update, candidate, _ = _gates(given, own)
    return (before - candidate) * update + candidate


def _scanned(products: Tensor, hidden: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """The states after each step."""
    fixed = [weight] if bias is None else [weight, bias]

    def step(state: Tensor, *others: Tensor) -> list[Tensor]:
        state = _state(others[-2], functional.linear(state, *others[:-2]), state)
        return [state, state]

    return _loop(step, [hidden, *fixed], [products], hidden.dtype)[1]


def _unrolled(products: Tensor, hidden: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """`_scanned`, of operators that differentiate."""
    states = []
    for given in products:
        hidden = _state(given, functional.linear(hidden, weight, bias), hidden)
        states.append(hidden)
    return torch.stack(states)


class _Steps(torch.autograd.Function):
    """`_scanned`; gradients of it that are to be differentiated are those of `_unrolled`."""

    @staticmethod
    def forward(ctx: Any, products: Tensor, hidden: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        outputs = _scanned(products, hidden, weight, bias)
        # The program may write to the outputs; what is made of them stays.
        before = torch.cat([hidden[None], outputs[:-1]])
        ctx.save_for_backward(products, hidden, weight, bias, before)
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        *operands, before = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return _gradients(grad, before, *operands)
        asked = [t for t, needed in zip(operands, ctx.needs_input_grad, strict=True) if needed]
        found = iter(torch.autograd.grad(_unrolled(*operands), asked, grad, create_graph=True))
        return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)


def _gradients(
    grad: Tensor, before: Tensor, products: Tensor, hidden: Tensor, weight: Tensor, bias: Optional[Tensor]
) -> tuple[Optional[Tensor], ...]:
    """Those of `_scanned`'s operands, in float32 for narrower tensors, but for what products take.

    Args:
        before: The states before each step.
    """
    wide = _wide(products.dtype)
    factors = _factors(before, *_gates(products, functional.linear(before, weight, bias)))

    def step(after: Tensor, weight: Tensor, of_output: Tensor, *others: Tensor) -> list[Tensor]:
        *factors, update, _ = others
        of_state = after + of_output.to(wide)
        of_own = _of_products(of_state, *factors)[1]
        through = torch.ops.castoff.dot_general(of_own, weight, [1], [0], [], [], wide)
        return [through + of_state * update, of_state]

    zeros = torch.zeros_like(hidden, dtype=wide)
    of_hidden, of_states = _loop(step, [zeros, weight], [grad, *factors], wide, reverse=True)
    of_products, of_own = _of_products(of_states, *factors[:-1])
    of_own = of_own.flatten(0, 1)
    of_weight = torch.ops.castoff.dot_general(of_own, before.flatten(0, 1), [0], [0], [], [], wide)
    return of_products, of_hidden, of_weight, None if bias is None else of_own.sum(0, dtype=wide)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which gradients are summed."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _factors(before: Tensor, *gates: Tensor) -> list[Tensor]:
    """What `_of_products` takes of each step, and the update gate."""
    dtype, wide = before.dtype, _wide(before.dtype)
    before, reset, update, candidate, own = (t.to(wide) for t in (before, *gates))
    of_candidate = (1 - update) * (1 - candidate * candidate)
    of_update = (before - candidate) * (1 - update) * update
    return [t.to(dtype) for t in (of_candidate, of_update, own * (1 - reset) * reset, reset, update)]


def _of_products(
    of_state: Tensor, of_candidate: Tensor, of_update: Tensor, of_reset: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of an input's product, and of that of the state before, from that of the state after."""
    of_candidate, of_update, dtype = of_state * of_candidate, of_state * of_update, reset.dtype
    both = [of_candidate * of_reset, of_update]
    return tuple(torch.cat([*both, last], -1).to(dtype) for last in (of_candidate, of_candidate * reset))


def _loop(
    step: Callable[..., list[Tensor]],
    carried: list[Tensor],
    read: list[Tensor],
    dtype: torch.dtype,
    *,
    reverse: bool = False,
) -> list[Tensor]:
    """Run ``step`` over the first dimension of tensors, as one XLA While.

    Args:
        step: Takes ``carried``, a slice of each tensor of ``read``, and one more tensor; returns the first of
            ``carried``, whose others do not change, and a tensor of the same shape, of ``dtype``.

    Returns:
        The first of ``carried`` after the last step, and what each step returned besides.
    """
    import torch_xla.core.xla_builder as xb

    from .experimental.scan import dynamic_slice, dynamic_update_slice

    device, steps = carried[0].device, len(read[0])
    results = torch.zeros((steps, *carried[0].shape), dtype=dtype, device=device)
    slices = [torch.empty(t.shape[1:], dtype=t.dtype, device="meta") for t in (*read, results)]
    traced = _control_flow.Traced(step, [*carried, *slices], "step")
    variables = (torch.zeros((), dtype=torch.int32, device=device), *carried, *read, results)
    builder = xb.create_builder("recurrent")
    parameters = [xb.mkparam(builder, i, xb.tensor_shape(v)) for i, v in enumerate(variables)]
    first = 1 + len(carried)

    def more(at: Any, *_: Any) -> Any:
        return at < xb.Op.scalar(at.builder(), steps, dtype=xb.Type.S32)

    def body(at: Any, *values: Any) -> tuple[Any, ...]:
        place = xb.Op.scalar(at.builder(), steps - 1, dtype=xb.Type.S32) - at if reverse else at
        rows = [dynamic_slice(v, place) for v in values[first - 1 :]]
        state, result = traced.call(xb, [*values[: first - 1], *rows], range(0))
        next_one = at + xb.Op.scalar(at.builder(), 1, dtype=xb.Type.S32)
        return next_one, state, *values[1:-1], dynamic_update_slice(values[-1], result, place)

    loop = xb.Op.mkwhile(tuple(parameters), more, body).build("recurrent")
    found = torch_xla._XLAC._xla_user_computation("castoff::recurrent", variables, loop)
    return [found[1], found[-1]]
