"""Errors of linear algebra: ``linalg.inv``, ``solve``, ``cholesky`` and others raise for a matrix without an answer.

At the call they read ``info``, and the graph is cut there. What the factorization reads and gives is made by the same
run: otherwise the next graph computes it, and all before it, once more.

With CASTOFF_DEFER_LINALG_ERRORS=1 ``info`` stays on the device: ``torch_xla.sync()`` looks at that of the step before
the one that it starts, which is there by then.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import Tensor
from torch.utils.weak import TensorWeakRef
from torch_xla import runtime

from ._departures import line_of_program

__all__ = ["are_deferred", "at_the_call", "deferred", "remember"]

_last = threading.local()


def remember(tensors: list[Tensor]) -> None:
    """Of what a factorization reads and gives: ``aten::_linalg_check_errors`` comes next, if torch checks it."""
    _last.tensors = [TensorWeakRef(t) for t in tensors if t.device.type == "xla"]


def at_the_call(check: Callable) -> Callable:
    """``aten::_linalg_check_errors`` for XLA: ``check``, after a run for all that the factorization reads and gives."""

    def checked(info: Tensor, name: str, *, is_matrix: bool) -> None:
        tensors = [t for t in (ref() for ref in _last.__dict__.pop("tensors", ())) if t is not None]
        if tensors:
            torch_xla._XLAC._xla_sync_multi([info, *tensors], [], False, True)
        if not runtime.is_spmd():
            check(info, name, is_matrix=is_matrix)
        # Of integers that are sharded CPU-XLA has no any().
        elif (info != 0).any().item():
            torch.ops.aten._linalg_check_errors(info.cpu(), name, is_matrix=is_matrix)

    return checked


class _Check(NamedTuple):
    """What ``aten::_linalg_check_errors`` was called with, and by which line."""

    info: Tensor
    name: str
    is_matrix: bool
    line: str


MOST = 1000
"""So many checks are kept: a program that never calls ``sync()`` is then told at a call."""

_of_this_step: list[_Check] = []
_of_the_last: list[_Check] = []


def are_deferred() -> bool:
    return os.environ.get("CASTOFF_DEFER_LINALG_ERRORS", "0") not in ("", "0")


def deferred(info: Tensor, name: str, *, is_matrix: bool) -> None:
    """``aten::_linalg_check_errors`` for XLA: raises ``torch.linalg.LinAlgError`` from a later ``sync()``."""
    if len(_of_this_step) >= MOST:
        _raise_first(_taken(_of_this_step))
    if not _of_this_step and not _of_the_last:
        xm.add_step_closure(_after_step)
    line = line_of_program()
    _of_this_step.append(_Check(info, name, is_matrix, "an unknown line" if line is None else "{}:{}".format(*line)))


def _taken(checks: list[_Check]) -> list[_Check]:
    """The checks, of which the list is then empty: each is told once."""
    found = list(checks)
    checks.clear()
    return found


def _after_step() -> None:
    checks = _taken(_of_the_last)
    _of_the_last.extend(_taken(_of_this_step))
    if _of_the_last:
        xm.add_step_closure(_after_step)
    _raise_first(checks)


def _raise_first(checks: list[_Check]) -> None:
    for check in checks:
        try:
            torch.ops.aten._linalg_check_errors(check.info.cpu(), check.name, is_matrix=check.is_matrix)
        except torch.linalg.LinAlgError as error:
            raise torch.linalg.LinAlgError(
                f"{error}\nThe call is at {check.line}, in a step that has run. Unset CASTOFF_DEFER_LINALG_ERRORS to "
                "raise at the call."
            ) from None


@atexit.register
def _at_exit() -> None:
    try:
        _raise_first(_taken(_of_the_last) + _taken(_of_this_step))
    except torch.linalg.LinAlgError as error:
        print(error, file=sys.stderr)
