"""The comparison of upstream's tests on stock and on patched wheels, on a made-up suite."""

import io
import os
import sys
from pathlib import Path

import pytest

from castoff.core.console import Console
from castoff.core.errors import UpstreamTestsError
from castoff.core.runner import Runner
from castoff.upstream.upstream_tests import Runs, Suite, check, compare, counts, differences, read_report

# Its outcomes depend on the "wheels", as an environment variable that the made-up interpreters set.
TESTS = """
import os, pathlib, pytest, unittest
WHEELS = os.environ["WHEELS"]
class TestAll(unittest.TestCase):
    def test_well(self): pass
    def test_fails(self): assert False
    @unittest.skip("not here")
    def test_skipped(self): pass
    @unittest.expectedFailure
    def test_expected(self): assert False
@pytest.mark.parametrize("n", [1, 2])
def test_many(n): assert n == 1 or WHEELS != "broken"
def test_now_and_then():
    mark = pathlib.Path(__file__).with_name(f"was-{WHEELS}")
    if WHEELS == "flaky" and not mark.exists():
        mark.touch()
        assert False
if WHEELS == "more":
    def test_only_here(): pass
"""
SUITE = Suite("made up", ("test_all.py",), quick=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_all.py").write_text(TESTS)
    return tmp_path


def _python(folder: Path, wheels: str) -> Path:
    path = folder / wheels
    few = "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTEST_PLUGINS=xdist"  # the others take a second to import
    path.write_text(f'#!/bin/sh\nWHEELS={wheels} {few} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def runs(folder: Path, runner: Runner) -> Runs:
    return Runs(folder / "test", folder / "no-tools", runner)


def _compare(folder: Path, patched: str, runs: Runs, console: Console, known: Path | None = None):
    pythons = _python(folder, "stock"), _python(folder, patched)
    return compare(*pythons, (SUITE,), runs, console, known=known, workers=0, seconds=120)


def test_what_ends_alike_is_well_even_if_it_fails(folder: Path, runs: Runs, console: Console, log: io.StringIO) -> None:
    (comparison,) = _compare(folder, "same", runs, console)
    assert counts(comparison.stock) == {"passed": 4, "xfailed": 1, "skipped": 1, "failed": 1}
    assert comparison.as_dict()["failing"] == ["test_all.TestAll::test_fails"]
    check([comparison])
    assert "alike     4 passed, 1 xfailed, 1 skipped, 1 failed" in log.getvalue()


def test_a_test_that_ends_otherwise_is_named(folder: Path, runs: Runs, console: Console, log: io.StringIO) -> None:
    comparisons = _compare(folder, "broken", runs, console)
    with pytest.raises(UpstreamTestsError) as caught:
        check(comparisons)
    assert caught.value.found == "  made up: test_all::test_many[2]: passed on stock, failed on patched"
    assert "1 DIFFER" in log.getvalue()


def test_a_test_that_only_one_has_is_a_difference(folder: Path, runs: Runs, console: Console) -> None:
    (comparison,) = _compare(folder, "more", runs, console)
    (difference,) = comparison.differences
    assert (difference.test, difference.stock, difference.patched) == ("test_all::test_only_here", "missing", "passed")


def test_a_difference_that_does_not_come_again_does_not_count(folder: Path, runs: Runs, console: Console) -> None:
    (comparison,) = _compare(folder, "flaky", runs, console)
    assert comparison.patched["test_all::test_now_and_then"] == "failed"
    assert comparison.differences == ()


def test_outcomes_on_stock_are_kept_until_what_they_depend_on_changes(
    folder: Path, runs: Runs, console: Console
) -> None:
    known = folder / "known"
    (first,) = _compare(folder, "same", runs, console, known)
    (kept,) = known.iterdir()
    kept.write_text(kept.read_text().replace('"xfailed"', '"failed"'))  # to see that it is read
    (second,) = _compare(folder, "same", runs, console, known)
    assert counts(first.stock)["failed"] + 1 == counts(second.stock)["failed"]
    (folder / "test" / "test_all.py").write_text(TESTS + "\ndef test_new(): pass\n")
    (third,) = _compare(folder, "same", runs, console, known)
    assert counts(third.stock)["passed"] == 5
    assert len(list(known.iterdir())) == 2


def test_tests_that_do_not_come_to_their_end(folder: Path, runs: Runs, console: Console) -> None:
    (folder / "test" / "test_all.py").write_text("import os\nos._exit(7)\n")
    with pytest.raises(UpstreamTestsError, match="did not finish") as caught:
        _compare(folder, "same", runs, console)
    assert "exit status 7" in caught.value.found


def test_what_steers_tests_is_not_seen(
    folder: Path, runs: Runs, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONSTARTUP", "PYTEST_ADDOPTS", "LD_PRELOAD_X", "PYTORCH_TEST_WITH_SLOW", "CI"):
        monkeypatch.setenv(name, "surprise")
    text = "import os\ndef test_it(): assert not [k for k in os.environ if os.environ[k] == 'surprise']\n"
    (folder / "test" / "test_all.py").write_text(text)
    (comparison,) = _compare(folder, "same", runs, console)
    assert counts(comparison.patched) == {"passed": 1}
    assert os.environ["PYTEST_ADDOPTS"] == "surprise"


def test_of_several_outcomes_of_a_test_the_worst_counts(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    case = '<testcase classname="test.test_a.T" name="t">{}</testcase>'
    report.write_text(f"<s>{case.format('')}{case.format('<error/>')}{case.format('<skipped/>')}</s>")
    assert read_report(report) == {"test_a.T::t": "failed"}
    assert differences("s", {"a": "passed"}, {"a": "skipped"})[0].patched == "skipped"
