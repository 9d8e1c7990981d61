"""What to do about the casts of a report: the settings and topics that remove most bytes, and what to type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from castoff.audit.casts import NEEDED, Cast
from castoff.audit.report import Report

INSTALL = "castoff install --python PYTHON"
NATIVE_MUL = "export XLA_NATIVE_MUL=1"
WIDE_GRADS = "from torch_xla.amp import wide_grads; wide_grads(model)"
_OUT_DTYPE_OP = "torch.ops.higher_order.out_dtype(torch.ops.aten.linear.default, torch.float32, x, weight, bias)"
_GRAD_DTYPE = "weight.grad_dtype = torch.float32"

LINES: Mapping[tuple[str | None, str], str] = {
    ("native-mul", "XLA_NATIVE_MUL=1"): NATIVE_MUL,
    ("exact-casts", ""): INSTALL,
    ("wide-weight-grad", "weights in bfloat16"): "model.bfloat16(); " + WIDE_GRADS,
    ("wide-weight-grad", ""): WIDE_GRADS,
    ("matmul-out-dtype", "castoff's wheels"): INSTALL,
    ("matmul-out-dtype", "out_dtype="): "torch.mm(a, b, out_dtype=torch.float32)",
    ("out-dtype-op", ""): _OUT_DTYPE_OP,
    ("grad-dtype", "an autograd.Function"): _GRAD_DTYPE + "  # and a Function for the cast",
    ("grad-dtype", ""): _GRAD_DTYPE,
    (None, "pass a gradient"): "output.backward(gradient.to(output.dtype))",
}
"""What to type, by topic and the beginning of the remedy. The first that fits counts."""


@dataclass(frozen=True)
class Advice:
    """One thing to do, and what it removes."""

    topic: str | None  # None if it needs nothing of castoff's
    remedy: str  # what to do
    line: str  # what to type
    casts: int  # the casts that carry this remedy
    bytes: int  # what they read and write in one step


def is_removable(cast: Cast) -> bool:
    """Tell whether a cast carries an advice: a topic, or something that the program can do."""
    return not cast.remedy.startswith((NEEDED, "none"))


def advice_of(report: Report) -> list[Advice]:
    """Return what to do about the casts between floating point dtypes, what removes most bytes first.

    Each cast carries one remedy at most: what the pieces of advice remove can be added up.

    Raises:
        LookupError: A remedy has no line to type.
    """
    groups: dict[tuple[str | None, str], list[Cast]] = {}
    for cast in filter(is_removable, report.floating):
        groups.setdefault((cast.topic, cast.remedy), []).append(cast)
    found = [
        Advice(topic, remedy, line_of(topic, remedy), len(casts), sum(cast.bytes for cast in casts))
        for (topic, remedy), casts in groups.items()
    ]
    return sorted(found, key=lambda advice: (-advice.bytes, -advice.casts))


def line_of(topic: str | None, remedy: str) -> str:
    """Return what to type for a remedy.

    Raises:
        LookupError: There is no line for it.
    """
    for (name, beginning), line in LINES.items():
        if name == topic and remedy.startswith(beginning):
            return line
    raise LookupError(f"expected a line to type for the remedy {remedy!r} of {topic}, found none in LINES")


def as_data(report: Report) -> list[dict[str, Any]]:
    """Return the advice as plain data."""
    return [asdict(advice) for advice in advice_of(report)]
