"""Where the casts of a step come from, what they cost, and which topic removes them.

``audit(fn, *args)`` runs a step on CPU-XLA, or any XLA device, in the user's own environment; ``castoff audit
train.py:step`` does so from the command line. There ``watch`` sees each operation and keeps the graphs;
``graph`` finds the conversions in them, ``casts`` finds place, reason and remedy of each, ``report`` counts,
checks and writes them. ``meta`` needs no device. Only ``watch``, ``operations``, ``modules`` and ``meta``
import torch: ``program``, ``show`` and ``page`` belong to the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from castoff.audit.report import Report

__all__ = ["audit"]


def audit(fn: Callable[..., object], *args: Any, calls: int = 1, stablehlo: bool = False, **kwargs: Any) -> Report:
    """Run a step on XLA and list every dtype conversion of its forward, backward and optimizer.

    Args:
        fn: The step: it computes with tensors on ``torch_xla.device()``. It may sync.
        args: Its arguments.
        calls: How often to call it; the last call counts. The first may make an optimizer's state.
        stablehlo: Whether to keep each graph as StableHLO too, for the TPU compiler.
        kwargs: Its keyword arguments.

    Returns:
        The report. Each cast in it names its IR line. The results of the last call are pending, as after any call.

    Raises:
        ValueError: ``calls`` is less than 1.
        Exception: Any exception of ``fn``.
    """
    import torch_xla

    from castoff.audit.accumulations import accumulations_of
    from castoff.audit.casts import casts_of
    from castoff.audit.departures import departures_of
    from castoff.audit.report import Report, versions
    from castoff.audit.watch import Watch

    if calls < 1:
        raise ValueError(f"expected at least one call, found calls={calls}")
    torch_xla.sync()
    for _ in range(calls - 1):
        kept = fn(*args, **kwargs)
        torch_xla.sync()
        del kept
    watch = Watch(stablehlo=stablehlo)
    with watch.watching():
        kept = fn(*args, **kwargs)  # its result is alive at the sync, as in a loop
        watch.capture(result=kept)
    del kept
    step = watch.step()
    found = (tuple(casts_of(step)), tuple(accumulations_of(step)), tuple(departures_of(step)))
    return Report(versions(), step.graphs, *found)
