"""Which part of a large set of checks a run covers: one part each day, all of them in as many days as there are parts.

The day is that of the commit under test, so that a run can be repeated. The variable CASTOFF_DAY sets it: a day such as
2026-11-24, or "all", with which every part is run, as a workflow does each week. As a program it prints the day, or
that one of its arguments whose turn it is.

    for model in slice_of_day(MODELS, parts=4): ...
"""

import datetime as dt
import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ALL = "all"


@functools.cache
def _day_of_commit():
    """The day of the commit in this tree, or today where there is no git."""
    command = ["git", "log", "-1", "--format=%cs"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        return dt.date.fromisoformat(done.stdout.strip()).isoformat()
    except (OSError, subprocess.CalledProcessError, ValueError):
        return dt.date.today().isoformat()


def day():
    """The day as 2026-11-24, or "all"."""
    return os.environ.get("CASTOFF_DAY") or _day_of_commit()


def number_of(name):
    """A number that depends on the name alone, to spread names evenly."""
    return int.from_bytes(hashlib.sha256(str(name).encode()).digest()[:8], "big")


def rotation():
    """A number that grows by one each day; None with "all"."""
    return None if day() == ALL else dt.date.fromisoformat(day()).toordinal()


def slice_of_day(names, parts):
    """One of so many equal parts of the names, in their order; at least one name. With "all": all of them."""
    names, today = list(names), rotation()
    if today is None or not names:
        return names
    parts = min(parts, len(names))
    chosen = sorted(range(len(names)), key=lambda i: (number_of(names[i]), i))[today % parts :: parts]
    return [names[i] for i in sorted(chosen)]


if __name__ == "__main__":
    print(*slice_of_day(sys.argv[1:], parts=len(sys.argv) - 1) or [day()])
