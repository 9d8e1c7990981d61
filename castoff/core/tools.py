"""The pinned tools, which the lock file puts beside the running Python."""

from __future__ import annotations

import sys
from pathlib import Path

from castoff.core.errors import MachineError


def tool(name: str) -> Path:
    """Return the path of a pinned tool.

    Args:
        name: Its name, such as "ninja".

    Raises:
        MachineError: It is not there.
    """
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise MachineError(
            f"{name} is missing",
            expected=f"{name} beside {sys.executable}, as ci/requirements.lock pins it",
            found="no such file",
            next_step="Run castoff through ./build.sh or .venv/bin/castoff; remove .venv to make it again.",
        )
    return path
