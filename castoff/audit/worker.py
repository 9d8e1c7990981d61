"""Audits a function of a program: run with the Python of the user's environment.

``python worker.py KIND PROGRAM.py FUNCTION CALLS REPORT.json`` calls it and writes the report to REPORT.json.
KIND is ``xla``; ``stablehlo``, for a report that has StableHLO for the TPU compiler too; or ``meta``, on the meta
device. The program's output is not redirected. If the program or the environment is wrong, the last line of
standard output is JSON with the reason.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def main() -> int:
    """Run the script."""
    kind, program, function, calls, report = sys.argv[1:]
    if sys.path[0] == str(Path(__file__).parent):
        del sys.path[0]
    sys.path.insert(0, str(Path(program).parent))
    # Packages of the user's environment, for an environment with torch and torch_xla only; and castoff itself.
    more = [path for path in os.environ.get("CASTOFF_MORE_PACKAGES", "").split(os.pathsep) if path]
    sys.path += [*more, str(Path(__file__).parents[2])]
    from castoff.tpu.trace import fault

    needed = "torch" if kind == "meta" else "torch_xla"
    try:
        importlib.import_module(needed)
    except ImportError as error:
        return fault(f"{needed} can be imported", str(error), "Give an environment that has it with --python.")
    try:
        found = _on_meta(program, function) if kind == "meta" else _on_xla(program, function, int(calls), kind)
    except Exception as error:  # noqa: BLE001 - whatever a user's program raises
        traceback.print_exc()
        where = "on the CPU" if kind != "meta" else "with torch's default device set to meta"
        return fault(
            f"{function}() of {program} runs", f"{type(error).__name__}: {error}", f"Correct it; it runs {where}."
        )
    Path(report).write_text(json.dumps(found), encoding="utf-8")
    return 0


def _on_xla(program: str, function: str, calls: int, kind: str) -> dict[str, object]:
    from castoff.audit import audit
    from castoff.tpu.trace import function_of

    return audit(function_of(program, function), calls=calls, stablehlo=kind == "stablehlo").as_dict()


def _on_meta(program: str, function: str) -> dict[str, object]:
    from castoff.audit.meta import audit_meta
    from castoff.tpu.trace import function_of

    def step() -> Callable[[], object]:
        return function_of(program, function)

    return audit_meta(step)


if __name__ == "__main__":
    sys.exit(main())
