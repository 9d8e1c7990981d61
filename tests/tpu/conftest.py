"""Tests on the real TPU compiler, with or without a TPU.

``tpu_hlo(fn_or_tensors, topology="v5e:2x2")`` compiles a pending graph ahead of time. The compiler's
environment is the one that ``castoff tpu environment`` makes; CASTOFF_TPU_PYTHON and
CASTOFF_TPU_RESULTS, which it prints, are used if they are set.

``expect_tpu(text)`` compares with ``expected/<pin>/<test>.txt``, or, where the TPU generations differ,
with ``<test>.<generation>.txt``. What a pin has no file of is expected as on the default pin.
EXPECTTEST_ACCEPT=1 writes these files.
"""

import os
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import torch

from castoff.formats.xla_text import Module, parse_hlo
from castoff.tpu.client import Compiled, TpuCompiler
from castoff.tpu.normalize import normalize
from castoff.tpu.trace import program_of

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = Path(__file__).parent / "expected"

TOPOLOGIES = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2")


@dataclass(frozen=True)
class TpuProgram:
    """A program as the TPU compiler made it, and what tests ask of it."""

    compiled: Compiled

    @cached_property
    def text(self) -> str:
        """Its optimised HLO, normalised."""
        return normalize(self.compiled.hlo)

    @cached_property
    def module(self) -> Module:
        """Its optimised HLO, to look into."""
        return parse_hlo(self.compiled.hlo)

    @property
    def converts(self) -> list[tuple[str, str]]:
        return self.module.converts()

    @property
    def memory(self) -> dict[str, int]:
        return self.compiled.memory

    @property
    def estimated_cycles(self) -> int:
        return self.compiled.estimated_cycles


def compiler_environment() -> tuple[Path, Path]:
    """The Python of the compiler's environment, and the folder of its results."""
    names = ("CASTOFF_TPU_PYTHON", "CASTOFF_TPU_RESULTS")
    if not all(name in os.environ for name in names):
        os.environ.update(made_environment())
    return Path(os.environ[names[0]]), Path(os.environ[names[1]])


def made_environment(*arguments: str) -> dict[str, str]:
    """What ``castoff tpu environment`` prints."""
    castoff = ROOT / ".venv" / "bin" / "castoff"
    assert castoff.exists(), f"expected {castoff} to make the compiler's environment; ./build.sh --help makes it"
    command = [castoff, "tpu", "environment", *arguments]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(line.split("=", 1) for line in answer.stdout.splitlines())


@pytest.fixture(scope="session")
def tpu_compiler():
    with TpuCompiler(*compiler_environment()) as compiler:
        yield compiler


@pytest.fixture(autouse=True)
def traced_for_tpu():
    """The tests' process traces what it would on a TPU; stock wheels do not ask."""
    try:
        from torch_xla._native_attention import trace_for_tpu
    except ImportError:
        yield
        return
    trace_for_tpu(True)
    yield
    trace_for_tpu(False)


@pytest.fixture(scope="session")
def tpu_hlo(tpu_compiler):
    """Compile a pending graph for TPUs: ``tpu_hlo(fn_or_tensors, topology="v5e:2x2", options=…)``."""

    def compile_graph(fn_or_tensors, topology="v5e:2x2", options=None) -> TpuProgram:
        tensors = fn_or_tensors() if callable(fn_or_tensors) else fn_or_tensors
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        return TpuProgram(tpu_compiler.compile(*_arguments(tensors, topology), options=options))

    return compile_graph


def _arguments(tensors, topology):
    stablehlo, partitions = program_of(tensors)
    return stablehlo, topology, partitions


@pytest.fixture(params=TOPOLOGIES, ids=lambda topology: topology.split(":")[0])
def topology(request):
    """Each TPU generation that a topic must hold on."""
    return request.param


@pytest.fixture
def expect_tpu(request, topology):
    """Compare with what is expected of this pin, on this generation."""
    pin = ".".join(torch.__version__.split(".")[:2])
    name = request.node.originalname
    variant = [part for part in request.node.callspec.id.split("-") if part != topology.split(":")[0]]
    stem = "-".join([name, *variant])
    generation = topology.split(":")[0]

    def files(pin):
        return [EXPECTED / pin / f"{stem}{suffix}.txt" for suffix in (f".{generation}", "")]

    def compare(text):
        if os.environ.get("EXPECTTEST_ACCEPT"):
            own, every = files(pin)
            _accept(text, every, own)
        found = [path for path in (*files(pin), *files(request.config.default_pin())) if path.exists()]
        assert found, f"nothing is expected yet: EXPECTTEST_ACCEPT=1 writes {files(pin)[1]}"
        assert text == found[0].read_text(encoding="utf-8")

    return compare


_accepted = set()


def _accept(text, every, own):
    """Write what is expected: to the file of all generations or, if that differs, to the generation's own."""
    every.parent.mkdir(parents=True, exist_ok=True)
    if every not in _accepted:
        _accepted.add(every)
        for old in every.parent.glob(f"{every.stem}.*"):
            old.unlink()
    if not every.exists():
        every.write_text(text, encoding="utf-8")
    elif every.read_text(encoding="utf-8") != text:
        own.write_text(text, encoding="utf-8")
