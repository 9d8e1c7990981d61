"""Upstream's own tests, on stock and on patched wheels: the outcomes must be the same.

They run from a checkout of the pin, with a pytest of their time, and can import only the torch of their
environment. A test with different outcomes on the two is run once more on both, alone, before it counts:
some of upstream's tests depend on time and load.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from castoff.builder.fetch import file_sha256
from castoff.core.console import Console
from castoff.core.context import Context
from castoff.core.errors import CommandError, FetchError, UpstreamTestsError
from castoff.core.pipconfig import current_uv_environment
from castoff.core.runner import Runner, environment_for_tests
from castoff.core.tools import tool

LOCK = Path(__file__).parent / "upstream_tests.lock"
"""The pytest that upstream's tests were written for and the packages that they import, by hash."""

_RANK = ("passed", "xfailed", "skipped", "failed")
_SHOWN = 20
_MOST_RETRIED = 50
_NO_TESTS = 5
"""pytest's exit status if there is no such test."""

_INSTALLED = """
import hashlib, importlib.metadata as m
for one in sorted(m.distributions(), key=lambda one: one.metadata["Name"]):
    record = [line for line in (one.read_text("RECORD") or "").splitlines() if not line.startswith("../")]
    print(one.metadata["Name"], one.version, hashlib.sha256("".join(record).encode()).hexdigest())
"""
"""Prints what is installed, exactly: RECORD has the hash of every file. Commands in bin/ name their environment."""

_NN_FIRST = "(TestNN and not TestNNDevice) or hook or grad"


@dataclass(frozen=True)
class Suite:
    """A part of upstream's tests."""

    name: str
    arguments: tuple[str, ...]  # pytest's arguments, in the folder ``test``
    quick: bool  # whether it is short enough for every run of CI


SUITES = (
    Suite("autograd", ("test_autograd.py",), quick=True),
    Suite("out_dtype", ("test_out_dtype_op.py",), quick=True),
    Suite("modules: dtype conversion", ("test_modules.py", "-k", "test_to"), quick=True),
    Suite(
        "torch: dtype conversion",
        ("test_torch.py", "-k", "set_data or metadata_change or swap or copy or test_type or dtype or storage"),
        quick=True,
    ),
    Suite("nn: hooks and gradients", ("test_nn.py", "-k", _NN_FIRST), quick=False),
    Suite("nn", ("test_nn.py", "-k", f"not ({_NN_FIRST})"), quick=False),
    Suite("higher-order operators", ("dynamo/test_higher_order_ops.py",), quick=False),
    Suite("compiled autograd", ("inductor/test_compiled_autograd.py",), quick=False),
)


@dataclass(frozen=True)
class Difference:
    """A test with different outcomes on the two."""

    suite: str  # the suite's name
    test: str  # the test
    stock: str  # its outcome on stock wheels: passed, xfailed, skipped, failed, or missing
    patched: str  # its outcome on patched wheels


Outcomes = Mapping[str, str]


@dataclass(frozen=True)
class Comparison:
    """The outcomes of one suite on the two."""

    suite: str  # the suite's name
    stock: Outcomes  # the outcome of each test on stock wheels
    patched: Outcomes  # the same on patched ones
    differences: tuple[Difference, ...]  # the tests with different outcomes, also when run again

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "suite": self.suite,
            "stock": counts(self.stock),
            "patched": counts(self.patched),
            "failing": sorted(test for test, outcome in self.stock.items() if outcome == "failed"),
            "differences": [vars(difference) for difference in self.differences],
        }


def counts(outcomes: Outcomes) -> dict[str, int]:
    """Return the number of tests of each outcome, in the order of ``_RANK``."""
    return {outcome: n for outcome in _RANK if (n := list(outcomes.values()).count(outcome))}


def differences(suite: str, stock: Outcomes, patched: Outcomes) -> tuple[Difference, ...]:
    """Return the tests with different outcomes on the two; a test that only one has is among them."""
    tests = sorted({*stock, *patched})
    found = (Difference(suite, test, stock.get(test, "missing"), patched.get(test, "missing")) for test in tests)
    return tuple(difference for difference in found if difference.stock != difference.patched)


def read_report(path: Path) -> dict[str, str]:
    """Return the outcome of each test in a JUnit report; the worst if it has several.

    Args:
        path: The report, as pytest writes it.
    """
    outcomes: dict[str, str] = {}
    for case in ET.parse(path).getroot().iter("testcase"):  # noqa: S314 - our own pytest wrote it
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = "failed"
            elif child.tag == "skipped":
                outcome = "xfailed" if child.get("type") == "pytest.xfail" else "skipped"
        test = f"{case.get('classname', '').removeprefix('test.')}::{case.get('name')}"
        outcomes[test] = max(outcomes.get(test, "passed"), outcome, key=_RANK.index)
    return outcomes


class Runs:
    """Runs upstream's tests in an environment.

    Args:
        tests: The folder ``test`` of a checkout.
        tools: The folder with the pytest to use.
    """

    def __init__(self, tests: Path, tools: Path, runner: Runner) -> None:
        self._tests = tests
        self._tools = tools
        self._runner = runner

    def identity(self, python: Path, arguments: Sequence[str]) -> str:
        """Return a hash of everything that outcomes depend on: the tests, their tools, what is installed, the cores."""
        asked = self._runner.run([python, "-I", "-c", _INSTALLED], name="installed").output
        source = file_sha256(self._tests / arguments[0])
        parts = [*arguments, source, file_sha256(LOCK), asked, str(os.cpu_count())]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def run(
        self, python: Path, arguments: Sequence[str], *, workers: int, seconds: int, none_is_well: bool = False
    ) -> dict[str, str]:
        """Run tests; return their outcomes.

        Args:
            workers: How many tests to run at once; 0 for one after the other in one process.
            seconds: The time limit.
            none_is_well: Whether no such test is accepted.

        Raises:
            UpstreamTestsError: pytest did not finish.
        """
        ends = (0, 1, _NO_TESTS) if none_is_well else (0, 1)
        with tempfile.TemporaryDirectory(prefix="castoff-") as folder:
            report = Path(folder) / "report.xml"
            command: list[str | Path] = ["timeout", str(seconds), python, "-m", "pytest", "-q"]
            command += ["-n", str(workers), "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
            done = self._runner.run(
                command, name="upstream-tests", cwd=self._tests, env=self._environment(Path(folder)), check=False
            )
            if done.returncode not in ends or not report.is_file():
                raise UpstreamTestsError(
                    "upstream's tests did not finish",
                    expected=f"`pytest {' '.join(arguments)}` ends within {seconds} s, in {python}",
                    found=f"exit status {done.returncode}; it ended with\n{done.tail}",
                    next_step=f"Read the whole log: {done.log}",
                )
            return read_report(report)

    def _environment(self, scratch: Path) -> dict[str, str]:
        return {
            **environment_for_tests(),
            "PYTHONPATH": str(self._tools),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
            "TMPDIR": str(scratch),
        }


def install_tools(python: Path, context: Context) -> Path:
    """Return a folder with the pytest that upstream's tests need, installed once for each CPython version.

    Args:
        python: The interpreter that is to import it.

    Raises:
        FetchError: It is not available.
    """
    asked = "import sys; print(*sys.version_info[:2], sep='.')"
    version = context.runner.run([python, "-c", asked], name="version").output.strip()
    key = f"upstream-tests-{version}-{file_sha256(LOCK)[:16]}"

    def make(folder: Path) -> None:
        command: list[str | Path] = [tool("uv"), "pip", "install", "--python", python, "--target", folder, "--no-deps"]
        command += ["--require-hashes", "--requirement", LOCK]
        try:
            context.runner.run(command, name="upstream-tools", env=current_uv_environment(context.runner))
        except CommandError as error:
            raise FetchError(
                "the pytest that upstream's tests need is not available",
                expected=f"uv installs {LOCK.name}",
                found=error.found,
                next_step=error.next_step,
            ) from error

    return context.cache.ensure(context.cache.unpacked(key), key, make)


def compare(
    stock: Path,
    patched: Path,
    suites: Sequence[Suite],
    runs: Runs,
    console: Console,
    *,
    known: Path | None = None,
    workers: int = 2,
    seconds: int = 7200,
) -> tuple[Comparison, ...]:
    """Run suites on stock and on patched wheels.

    Args:
        stock: The interpreter of the environment with the stock wheels.
        patched: The interpreter of the one with the patched wheels.
        known: A folder where the outcomes on stock wheels are kept for the next comparison.
        workers: How many tests to run at once.
        seconds: The time limit of a suite.

    Returns:
        A comparison for each suite.

    Raises:
        UpstreamTestsError: A suite did not finish.
    """
    comparisons = []
    for suite in suites:
        start = time.monotonic()
        before = _on_stock(stock, suite, runs, known, workers=workers, seconds=seconds)
        after = runs.run(patched, suite.arguments, workers=workers, seconds=seconds)
        different = differences(suite.name, before, after)
        if 0 < len(different) <= _MOST_RETRIED:
            different = _again(different, suite, (stock, patched), runs, seconds=seconds)
        comparison = Comparison(suite.name, before, after, different)
        comparisons.append(comparison)
        took = round(time.monotonic() - start)
        console.result(f"{_summary(comparison)}   {took} s", {**comparison.as_dict(), "seconds": took})
    return tuple(comparisons)


def check(comparisons: Sequence[Comparison]) -> None:
    """Check that the outcomes are the same.

    Raises:
        UpstreamTestsError: Some are not.
    """
    different = [difference for comparison in comparisons for difference in comparison.differences]
    if not different:
        return
    rows = [f"  {one.suite}: {one.test}: {one.stock} on stock, {one.patched} on patched" for one in different[:_SHOWN]]
    if len(different) > _SHOWN:
        rows.append(f"  … and {len(different) - _SHOWN} more")
    raise UpstreamTestsError(
        f"{len(different)} of upstream's tests have different outcomes",
        expected="each of upstream's tests has the same outcome on stock and on patched wheels",
        found="\n".join(rows),
        next_step="Run one of them on both, in the folder test of a checkout (castoff checkout).",
    )


def _on_stock(stock: Path, suite: Suite, runs: Runs, known: Path | None, *, workers: int, seconds: int) -> Outcomes:
    kept = known / f"{runs.identity(stock, suite.arguments)}.json" if known is not None else None
    if kept is not None and kept.is_file():
        outcomes: dict[str, str] = json.loads(kept.read_text(encoding="utf-8"))
        return outcomes
    outcomes = runs.run(stock, suite.arguments, workers=workers, seconds=seconds)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        beside = kept.with_suffix(".new")
        beside.write_text(json.dumps(outcomes), encoding="utf-8")
        beside.replace(kept)
    return outcomes


def _again(
    different: Sequence[Difference], suite: Suite, pythons: tuple[Path, Path], runs: Runs, *, seconds: int
) -> tuple[Difference, ...]:
    """Run tests once more on both, alone; return those that still have different outcomes."""
    names = {difference.test for difference in different}
    wanted = " or ".join(sorted({name.rsplit("::", 1)[1].split("[")[0] for name in names}))
    arguments = (suite.arguments[0], "-k", wanted)
    stock, patched = (
        {
            name: outcome
            for name, outcome in runs.run(python, arguments, workers=0, seconds=seconds, none_is_well=True).items()
            if name in names
        }
        for python in pythons
    )
    still = differences(suite.name, stock, patched)
    # A test that only one of the two has was not run again.
    return (*still, *(one for one in different if one.test not in {*stock, *patched}))


def _summary(comparison: Comparison) -> str:
    def text(outcomes: Outcomes) -> str:
        return ", ".join(f"{n} {outcome}" for outcome, n in counts(outcomes).items()) or "nothing"

    same = text(comparison.stock) == text(comparison.patched)
    ended = text(comparison.stock) if same else f"{text(comparison.stock)} | patched: {text(comparison.patched)}"
    verdict = f"{len(comparison.differences)} DIFFER" if comparison.differences else "alike"
    return f"{comparison.suite:<28} {verdict:<9} {ended}"
