"""What is known of the tests on stock wheels, which never change: tests/stock.json.

Of each module it has a hash, and the tests that were seen to fail, or to pass, as they must. The hash is that of the
module, of the tests' other files that it uses, of what it imports of castoff, but for what builds wheels, as stock
wheels are not built here, and of the pin with its wheels' hashes. A test whose module has another hash, or that is not
in the record, is known no more and must be run again.

``pytest --stock --unrecorded`` leaves out what is known; with ``--record`` it writes what it sees. ci/record.sh does
both.
"""

import functools
import hashlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "stock.json"

CHOOSE = ("earlier_pins.py", "slices.py", "stock.json", "stock_record.py")
"""They choose tests, and nothing in a test depends on them."""
FOLDERS = (
    *("tests", "tests/audit", "tests/docs", "tests/ir", "tests/operators", "tests/torch", "tests/tpu"),
    *("bench", "bench/shared", "bench/workers"),
)
"""What tests import or start lies in these folders, beside themselves."""
NO_DATA = (".py", ".pyc", ".bak")
"""In a test's folder all else is read by tests; expecttest leaves a .bak beside what it has written anew."""
IMPORTED = re.compile(r"\b(?:from|import)\s+([\w.]+)")
NAMED = re.compile(r"[\w-]+\.(?:py|json|mlir|toml)\b")


@functools.cache
def by_name():
    """The files of tests, examples and benchmarks by their names."""
    found = {}
    folders = [ROOT / folder for folder in FOLDERS]
    paths = [path for folder in folders for path in folder.glob("*.*")]
    for path in [*paths, *ROOT.glob("examples/**/*.*"), *ROOT.glob("patches/*/*/*.py")]:
        found.setdefault(path.name, []).append(path)
    return found


@functools.cache
def used_by(path):
    """The files that a file imports; of one of the tests also those that it names, or that its programs import.

    Rather too many than too few.
    """
    text = path.read_text(encoding="utf-8")
    found = []
    names = set(NAMED.findall(text)) if path.is_relative_to(ROOT / "tests") else set()
    for module in IMPORTED.findall(text):
        first, *rest = module.split(".")
        if first == "castoff":
            found += of_castoff(rest)
        elif not path.is_relative_to(ROOT / "castoff"):
            names.add(f"{first}.py")
    return [*found, *(file for name in names for file in by_name().get(name, ()))]


def of_castoff(names):
    """The files of a module of castoff's: of a package all, as any of them may be what is imported from it."""
    if names[:1] == ["builder"]:  # which makes no stock wheel
        return []
    path = ROOT.joinpath("castoff", *names)
    return [*path.glob("*.py")] if path.is_dir() else [path.with_suffix(".py"), path.parent / "__init__.py"]


@functools.cache
def files_of(module):
    """The module of tests, and all that it uses."""
    folder = module.parent
    data = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in NO_DATA]
    return frozenset(data) | closure([module, folder / "conftest.py", ROOT / "tests" / "conftest.py"])


def closure(paths):
    """These files and all that they use, by way of others, too."""
    todo, found = list(paths), set()
    while todo:
        path = todo.pop()
        if path in found or path.name in CHOOSE or not path.is_file():
            continue
        found.add(path)
        if path.suffix == ".py":
            todo += used_by(path)
    return frozenset(found)


@functools.cache
def hash_of(module, pin):
    """The hash of all that decides what a module's tests do on a pin's stock wheels."""
    digest = hashlib.sha256()
    for path in sorted({*files_of(module), ROOT / "pins" / f"{pin}.toml"}):
        text = path.read_bytes()
        if path.suffix == ".toml":  # no stock wheel meets the compilers of later generations, with which a pin ends
            text = text.partition(b"\n[tpu.generations.")[0]
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + text + b"\0")
    return digest.hexdigest()[:16]


def name_of(item):
    """A test's name in the record. A case that is a whole program is known by that, and not by the line of its id."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    texts = [value for value in values if isinstance(value, str) and "\n" in value]
    name = item.nodeid.partition("[")[0] + "".join(texts) if texts else item.nodeid
    return hashlib.sha256(name.encode()).hexdigest()[:8]


RECORDED_AS = "recorded as"
"""With its report a test, in whatever process it runs, tells its name in the record and its module's hash."""


class StockRecord:
    """The record of one pin: a plugin of pytest, which leaves out what is known, or writes what it sees."""

    def __init__(self, pin, *, leaves_out, writes, path=RECORD):
        self.pin, self.leaves_out, self.writes, self.path = pin, leaves_out, writes, path
        self.known = self.read().get(pin, {})
        self.seen = {}
        self.left_out = 0

    def read(self):
        return json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}

    def has(self, item, *, fails):
        """Whether a test was seen to fail, or to pass, as it is now."""
        module = self.known.get(self.module_of(item.nodeid))
        if module is None or module["of"] != hash_of(item.path, self.pin):
            return False
        return name_of(item) in module["fails" if fails else "passes"].split()

    def choose(self, items, must_fail):
        """The tests that are left out, as they are known. Each of the others tells its name with its report."""
        for item in items:  # the hash of now: by the end of the run, files may have changed
            item.user_properties.append((RECORDED_AS, (name_of(item), hash_of(item.path, self.pin))))
        if not self.leaves_out:
            return []
        known = [item for item in items if self.has(item, fails=must_fail(item))]
        self.left_out = len(known)
        return known

    @staticmethod
    def module_of(nodeid):
        return nodeid.partition("::")[0]

    def pytest_runtest_logreport(self, report):
        recorded_as = dict(report.user_properties).get(RECORDED_AS)
        if recorded_as is None:
            return
        fails = report.skipped and hasattr(report, "wasxfail")
        if fails or (report.passed and report.when == "call" and not hasattr(report, "wasxfail")):
            name, of = recorded_as
            self.seen.setdefault((self.module_of(report.nodeid), of), {})[name] = "fails" if fails else "passes"

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left out"] = self.left_out
            return
        if self.writes and self.seen:
            self.write()
        if self.left_out and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.left_out = getattr(node, "workeroutput", {}).get("left out", 0)

    def pytest_terminal_summary(self, terminalreporter):
        if self.leaves_out:
            terminalreporter.write_line(f"{self.left_out} are known from tests/{self.path.name}, and were not run")

    def write(self):
        """Add what was seen to the record; of modules that are not as they were, and of none, the rest is dropped."""
        record = self.read()
        modules = record.setdefault(self.pin, {})
        for (name, of), outcomes in self.seen.items():
            old = modules.get(name, {})
            known = {test: kind for kind in ("fails", "passes") for test in old.get(kind, "").split()}
            known = (known if old.get("of") == of else {}) | outcomes
            modules[name] = {"of": of} | {
                kind: " ".join(sorted(test for test, was in known.items() if was == kind))
                for kind in ("fails", "passes")
            }
        record[self.pin] = {name: modules[name] for name in sorted(modules) if (ROOT / name).exists()}
        self.path.write_text(text_of(record), encoding="utf-8")


def text_of(record):
    """The record as JSON with a line for each module, so that changes of two modules do not meet."""
    pins = []
    for pin, modules in sorted(record.items()):
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(module)}" for name, module in modules.items())
        pins.append(f" {json.dumps(pin)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(pins) + "\n}\n"
