"""The pinned tools, which the lock file puts beside the running Python."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from castoff.core.errors import MachineError


def tool(name: str) -> Path:
    """Return the path of a pinned tool.

    Args:
        name: Its name, such as "ninja".

    Raises:
        MachineError: It is not there.
    """
    # Debian's Python puts scripts elsewhere than it is itself.
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    path = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if path is None:
        raise MachineError(
            f"{name} is missing",
            expected=f"{name} beside {sys.executable}, as ci/requirements.lock pins it",
            found="no such file",
            next_step="Run castoff through ./build.sh or .venv/bin/castoff; remove .venv to make it again. "
            "If it is castoff's package: install that again, with what it requires.",
        )
    return path
