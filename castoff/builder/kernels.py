"""Which topics override which operators, as the dispatcher of an environment with the wheels has them."""

from __future__ import annotations

import json
import os

from castoff.core.errors import MachineError
from castoff.core.runner import Runner

Kernels = dict[str, dict[str, list[str]]]

_PROGRAM = "import json, torch_xla; from torch_xla import _castoff; print(json.dumps(_castoff.kernels()))"


def kernels_in(python: str, runner: Runner) -> Kernels:
    """Return for each operator, by dispatch key, the topics that override it in C++, the one called first first.

    Args:
        python: The Python of an environment with castoff's torch_xla.

    Raises:
        MachineError: It has no castoff, or its topics are off.
        CommandError: It does not import torch_xla.
    """
    env = {"PJRT_DEVICE": "CPU", **os.environ}
    lines = runner.run([python, "-c", _PROGRAM], name="kernels", env=env, check=False).output.splitlines()
    found: Kernels = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    if not found:
        raise MachineError(
            f"{python} has no kernels of castoff's",
            expected="an environment with castoff's torch_xla, and topics that are on",
            found=lines[-1] if lines else "no output",
            next_step="Name another one with --python, or unset CASTOFF_DISABLE.",
        )
    return found
