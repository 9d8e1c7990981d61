"""Trials: a step is audited again with each setting that could help, to see what the setting removes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from castoff.audit import settings
from castoff.audit.advice import NATIVE_MUL, WIDE_GRADS, advice_of
from castoff.audit.report import Report
from castoff.core.errors import CastoffError

NARROW_ATTENTION = "torch_xla.experimental.narrow_attention(True)"

_ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    NATIVE_MUL: {"XLA_NATIVE_MUL": "1"},
    WIDE_GRADS: {settings.VARIABLE: settings.WIDE_GRADS},
    NARROW_ATTENTION: {settings.VARIABLE: settings.NARROW_ATTENTION},
}
"""The environment variables of the audit that put a setting in force, by the line that a user types for it."""


@dataclass(frozen=True)
class Trial:
    """What a setting removes."""

    topic: str  # whose setting it is
    line: str  # what to type
    casts: int  # how many casts between floating point dtypes fewer
    bytes: int  # how many bytes fewer they move; negative if they move more
    problem: str  # why the step does not run with it; "" if it does

    def __str__(self) -> str:
        if self.problem:
            return f"{self.line}: the step does not run with it: {self.problem}"
        return f"{self.line}: {self.casts:,} casts and {self.bytes:,} bytes fewer"


def tried(report: Report, audit: Callable[[Mapping[str, str]], Report]) -> list[Trial]:
    """Audit a step with each setting that its report advises, and with narrow attention.

    Args:
        report: The report without any of them.
        audit: Audits the step with more environment variables.

    Returns:
        What each removes, the most bytes first. Narrow attention, which no cast carries as an advice, only if it
        removes something.
    """
    wanted = {
        advice.line: advice.topic for advice in advice_of(report) if advice.topic and advice.line in _ENVIRONMENTS
    }
    if "+castoff" in report.versions["torch_xla"]:
        wanted.setdefault(NARROW_ATTENTION, "native-attention")
    found = [_try(report, topic, line, audit) for line, topic in wanted.items()]
    kept = [trial for trial in found if trial.line != NARROW_ATTENTION or trial.casts > 0 or trial.bytes > 0]
    return sorted(kept, key=lambda trial: (-trial.bytes, -trial.casts))


def _try(report: Report, topic: str, line: str, audit: Callable[[Mapping[str, str]], Report]) -> Trial:
    try:
        after = audit(_ENVIRONMENTS[line])
    except CastoffError as error:
        return Trial(topic, line, 0, 0, error.found.strip().splitlines()[-1] if error.found.strip() else str(error))
    moved = [sum(cast.bytes for cast in one.floating) for one in (report, after)]
    return Trial(topic, line, len(report.floating) - len(after.floating), moved[0] - moved[1], "")


def as_data(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the trials as plain data."""
    return [asdict(trial) for trial in trials]
