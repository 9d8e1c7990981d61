"""--of-the-day: a part of the docs' programs and commands, others each day, and all that are new.

What CI has the time for; a workflow runs all each week.
"""

import subprocess
from pathlib import Path

from earlier_pins import COMMITS
from slices import slice_of_day

ROOT = Path(__file__).resolve().parents[2]
PARTS = 3


def pytest_addoption(parser):
    parser.addoption("--of-the-day", action="store_true", help="a third of the docs' programs, and what is new in them")


def docs_of_before():
    """The text of the docs before the last commits; empty where that is not known."""
    command = ["git", "grep", "-h", "", f"HEAD~{COMMITS}", "--", "README.md", "CONTRIBUTING.md", "docs/*.md"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def chosen(programs, before):
    """The programs whose turn it is, and those that have a line which the docs did not have before."""
    turn = set(slice_of_day(programs, PARTS))
    return [p for p in programs if p in turn or not all(line.strip() in before for line in p.splitlines())]


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--of-the-day"):
        return
    programs = {item: next(iter(item.callspec.params.values())) for item in items if hasattr(item, "callspec")}
    today = set(chosen(list(dict.fromkeys(programs.values())), docs_of_before()))
    left = [item for item, program in programs.items() if program not in today]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]
