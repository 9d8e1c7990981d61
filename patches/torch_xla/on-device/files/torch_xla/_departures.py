"""A warning of each operator that leaves the device, with the line of the program: CASTOFF_WARN_LEAVES_DEVICE=1.

torch hands an operator to the CPU in one way: it copies the operands by ``aten::_to_cpu``, when torch_xla has counted
the operator. Without the variable nothing is registered.
"""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, Optional

import torch
import torch_xla

__all__ = ["are_told", "line_of_program", "told"]

_NOT_THE_PROGRAM = tuple(os.path.dirname(module.__file__) + os.sep for module in (torch, torch_xla))

_known: set = set()


def are_told() -> bool:
    return os.environ.get("CASTOFF_WARN_LEAVES_DEVICE", "0") not in ("", "0")


def told(copied: Callable) -> Callable:
    """``copied``, which copies operands to the CPU, with a warning before the first copy for an operator."""

    def copied_and_told(*arguments: Any) -> Any:
        left = set(torch_xla._XLAC._get_executed_fallback_ops()) - _known
        _known.update(left)
        for operator in sorted(left):
            _warn(operator)
        return copied(*arguments)

    return copied_and_told


def _warn(operator: str) -> None:
    node = torch._C._current_autograd_node()
    within = f" in the gradient {node.name()}" if node is not None else ""
    text = f"{operator} leaves the device for the CPU{within} (docs/on-device.md); told once for each operator"
    line = line_of_program()
    if line is None:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    else:
        warnings.warn_explicit(text, RuntimeWarning, *line)


def line_of_program() -> Optional[tuple[str, int]]:
    """The innermost line of the program. A backward on XLA runs in a thread without one."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_PROGRAM):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)
