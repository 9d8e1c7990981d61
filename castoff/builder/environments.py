"""Environments: the kinds that there are, each kept in the cache by what it is made of."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from packaging.requirements import Requirement

from castoff.builder.fetch import BaseWheel, fetch_wheels
from castoff.builder.install import (
    Install,
    copy_environment,
    lay_wheel,
    make_environment,
    requirements,
    upstream_environment,
)
from castoff.builder.manifest import read_manifest
from castoff.core.context import Context
from castoff.core.errors import MachineError
from castoff.core.interpreter import Interpreter, active_python, find_interpreter
from castoff.core.places import ROOT
from castoff.model.pin import DEFAULT_PIN, PROJECTS, Pin, load_pin

TEST_TOOLS = ("expecttest", "hypothesis", "numpy", "pytest", "pytest-xdist", "setuptools")
"""What the topics' tests import, or run in; the versions are those of the lock file."""
ORACLE = "2.15"
"""The pin whose torch has the Tensor.grad_dtype that tests/torch/test_grad_dtype_conformance.py states."""


class Kind(StrEnum):
    """The environments that there are."""

    PATCHED = "patched"
    STOCK = "stock"
    ORACLE = "oracle"
    TPU_COMPILER = "tpu-compiler"
    TPU = "tpu"
    TOOLS = "tools"


ABOUT = {
    Kind.PATCHED: "the wheels in dist/, and what tests need",
    Kind.STOCK: "the stock wheels that they were made from, likewise",
    Kind.ORACLE: f"the stock wheel of pin {ORACLE}, whose torch has Tensor.grad_dtype itself",
    Kind.TPU_COMPILER: "libtpu and jaxlib of the pin",
    Kind.TPU: "the wheels in dist/PIN-tpu as the README installs them, with libtpu",
    Kind.TOOLS: "pytest and the like alone, to lend another environment by PYTHONPATH",
}


@dataclass(frozen=True)
class Environments:
    """Makes environments, or takes them from the cache."""

    context: Context
    indexes: Sequence[str] = ()  # package indexes besides pip's own
    root: Path = ROOT  # the tree with pins, dist/ and lock files

    def make(self, kind: Kind, pin: Pin, *, folder: Path | None = None, dist: Path | None = None) -> Path:
        """Return the Python of an environment, made first if need be.

        Args:
            folder: Where to make it, a folder that does not exist; in the cache if None, and taken from there.
            dist: The folder of the patched wheels; by default dist/<pin>-cpu, or -tpu.

        Raises:
            MachineError: There are no patched wheels, no CPython for them, or the folder is there already.
            FetchError: Something cannot be downloaded or installed.
        """
        if folder is not None and folder.exists():
            raise MachineError(
                f"{folder} is in the way",
                expected="no such file or folder, to make the environment there",
                found="one",
                next_step="Remove it, or name another; without a name the environment is kept in castoff's cache.",
            )
        if folder is not None:
            folder.parent.mkdir(parents=True, exist_ok=True)
        if kind is Kind.PATCHED:
            return self.patched(dist or self.root / "dist" / f"{pin.name}-cpu", folder)
        if kind is Kind.TPU:
            return self._tpu(pin, dist or self.root / "dist" / f"{pin.name}-tpu", folder)
        if kind in {Kind.STOCK, Kind.ORACLE}:
            wanted = load_pin(self.root / "pins", ORACLE) if kind is Kind.ORACLE else pin
            return self.stock(wanted, find_interpreter(None, self.context.runner, wanted.pythons), folder=folder)
        if kind is Kind.TPU_COMPILER:
            return self.tpu_compiler(pin, folder)
        return self._tools(pin, folder)

    def patched(self, dist: Path, folder: Path | None = None) -> Path:
        """Return the Python of an environment with the wheels of an output folder, and what tests need.

        Raises:
            MachineError: There are no wheels, or no CPython for them.
        """
        wheels = self._wheels(dist)
        recorded = read_manifest(dist / "manifest.json")
        pin = load_pin(self.root / "pins", recorded.pin)
        interpreter = find_interpreter(recorded.python, self.context.runner)
        only = {project: wheel.base_sha256 for project, wheel in recorded.wheels.items()}
        stock = self.stock(pin, interpreter, only=only)
        bases = self._bases(pin, interpreter, only)

        def fill(python: Path, _install: Install) -> None:
            copy_environment(stock, python)
            for base, wheel in zip(bases, wheels, strict=True):
                lay_wheel(wheel, base.path, python)

        parts = [stock.parents[1].name, *(wheel.sha256 for wheel in recorded.wheels.values())]
        return self._make(Kind.PATCHED, parts, interpreter, str(dist), fill=fill, folder=folder)

    def stock(
        self,
        pin: Pin,
        interpreter: Interpreter,
        *,
        only: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> Path:
        """Return the Python of an environment with the stock wheels of a pin, and what tests need.

        Args:
            interpreter: The CPython that it is to have.
            only: By project, the hash of the one wheel to accept of those that the pin has.
            folder: Where to make it, if not in the cache.
        """
        upstream = self.upstream(pin, interpreter, only=only)
        lock = self._constraints(pin)
        # The models that bench/audit_models.py audits; the tests of other pins have no use for them.
        models = self.root / "ci" / "models.lock"
        models_text = models.read_text(encoding="utf-8") if pin.name == DEFAULT_PIN and models.is_file() else ""

        def fill(python: Path, install: Install) -> None:
            copy_environment(upstream, python)
            listed = python.parents[1] / "constraints.txt"
            listed.write_text(lock, encoding="utf-8")
            install("tools", "--constraint", listed, *TEST_TOOLS, *pin.requires)
            if models_text:
                install("models", "--require-hashes", "--no-deps", "--requirement", models)

        parts = [upstream.parents[1].name, lock, models_text, *TEST_TOOLS]
        return self._make(Kind.STOCK, parts, interpreter, f"stock {pin.name}", fill=fill, folder=folder)

    def upstream(self, pin: Pin, interpreter: Interpreter, *, only: dict[str, str] | None = None) -> Path:
        """Return the Python of an environment with the stock wheels of a pin, and what they require.

        Args:
            interpreter: The CPython that it is to have.
            only: By project, the hash of the one wheel to accept of those that the pin has.
        """
        bases = self._bases(pin, interpreter, only)
        needed = [line for base in bases for line in requirements(base.path)]
        return upstream_environment(
            bases, [*needed, *pin.requires], interpreter, indexes=self.indexes, context=self.context
        )

    def tpu_compiler(self, pin: Pin, folder: Path | None = None, *, topology: str = "") -> Path:
        """Return the Python of the environment that has the TPU compiler of a pin.

        Args:
            folder: Where to make it, if not in the cache.
            topology: The TPUs to compile for, if their generation has a compiler of its own.

        Raises:
            PinError: The pin says nothing of TPUs.
            MachineError: This machine has no CPython that jaxlib and libtpu are both published for.
        """
        tpu = pin.for_tpu(topology)
        interpreter = self._first_of(tpu.compiler_pythons)
        lock = tpu.compiler.read_text(encoding="utf-8")

        def fill(_python: Path, install: Install) -> None:
            install("compiler", "--require-hashes", "--requirement", tpu.compiler)

        about = f"libtpu {tpu.libtpu} and jaxlib {tpu.jaxlib}"
        return self._make(Kind.TPU_COMPILER, [lock], interpreter, about, fill=fill, folder=folder)

    def _tpu(self, pin: Pin, dist: Path, folder: Path | None) -> Path:
        """Install the wheels for a TPU host as the README does: nothing of upstream's own comes with them."""
        self._wheels(dist)
        lock = self._constraints(pin)
        sums = [line for line in (dist / "manifest.json").read_text(encoding="utf-8").splitlines() if "sha256" in line]

        def fill(python: Path, install: Install) -> None:
            listed, own = python.parents[1] / "constraints.txt", python.parents[1] / "uv-cache"
            listed.write_text(lock, encoding="utf-8")
            ours = ["--constraint", dist / "constraints.txt", "--find-links", dist, *PROJECTS, "libtpu"]
            install("tpu", "--cache-dir", own, "--constraint", listed, *TEST_TOOLS, *pin.requires, *ours)
            shutil.rmtree(own)

        interpreter = find_interpreter(None, self.context.runner, pin.pythons)
        return self._make(Kind.TPU, [lock, *sums], interpreter, str(dist), fill=fill, folder=folder)

    def _tools(self, pin: Pin, folder: Path | None) -> Path:
        lock = self._constraints(pin)
        beside = [name for name in TEST_TOOLS if name != "numpy"]  # which torch_xla requires, so that it is there

        def fill(python: Path, install: Install) -> None:
            listed = python.parents[1] / "constraints.txt"
            listed.write_text(lock, encoding="utf-8")
            install("tools", "--constraint", listed, *beside)

        interpreter = find_interpreter(None, self.context.runner, pin.pythons)
        return self._make(Kind.TOOLS, [lock, *beside], interpreter, "pytest", fill=fill, folder=folder)

    def _make(
        self,
        kind: Kind,
        parts: Sequence[str],
        interpreter: Interpreter,
        about: str,
        *,
        fill: Callable[[Path, Install], None],
        folder: Path | None,
    ) -> Path:
        return make_environment(kind, parts, interpreter, about, fill=fill, context=self.context, folder=folder)

    def _bases(self, pin: Pin, interpreter: Interpreter, only: dict[str, str] | None) -> list[BaseWheel]:
        bases = fetch_wheels(pin, interpreter.version, indexes=self.indexes, context=self.context, only=only)
        return list(bases.values())

    def _wheels(self, dist: Path) -> list[Path]:
        described = dist / "manifest.json"
        projects = [name for name in PROJECTS if not described.is_file() or name in read_manifest(described).wheels]
        wheels = [path for project in projects for path in dist.glob(f"{project}-*.whl")]
        if len(wheels) != len(projects):
            pin, _, target = dist.name.rpartition("-")
            raise MachineError(
                f"there are no wheels in {dist}",
                expected=f"a wheel each of {' and '.join(projects)}",
                found=", ".join(wheel.name for wheel in wheels) or "none",
                next_step=f"Build them: ./build.sh --target {target or 'cpu'} --pin {pin}",
            )
        return wheels

    def _constraints(self, pin: Pin) -> str:
        """Return the versions of the lock file as constraints, but for what the pin itself states."""
        lock = (self.root / "ci" / "requirements.lock").read_text(encoding="utf-8")
        stated = {Requirement(line).name for line in pin.requires}
        rows = re.findall(r"^([\w.-]+)(==[^\\\n]+)", lock, re.MULTILINE)
        return "".join(f"{name}{rest.strip()}\n" for name, rest in rows if name not in stated)

    def _first_of(self, versions: Sequence[str]) -> Interpreter:
        for version in versions:
            interpreter = find_interpreter(version, self.context.runner)
            if interpreter.path is not None:
                return interpreter
        raise MachineError(
            "this machine has no Python for the TPU compiler",
            expected=f"CPython {' or '.join(versions)}, which jaxlib and libtpu are published for",
            found="none of them",
            next_step=f"Install python{versions[-1]}, so that it is on PATH.",
        )


def program_python(python: str | None, pin: Pin, context: Context) -> Interpreter:
    """Return the Python of the environment that a command is about.

    Args:
        python: What the user named; else the active environment is taken if it has torch_xla, else one of dist/.
        pin: The pin whose wheels in dist/ are meant.

    Raises:
        MachineError: There is none, and no wheels to make one of.
    """
    if python is None:
        active = active_python()
        if active is not None and _has_torch_xla(active, context):
            python = active
    if python is not None:
        found = find_interpreter(python, context.runner)
        if found.path is not None:
            return found
        raise MachineError(
            f"there is no CPython {python}",
            expected="the path of the Python of an environment",
            found=f"--python {python}",
            next_step="Name the environment's bin/python.",
        )
    dist = ROOT / "dist" / f"{pin.name}-cpu"
    context.console.note(f"no environment with torch_xla is active; taking one with the wheels in {dist}")
    made = Environments(context, root=ROOT).patched(dist)
    return find_interpreter(str(made), context.runner)


def _has_torch_xla(python: str, context: Context) -> bool:
    question = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch_xla') is None)"
    return context.runner.run([python, "-c", question], name="active", check=False).returncode == 0
