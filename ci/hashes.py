"""Make a lock file of a pylock.toml: its packages, each with the hashes of the files that castoff's machines can take.

    ci/hashes.py PYLOCK [PYTHON] >LOCK

These are wheels for Linux on x86-64 with glibc, and for CPython from PYTHON (3.11) on; of a package without a wheel its
source archive. A package that is for other machines alone is left out.
"""

import re
import sys
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

_NEWEST = 20


def main() -> None:
    """Write the lock file to standard output."""
    path, lowest = sys.argv[1], int((*sys.argv[2:], "3.11")[0].partition(".")[2])
    for package in tomllib.loads(Path(path).read_text(encoding="utf-8"))["packages"]:
        marker = package.get("marker")
        wanted = _wanted(Marker(marker), lowest) if marker else {True}
        if True not in wanted:
            continue
        files = [wheel for wheel in package.get("wheels", ()) if _can_be_taken(wheel["url"], lowest)]
        hashes = sorted(file["hashes"]["sha256"] for file in files or [package["sdist"]])
        line = f"{package['name']}=={package['version']}" + (f" ; {marker}" if False in wanted else "")
        print(" \\\n    ".join([line, *(f"--hash=sha256:{one}" for one in hashes)]))


def _wanted(marker: Marker, lowest: int) -> set[bool]:
    linux = {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux", "os_name": "posix"}
    return {
        marker.evaluate({**linux, "python_version": f"3.{minor}", "python_full_version": f"3.{minor}.{patch}"})
        for minor, patch in product(range(lowest, _NEWEST), (0, 99))
    }


def _can_be_taken(url: str, lowest: int) -> bool:
    name: Any = url.rpartition("/")[2].replace("%2B", "+")
    return any(_fits(tag, lowest) for tag in parse_wheel_filename(name)[3])


def _fits(tag: Tag, lowest: int) -> bool:
    if tag.platform != "any" and not re.fullmatch(r"(many)?linux\w*_x86_64", tag.platform):
        return False
    found = re.fullmatch(r"cp3(\d+)|py3\d*", tag.interpreter)
    if found is None:
        return False
    return tag.abi in ("none", "abi3") or (tag.abi == tag.interpreter and int(found[1]) >= lowest)


if __name__ == "__main__":
    main()
