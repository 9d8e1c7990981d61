"""``while_loop``, ``fori_loop`` and ``scan`` for functions that torch_xla's own loops do not lower.

A loop's functions are traced with placeholders, and the parameters of what they lower to are found by the tensors that
they stand for: a carried tensor that a function does not read is no parameter of it, and a tensor that it captures is
one more. So one tuple of loop variables serves the condition and the body, whatever each of them reads.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
import torch_xla
from torch.utils._pytree import tree_flatten

__all__ = [
    "Traced",
    "as_elements_of",
    "backward_graph",
    "device_data_of",
    "go_back",
    "install",
    "needs_gradient",
    "no_device_data",
    "traced_apart",
    "while_loop_instead_of",
]

_XLAC = torch_xla._XLAC

#: Whether the topic is on: the modules with the loops are imported later than it is installed, if at all.
_installed = False

#: The next seed of a body that draws random numbers is ``seed * _MULTIPLIER + _INCREMENT`` (Knuth's MMIX).
_MULTIPLIER, _INCREMENT = 6364136223846793005, 1442695040888963407


def install() -> None:
    """Let the loops of torch_xla.experimental use this module. Called once, by ``_castoff``."""
    global _installed
    _installed = True


def as_elements_of(stack, element):
    """``element``, to be written to a slice of ``stack``, in the element type of ``stack``.

    A tensor can hold another type than the dtype that it states, which is what the stack is made with: dropout's mask
    is bool, and holds float32.
    """
    kind = stack.shape().dtype
    return element.cast(kind) if _installed and element.shape().dtype != kind else element


def device_data_of(outputs: Sequence[torch.Tensor]) -> tuple[list[int], list[torch.Tensor]]:
    """The ids of the data that ``outputs`` are computed from, and the data as tensors; among them the random seed.

    Asking gives each of them a new id. So the seed is set again, to what it is: the next loop of the same step finds it
    by its id, too, and its iterations draw numbers of their own.
    """
    ids, tensors = _XLAC._get_tensors_xla_device_data_node(outputs)
    if _installed and _XLAC._get_seed_info_id() in ids:
        device = str(outputs[0].device)
        _XLAC._xla_set_rng_seed(_XLAC._xla_get_rng_seed(device), device)
    return ids, tensors


def traced_apart(trace: Callable) -> Callable:
    """Trace a scan's function without the caller's hooks for saved tensors.

    The trace is kept for later calls. `torch.utils.checkpoint` counts what is saved by such hooks, and would expect the
    recomputation to trace once more.
    """

    @functools.wraps(trace)
    def traced(*args: Any, **kwargs: Any) -> Any:
        if not _installed:
            return trace(*args, **kwargs)
        outer = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
        try:
            return trace(*args, **kwargs)
        finally:
            torch._C._autograd._saved_tensors_hooks_set_tracing(outer)

    return traced


def called_eagerly(scan: Callable) -> Callable:
    """Let torch.compile break the graph at a scan, which traces its function itself: dynamo cannot trace that."""
    eagerly = torch.compiler.disable(scan)

    @functools.wraps(scan)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (eagerly if _installed else scan)(*args, **kwargs)

    return call


def needs_gradient(tensor: torch.Tensor, asked: bool) -> bool:
    """Whether a tensor that a scan carries or reads is traced with a gradient: numbers that count have none."""
    return asked and (not _installed or tensor.is_floating_point() or tensor.is_complex())


def no_device_data(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as the result of an operator, in its dtype: of a mask torch_xla's own makes int64."""
    return torch.ne(tensor, False) if _installed and tensor.dtype == torch.bool else tensor * 1


class _Differentiable:
    """Which results of a scan's function have a gradient: of tensors that it returns as they are, some have none."""

    def __init__(self, which: list[bool]) -> None:
        self._which = which

    def __bool__(self) -> bool:
        return any(self._which)

    def of(self, gradients: Sequence[Optional[torch.Tensor]]) -> list[Optional[torch.Tensor]]:
        """Those of ``gradients`` of all results that the backward graph takes."""
        return [gradient for gradient, has in zip(gradients, self._which, strict=True) if has]

    def filled(
        self, gradients: Sequence[Optional[torch.Tensor]], carried: Sequence[torch.Tensor]
    ) -> list[Optional[torch.Tensor]]:
        """``gradients``, the first of which are carried on, with zeros for what the function does not depend on."""
        if not _installed:
            return list(gradients)
        first = [torch.zeros_like(c) if g is None else g for g, c in zip(gradients, carried, strict=False)]
        return [*first, *gradients[len(first) :]]


def go_back(results: Sequence[torch.Tensor]) -> _Differentiable:
    """Trace the backward of a scan's function, from those of its results that have a gradient."""
    which = [result.requires_grad or not _installed for result in results]
    chosen = [result for result, has in zip(results, which, strict=True) if has]
    if chosen:
        torch.autograd.backward(chosen, [torch.ones_like(result) for result in chosen])
    return _Differentiable(which)


def backward_graph(get_graph: Callable, differentiable: _Differentiable) -> Callable:
    """The backward graph of a scan's function, which was traced if one of its results has a gradient."""
    return get_graph() if differentiable else _no_gradient


def _no_gradient(*_: torch.Tensor) -> None:
    raise RuntimeError("scan: expected a function with a result that has a gradient, but it has none.")


def while_loop_instead_of(stock: Callable) -> Callable:
    """Return `_while_loop` if the topic is on, else torch_xla's own."""
    if not _installed:
        return stock
    from . import _castoff  # imported after this module, which torch_xla imports with its scan

    return _castoff.untraced(_while_loop)  # torch.while_loop calls it under dynamo


def _while_loop(
    cond_fn: Callable,
    body_fn: Callable,
    carried_inputs: Sequence[torch.Tensor],
    additional_inputs: Optional[Sequence[torch.Tensor]] = None,
    fake_tensor: bool = False,  # torch_xla's own replaces inputs by fake ones where asked to
) -> list[torch.Tensor]:
    """Run ``carried = body_fn(*carried, *additional)`` while ``cond_fn(*carried, *additional)``, as one XLA While.

    Args:
        cond_fn: Returns bool[].
        body_fn: Returns tensors of the shapes and dtypes of ``carried_inputs``, in their order.
        carried_inputs: XLA tensors: the values before the first iteration.
        additional_inputs: XLA tensors that do not change.
        fake_tensor: Not used.

    Returns:
        The carried tensors after the last iteration.

    Raises:
        RuntimeError: A function returns something else.
    """
    import torch_xla.core.xla_builder as xb

    inputs = [*carried_inputs, *(additional_inputs or ())]
    condition = Traced(cond_fn, inputs, "condition")
    body = Traced(body_fn, inputs, "body")
    condition.expect("cond_fn", [torch.empty((), dtype=torch.bool, device="meta")])
    body.expect("body_fn", carried_inputs)

    variables = inputs + condition.captured + body.captured
    of_condition = range(len(inputs), len(inputs) + len(condition.captured))
    of_body = range(of_condition.stop, len(variables))
    builder = xb.create_builder("while_loop")
    parameters = [xb.mkparam(builder, i, xb.tensor_shape(v)) for i, v in enumerate(variables)]

    def call_condition(*values):
        return condition.call(xb, values, of_condition)[0]

    def call_body(*values):
        after = list(values)
        for i, result in enumerate(body.call(xb, values, of_body)):
            after[i] = as_elements_of(values[i], result)
        if body.seed is not None:
            seed = of_body[body.seed]
            after[seed] = _next_seed(xb, values[seed])
        return tuple(after)

    loop = xb.Op.mkwhile(tuple(parameters), call_condition, call_body)
    results = _XLAC._xla_user_computation("xla::while_loop", tuple(variables), loop.build("while_loop"))
    return list(results[: len(carried_inputs)])


def _next_seed(xb, seed):
    multiplier, increment = (xb.Op.scalar(seed.builder(), c, dtype=xb.Type.S64) for c in (_MULTIPLIER, _INCREMENT))
    return seed * multiplier + increment


class Traced:
    """A function of XLA tensors, lowered.

    ``captured`` are the tensors that it reads besides its arguments, ``seed`` the index among them of the seed of
    random numbers, if it draws any.
    """

    def __init__(self, function: Callable, arguments: Sequence[torch.Tensor], name: str) -> None:
        placeholders = [_placeholder(a) for a in arguments]
        self._outputs = [self._as_tensor(o, arguments[0]) for o in tree_flatten(function(*placeholders))[0]]
        context = _XLAC.lowering.LoweringContext(name)
        context.set_name_string(name)
        context.build(self._outputs)
        self._name, self._hlo = name, context.hlo()
        found = [(context.tensor_parameter_id(p), i) for i, p in enumerate(placeholders)]
        self._argument_of = {parameter: i for parameter, i in found if parameter != -1}
        others = context.device_parameter_id_tensor_mapping()
        others = {parameter: t for parameter, t in others.items() if parameter not in self._argument_of}
        self._captured_of = {parameter: i for i, parameter in enumerate(others)}
        self.captured = [t.to(arguments[0].device) for t in others.values()]
        self.seed = self._find_seed(context)

    @staticmethod
    def _as_tensor(output: object, argument: torch.Tensor) -> torch.Tensor:
        output = torch.as_tensor(output)
        return output if output.device.type == "xla" else output.to(argument.device)

    def _find_seed(self, context) -> Optional[int]:
        ids, tensors = device_data_of(self._outputs)
        seed = _XLAC._get_seed_info_id()
        if seed not in ids:
            return None
        return self._captured_of[context.tensor_parameter_id(tensors[ids.index(seed)])]

    def expect(self, name: str, expected: Sequence[torch.Tensor]) -> None:
        """Raise RuntimeError if the outputs are not of these shapes and dtypes."""
        kinds = [[f"{t.dtype}{list(t.shape)}".removeprefix("torch.") for t in ts] for ts in (expected, self._outputs)]
        if kinds[0] != kinds[1]:
            raise RuntimeError(f"while_loop: expected {name} to return {kinds[0]}, found {kinds[1]}. Convert there.")

    def call(self, xb, values: Sequence, captured: range) -> list:
        """The ops of its outputs, given those of all loop variables and where in them its captured tensors are."""
        places = {**self._argument_of, **{p: captured[i] for p, i in self._captured_of.items()}}
        computation = xb.computation_from_module_proto(self._name, self._hlo)
        result = xb.Op.call(computation, [values[places[p]] for p in range(len(places))], builder=values[0].builder())
        return [result.get_tuple_element(i) for i in range(len(self._outputs))]


def _placeholder(t: torch.Tensor) -> torch.Tensor:
    import torch_xla.core.xla_builder as xb

    if hasattr(xb, "create_placeholder_tensor"):
        return xb.create_placeholder_tensor(t.shape, t.dtype)
    return torch.empty(t.shape, dtype=t.dtype).to(t.device)
