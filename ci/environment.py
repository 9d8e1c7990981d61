"""Makes the environments that the tests run in, with uv and pip's own configuration.

    .venv/bin/python ci/environment.py patched DIR   the wheels in dist/, as the README installs them
    .venv/bin/python ci/environment.py tpu DIR       the same on a TPU host, with libtpu: --dist dist/2.9-tpu
    .venv/bin/python ci/environment.py stock DIR     the upstream releases that they were made from
    .venv/bin/python ci/environment.py oracle DIR    a later torch, which has Tensor.grad_dtype itself
    .venv/bin/python ci/environment.py tools DIR     pytest and similar only, for another environment's PYTHONPATH

With --pin 2.6, those of another pin, on the CPython that `castoff build` uses for it.
Packages are hard links into uv's cache: an environment takes seconds and little disk space. The
patched wheels have a separate cache beside DIR, as uv's would grow by 2 GB for each build.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from castoff.core.console import Console
from castoff.core.errors import CastoffError, MachineError
from castoff.core.interpreter import find_interpreter
from castoff.core.pipconfig import current_uv_environment
from castoff.core.places import ROOT
from castoff.core.runner import Runner
from castoff.core.tools import tool
from castoff.model.pin import PROJECTS, load_pin

TOOLS = ("expecttest", "hypothesis", "numpy", "pytest", "pytest-xdist", "setuptools")
DEFAULT_PIN = "2.9"
ORACLE = ("torch==2.13.0",)  # the release that test_grad_dtype_conformance.py states


def constraints(but: Sequence[str]) -> str:
    """Return the versions of the lock file as constraints, without those of some requirements."""
    lock = (ROOT / "ci" / "requirements.lock").read_text(encoding="utf-8")
    names = {Requirement(line).name for line in but}
    rows = re.findall(r"^([\w.-]+)(==[^\\\n]+)", lock, re.MULTILINE)
    return "\n".join(name + rest.strip() for name, rest in rows if name not in names)


def make(kind: str, folder: Path, dist: Path, pin_name: str, runner: Runner) -> None:
    """Make the environment `kind` in `folder`.

    Raises:
        CastoffError: uv failed, or there are no wheels to install.
    """
    environment = current_uv_environment(runner)
    uv, python = tool("uv"), folder / "bin" / "python"

    def install(name: str, *arguments: str | Path) -> None:
        runner.run([uv, "pip", "install", "--python", python, *arguments], name=name, env=environment)

    pin = load_pin(ROOT / "pins", pin_name)
    unstated = pin.torch_xla.requires
    interpreter = sys.executable if kind == "oracle" else find_interpreter(None, runner, pin.pythons).path
    runner.run([uv, "venv", "--no-project", "--python", str(interpreter), folder], name="venv", env=environment)
    listed = folder / "constraints.txt"
    listed.write_text(constraints(unstated), encoding="utf-8")
    if kind == "tools":
        beside = [name for name in TOOLS if name != "numpy"]  # which torch_xla requires, so that it is there
        install(kind, "--constraint", listed, *beside)
        return
    pinned = ["--constraint", listed, *TOOLS, *unstated]
    if kind == "oracle":
        install("oracle", *pinned, *ORACLE)
        return
    projects = (*PROJECTS, "libtpu") if kind == "tpu" else PROJECTS
    wheels = sorted(dist.glob("*.whl"))
    if kind in ("patched", "tpu") and len(wheels) != len(projects):
        raise MachineError(
            f"no wheels to test in {dist}",
            expected=f"{len(projects)} wheels: {', '.join(projects)}",
            found=", ".join(wheel.name for wheel in wheels) or "none",
            next_step=f"Build them first: ./build.sh --target {'tpu' if kind == 'tpu' else 'cpu'} --pin {pin_name}",
        )
    with tempfile.TemporaryDirectory(dir=folder.parent) as own_cache:
        if kind == "tpu":
            # As on a TPU host: without upstream's own wheels and without packages that only those require.
            ours = ["--constraint", dist / "constraints.txt", "--find-links", dist, *projects]
            install("tpu", "--cache-dir", Path(own_cache), *pinned, *ours)
            return
        install("stock", *pinned, *(f"{project}=={pin.upstream(project).version}" for project in projects))
        if pin_name == DEFAULT_PIN:
            # The models that bench/audit_models.py audits; the tests of other pins do not need them.
            models = ROOT / "ci" / "models.lock"
            install("models", "--require-hashes", "--no-deps", "--requirement", models)
        if kind == "patched":
            install("patched", "--no-deps", "--offline", "--cache-dir", Path(own_cache), *wheels)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["patched", "tpu", "stock", "oracle", "tools"])
    parser.add_argument("folder", type=Path, help="the folder of the environment; must not exist")
    parser.add_argument("--pin", default=DEFAULT_PIN, help=f"the pin (default: {DEFAULT_PIN})")
    parser.add_argument("--dist", type=Path, help="the folder of the wheels (default: dist/PIN-cpu)")
    arguments = parser.parse_args()
    dist = arguments.dist or ROOT / "dist" / f"{arguments.pin}-cpu"
    console = Console()
    runner = Runner(arguments.folder.with_name(f"{arguments.folder.name}-logs"), console)
    try:
        make(arguments.kind, arguments.folder, dist, arguments.pin, runner)
    except CastoffError as error:
        console.error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
