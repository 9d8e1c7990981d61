"""Why operators differ on XLA from torch's CPU kernels: the reasons that docs/operators.md groups them by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reason:
    """A reason, and which differences have it: those that match all that is given.

    detail: a pattern in what the sweep found, such as the text of an error. dtypes, kinds and phases: words, any of
    which will do. operators: a pattern of whole names.
    """

    key: str
    title: str
    text: str
    operators: str = ".*"
    detail: str = ""
    dtypes: str = ""
    kinds: str = ""
    phases: str = ""

    def has(self, row: dict[str, Any]) -> bool:
        return (
            re.fullmatch(self.operators, row["op"]) is not None
            and re.search(self.detail, row["detail"]) is not None
            and (not self.dtypes or row["dtype"] in self.dtypes.split())
            and (not self.kinds or row["kind"] in self.kinds.split(", "))
            and (not self.phases or row["phase"] in self.phases.split())
        )


REASONS = (Reason("other", "Not looked into", "They differ, and nobody has found out why."),)
"""The first that matches is taken."""


def reason_of(row: dict[str, Any]) -> str:
    """The key of a difference's reason."""
    return next(reason.key for reason in REASONS if reason.has(row))
