"""The record of tests on stock wheels: what is known is left out, and what has changed is not known."""

from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
from answers import answer

def test_fails(expected): ...
def test_passes(): ...
"""
FAILS = ("test_answers.py::test_fails[1]", "test_answers.py::test_fails[2]")
PASSES = ("test_answers.py::test_passes", "test_other.py::test_other")


@pytest.fixture
def stock_record(tmp_path, monkeypatch):
    """The module, on a tree with two modules of tests, one of which imports a file of answers."""
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    import stock_record

    monkeypatch.setattr(stock_record, "ROOT", tmp_path)
    files = {
        "tests/conftest.py": "",
        "tests/ir/answers.py": "def answer(): ...\n",
        "tests/ir/test_answers.py": TESTS,
        "tests/ir/test_other.py": "def test_other(): ...\n",
        "pins/2.9.toml": "torch = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    yield stock_record
    forget(stock_record)


def forget(stock_record):
    """What a process has read of the files, another one reads again."""
    for function in ("by_name", "used_by", "files_of", "hash_of"):
        getattr(stock_record, function).cache_clear()


def run(stock_record, *, leaves_out=False, writes=False, other=()):
    """What a run of pytest runs: the tests, those in `other` with the outcome that they must not have."""
    forget(stock_record)
    root = stock_record.ROOT
    record = stock_record.StockRecord("2.9", leaves_out=leaves_out, writes=writes, path=root / "tests" / "stock.json")
    items = [
        SimpleNamespace(nodeid=f"tests/ir/{name}", path=root / "tests/ir" / name.split("::")[0], user_properties=[])
        for name in FAILS + PASSES
    ]
    left = record.choose(items, lambda item: item.nodeid.rpartition("/")[2] in FAILS)
    ran = [item for item in items if item not in left]
    for item in ran:
        name = item.nodeid.rpartition("/")[2]
        record.pytest_runtest_logreport(report(item, fails=(name in FAILS) == (name not in other)))
    session = SimpleNamespace(config=None, exitstatus=pytest.ExitCode.OK if ran else pytest.ExitCode.NO_TESTS_COLLECTED)
    record.pytest_sessionfinish(session)
    assert session.exitstatus == pytest.ExitCode.OK
    return [item.nodeid.rpartition("/")[2] for item in ran]


def report(item, *, fails):
    """As pytest has it: a test that must fail is "skipped" if it does, with a reason, and "failed" if it does not."""
    must_fail = item.nodeid.rpartition("/")[2] in FAILS
    reason = {"wasxfail": "stock wheels"} if must_fail and fails else {}
    return SimpleNamespace(
        nodeid=item.nodeid,
        user_properties=item.user_properties,
        when="call",
        skipped=must_fail and fails,
        passed=not must_fail and not fails,
        **reason,
    )


def test_what_is_recorded_is_not_run_again(stock_record):
    assert run(stock_record, leaves_out=True) == [*FAILS, *PASSES]
    assert run(stock_record, writes=True) == [*FAILS, *PASSES]
    assert run(stock_record, leaves_out=True) == []
    assert run(stock_record, writes=True) == [*FAILS, *PASSES]


@pytest.mark.parametrize(
    ("file", "again"),
    [
        ("tests/ir/test_answers.py", [*FAILS, PASSES[0]]),
        ("tests/ir/answers.py", [*FAILS, PASSES[0]]),
        ("tests/conftest.py", [*FAILS, *PASSES]),
        ("tests/ir/data.json", [*FAILS, *PASSES]),
        ("pins/2.9.toml", [*FAILS, *PASSES]),
    ],
)
def test_a_change_of_what_a_test_uses_runs_it_again(stock_record, file, again):
    run(stock_record, writes=True)
    with (stock_record.ROOT / file).open("a") as text:
        text.write("\n# changed\n")
    assert run(stock_record, leaves_out=True) == again
    assert run(stock_record, leaves_out=True, writes=True) == again
    assert run(stock_record, leaves_out=True) == []


def test_a_test_that_does_not_fail_as_it_must_is_not_recorded(stock_record):
    run(stock_record, writes=True, other=[FAILS[0], PASSES[1]])
    assert run(stock_record, leaves_out=True) == [FAILS[0], PASSES[1]]


def test_a_test_with_another_mark_is_run_again(stock_record, monkeypatch):
    """What was seen to pass is not known to fail."""
    run(stock_record, writes=True)
    monkeypatch.setitem(globals(), "FAILS", (*FAILS, PASSES[0]))
    monkeypatch.setitem(globals(), "PASSES", PASSES[1:])
    assert run(stock_record, leaves_out=True) == [PASSES_OF_ANSWERS]


PASSES_OF_ANSWERS = PASSES[0]


def test_a_program_is_known_by_its_text(stock_record):
    """Not by the line of the docs where it stands."""

    def name(line, text):
        item = SimpleNamespace(nodeid=f"tests/docs/test_snippets.py::test_program[why.md:{line}]")
        item.callspec = SimpleNamespace(params={"program": text})
        return stock_record.name_of(item)

    assert name(10, "a\nb\n") == name(20, "a\nb\n") != name(20, "a\nc\n")
    assert name(10, "a") != name(20, "a")


def test_what_the_tests_of_this_tree_use(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    import stock_record

    def names(module):
        return {path.relative_to(ROOT).as_posix() for path in stock_record.files_of(ROOT / "tests" / module)}

    of_casts = names("ir/test_exact_casts.py")
    assert {"tests/conftest.py", "tests/ir/ir_text.py", "castoff/formats/xla_text.py"} <= of_casts
    assert "tests/ir/random_casts.py" in of_casts  # a program that it starts
    assert "tests/torch/grad_dtype_cases.json" in names("torch/test_grad_dtype_conformance.py")
    assert any(name.startswith("tests/tpu/expected/") for name in names("tpu/test_tpu_hlo.py"))
    assert not {"tests/stock.json", "tests/slices.py"} & of_casts
    of_audits = names("audit/test_audit_step.py")
    assert "castoff/audit/program.py" in of_audits
    assert not any(name.startswith("castoff/builder/") for name in of_audits)  # which builds no stock wheel
