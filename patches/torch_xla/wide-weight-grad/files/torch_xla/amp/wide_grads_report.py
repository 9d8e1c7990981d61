"""``torch_xla.amp.wide_grads_report``: for each parameter, whether its gradient is float32 all the way."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch

__all__ = ["ParameterGradient", "WideGradsReport", "wide_grads_report"]

_REDUCED = (torch.bfloat16, torch.float16)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in ', re.MULTILINE)
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).resolve().parents[1]))


@dataclass(frozen=True)
class ParameterGradient:
    """What became of one parameter's gradient.

    Attributes:
        name: of the parameter.
        verdict: ``"wide"``; ``"rounded"``, then widened; ``"narrow"``, in the parameter's own dtype; or ``"none"``,
            no gradient.
        operators: the nodes that returned a rounded gradient.
        where: of each, the line of the user's program that called its operator, "?" if none is known.
    """

    name: str
    verdict: str
    operators: tuple[str, ...] = ()
    where: tuple[str, ...] = ()


@dataclass(frozen=True)
class WideGradsReport:
    """The gradients of a module's bfloat16 and float16 parameters in one step; ``str()`` is a table of them.

    Attributes:
        parameters: one for each of these parameters, in the module's order.
    """

    parameters: tuple[ParameterGradient, ...]

    @property
    def all_wide(self) -> bool:
        """Whether every parameter that had a gradient had a wide one, and any had."""
        verdicts = {p.verdict for p in self.parameters} - {"none"}
        return verdicts == {"wide"}

    def __bool__(self) -> bool:
        return self.all_wide

    def __str__(self) -> str:
        rows = [("parameter", "gradient", "by")]
        for p in self.parameters:
            by = "; ".join(f"{operator} at {line}" for operator, line in zip(p.operators, p.where, strict=True))
            rows.append((p.name, _WORDS[p.verdict], by))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines)


_WORDS = {
    "wide": "wide",
    "rounded": "rounded, then widened",
    "narrow": "in the parameter's dtype",
    "none": "no gradient",
}


def wide_grads_report(module: torch.nn.Module, step: Callable[[], object]) -> WideGradsReport:
    """Run ``step`` and say of each bfloat16 and float16 parameter of ``module`` what its gradient was.

    ::

        report = wide_grads_report(model, lambda: loss(model(x), y).backward())
        assert report.all_wide, str(report)

    A gradient is rounded if an operator made it in the parameter's dtype and the engine cast it afterwards. What an
    operator hands on as it came (``x + w``, ``cat``, views) is not: the gradients of activations are bfloat16. The
    step runs in anomaly mode, which knows the lines, and is not to be measured. In a function that torch.compile
    compiled before the step, casts are those of its graph and are not seen; the functions are forgotten, so that
    they are traced again.

    Args:
        module: with grad_dtype set on its parameters, as by ``wide_grads``.
        step: the forward and backward pass of at least one batch. It may call the optimizer.

    Raises:
        TypeError: ``module`` is no module.
        RuntimeError: the topic record-implicit-casts is switched off.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, found {type(module).__name__}")
    if not hasattr(torch.autograd.graph, "record_implicit_casts"):
        raise RuntimeError("wide_grads_report needs the topic record-implicit-casts, which is switched off")
    named = {name: p for name, p in module.named_parameters() if p.dtype in _REDUCED}
    arrived: dict[int, torch.dtype] = {}

    def note(p: torch.Tensor) -> None:
        assert p.grad is not None
        arrived[p._cdata] = p.grad.dtype

    hooks = [p.register_post_accumulate_grad_hook(note) for p in named.values() if p.requires_grad]
    torch.compiler.reset()
    try:
        with (
            torch.autograd.set_detect_anomaly(True, check_nan=False),
            torch.autograd.graph.record_implicit_casts() as casts,
        ):
            step()
    finally:
        for hook in hooks:
            hook.remove()
    return WideGradsReport(tuple(_verdict(name, p, arrived.get(p._cdata), casts) for name, p in named.items()))


def _verdict(
    name: str, p: torch.Tensor, dtype: Optional[torch.dtype], casts: list["torch.autograd.graph.ImplicitCast"]
) -> ParameterGradient:
    if dtype is None:
        return ParameterGradient(name, "none")
    if dtype.itemsize <= p.dtype.itemsize:
        return ParameterGradient(name, "narrow")
    lines: dict[tuple[str, str], None] = {}
    for cast in casts:
        if cast.rounded and p._cdata in cast.leaves:
            lines[_operator(cast.produced_by), _line(cast.forward_stack)] = None
    if not lines:
        return ParameterGradient(name, "wide")
    operators, where = zip(*lines, strict=True)
    return ParameterGradient(name, "rounded", operators, where)


def _operator(node: str) -> str:
    return re.sub(r"Backward\d*$", "", node.removeprefix("torch::autograd::"))


def _line(stack: Optional[str]) -> str:
    """The innermost line that is not torch's."""
    frames = [(m["file"], m["line"]) for m in _FRAME.finditer(stack or "")]
    users = [frame for frame in frames if not frame[0].startswith(_LIBRARIES)]
    return ":".join(users[-1]) if users else "?"
