"""The benchmarks' common part: one program, run in an environment with stock wheels and in one with patched wheels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PATCHES = Path(__file__).parents[2] / "patches"


def environment_with(**more: str) -> dict[str, str]:
    """This process's environment, without what sets XLA, PJRT or JAX up, and more."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XLA_", "PJRT_", "JAX_"))}
    return kept | more


def run(python: Path, program: Path, *arguments: str, under: Sequence[str] = (), **environment: str) -> dict[str, Any]:
    """The JSON that `program` prints as its last line.

    `under` is the command that starts Python, if any; `environment` is set besides this process's own.
    """
    # Timer starts "python"; a fixed hash seed makes counts repeat.
    always = {"PATH": f"{python.parent}:{os.environ['PATH']}", "PYTHONHASHSEED": "0"}
    environment = {**os.environ, **always, **environment}
    command = [*under, str(python), str(program), *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join([str(python), program.name, *arguments])} failed:\n{result.stderr}")
    measured: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return measured


def run_all(jobs: Sequence[Any], function: Any) -> list[Any]:
    """`function` of each job, a tuple of arguments; as many at a time as there are processors."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return list(pool.map(lambda job: function(*job), jobs))


def all_but(*topics: str) -> str:
    """What CASTOFF_DISABLE has to be for these topics alone to be on."""
    names = {path.parent.name for path in PATCHES.glob("*/*/topic.toml")}
    return ",".join(sorted(names - {"kill-switch", *topics}))


def need_valgrind() -> None:
    if shutil.which("valgrind") is None:
        raise SystemExit("expected valgrind on PATH, found none; install it (apt-get install valgrind)")
