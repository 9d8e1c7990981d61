"""A plugin of pytest, for suites that take long: ``-p tests.of_the_day --of-the-day`` runs a seventh of them each day.

``--seventh`` and ``--others`` divide a suite of which only one part runs in the way that takes longer.

A test whose day it is not runs nevertheless if something has changed lately: a file that its module uses, a topic that
names the module, or, of a program in the docs, a line. With CASTOFF_DAY=all every test runs, as a workflow does each
week.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))

from earlier_pins import COMMITS, ROOT, changed_lately  # noqa: E402
from slices import slice_of_day  # noqa: E402
from stock_record import files_of  # noqa: E402

PARTS = 7
EVERY_TEST_S = {HERE / "conftest.py"}
"""It is read by all tests; those of the day show whether they still run."""


def pytest_addoption(parser):
    parser.addoption("--of-the-day", action="store_true", help="a seventh of the tests, and those of what has changed")
    parser.addoption("--seventh", action="store_true", help="a seventh of the tests, whatever has changed")
    parser.addoption("--others", action="store_true", help="the tests that --seventh leaves out")


def changed_topics(files):
    """The topics of which some code is among the changed files."""
    return {match[1] for file in files if (match := re.match(r"patches/([^/]+/[^/]+)/(?:files|hunks|overlay)/", file))}


def has_changed(module, files):
    """Whether a module of tests, something that it uses, or a topic that names it is among the changed files."""
    used = {path.relative_to(ROOT).as_posix() for path in files_of(module) - EVERY_TEST_S}
    if not used.isdisjoint(files):
        return True
    name = module.relative_to(ROOT).as_posix()
    topics = (ROOT / "patches" / topic / "topic.toml" for topic in changed_topics(files))
    return any(name in tomllib.loads(path.read_text()).get("tests", ()) for path in topics if path.exists())


def docs_of_before():
    """The text of the docs before the last commits; empty where that is not known."""
    command = ["git", "grep", "-h", "", f"HEAD~{COMMITS}", "--", "README.md", "CONTRIBUTING.md", "docs/*.md"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def is_new(program, before):
    """Whether a program of the docs has a line that the docs did not have before."""
    return not all(line.strip() in before for line in program.splitlines())


def program_of(item):
    """The program of the docs that a test runs; None if it runs none."""
    if item.path.parent.name != "docs" or not hasattr(item, "callspec"):
        return None
    return next(iter(item.callspec.params.values()))


def seventh(items):
    """The tests whose day it is."""
    turn = set(slice_of_day([item.nodeid for item in items], PARTS))
    return [item for item in items if item.nodeid in turn]


def chosen(items):
    """The tests whose day it is, and those of what has changed."""
    files, before = changed_lately(), docs_of_before()
    changed = {module: has_changed(module, files) for module in {item.path for item in items}}
    turn = {item.nodeid for item in seventh(items)}
    return [
        item
        for item in items
        if item.nodeid in turn
        or (is_new(program, before) if (program := program_of(item)) is not None else changed[item.path])
    ]


def others(items):
    """The tests whose day it is not."""
    turn = {item.nodeid for item in seventh(items)}
    return [item for item in items if item.nodeid not in turn]


PARTS_OF = {"--of-the-day": chosen, "--seventh": seventh, "--others": others}


@pytest.hookimpl(trylast=True)  # of those that -m and -k leave
def pytest_collection_modifyitems(config, items):
    for option, part in PARTS_OF.items():
        if config.getoption(option):
            kept = part(items)
            left = set(items) - set(kept)
            config.hook.pytest_deselected(items=[item for item in items if item in left])
            items[:] = kept
