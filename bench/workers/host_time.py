"""Processor time of the host for a step of torch_xla, in an environment with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def of_step(trace: Callable[[], Any], start: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of all threads while ``trace`` runs, when nothing is executed, and of the main thread in ``start``; the
    result of one of them.

    How long ``start`` waits for XLA:CPU, which executes on the same processors, is not the host's time.
    """
    process = time.process_time()
    traced = trace()
    process, thread = time.process_time() - process, time.thread_time()
    started = start()
    return process + time.thread_time() - thread, traced if started is None else started
