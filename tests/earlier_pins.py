"""Which tests run on an earlier pin: a sixth of the cases of the default pin, another sixth the next time.

Which sixth depends on the case and on the day (tests/slices.py). A run builds one of the earlier pins, which this
prints as a program: most of what a pin takes is compiling. 24 days cover every case on every pin; with
CASTOFF_DAY=all, and with ``--whole``, each runs on all, as workflows do on every push and each week. A pin whose own
file has changed lately (pins/<pin>.toml) runs every case; after a change of a topic's own part for a pin (a patch in
hunks/ that names it; \\*_versions.h is a part for each) that pin runs every case of the topic's tests.
"""

import functools
import re
import subprocess
from pathlib import Path

from slices import number_of, rotation

ROOT = Path(__file__).resolve().parent.parent

EARLIER = ("2.8", "2.7", "2.6", "2.1")
PARTS = 6
"""Of the cases one of so many runs each time."""
COMMITS = 30
"""So many last commits are lately."""


def states_ir(item):
    """Whether a test reads the IR or the HLO of tensors by itself, with the functions of ir_text.py."""
    return not {"ir", "hlo"}.isdisjoint(item.function.__code__.co_names)


def pins_of_day():
    """The earlier pins that a run builds: another one each day."""
    today = rotation()
    return EARLIER if today is None else (EARLIER[today % len(EARLIER)],)


def has_turn(item, pin):
    """Whether a case runs today on this pin. 2.7 is between two pins that run more: tests that state an IR."""
    today = rotation()
    if today is None:
        return True
    return (pin != "2.7" or states_ir(item)) and (number_of(item.nodeid) + today // len(EARLIER)) % PARTS == 0


def left_out(items, pin, every_case):
    """The tests that do not run on this earlier pin today: what is the same on all pins, and what has no turn."""
    return [
        item
        for item in items
        if item.get_closest_marker("default_pin")
        or item.get_closest_marker("slow")
        or not (every_case(item.path.stem) or has_turn(item, pin))
    ]


@functools.cache
def changed_lately():
    """The files that the last commits, and what is not committed yet, have changed; none without so many commits."""
    try:
        command = ["git", "diff", "--name-only", f"HEAD~{COMMITS}"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def is_of_pin(pin, files):
    """Whether a pin's own file is among the changed ones. Its locks are those of the TPU compiler."""
    return f"pins/{pin}.toml" in files


def topics_of_pin(pin, files):
    """The topics whose part for a pin is among the changed files."""
    parts = re.compile(rf"patches/[^/]+/([^/]+)/(?:hunks/(?:.*\+)?{re.escape(pin)}(?:\+.*)?\.patch|.*_versions\.h)")
    return {match[1] for file in files if (match := parts.fullmatch(file))}


if __name__ == "__main__":
    print(*pins_of_day())
