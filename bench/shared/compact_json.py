"""Records as JSON of few lines: what is deep is on one line, so that a difference of two records is easy to read."""

from __future__ import annotations

import json
from typing import Any


def dumps(record: dict[str, Any], depth: int = 2, *, sort_keys: bool = False) -> str:
    """Return ``record`` as JSON with a line for each value that is ``depth`` keys deep, and a line break at its end.

    Example:
        >>> print(dumps({"a": {"x": [1, 2], "y": {"z": 3}}}), end="")
        {
         "a": {
          "x": [1, 2],
          "y": {"z": 3}
         }
        }
    """
    if sort_keys:
        record = json.loads(json.dumps(record, sort_keys=True))
    return _nested(record, depth, " ") + "\n"


def _nested(value: Any, depth: int, indent: str) -> str:
    if depth == 0 or not isinstance(value, dict) or not value:
        return json.dumps(value)
    lines = [f"{indent}{json.dumps(key)}: {_nested(each, depth - 1, indent + ' ')}" for key, each in value.items()]
    return "{\n" + ",\n".join(lines) + "\n" + indent[:-1] + "}"
