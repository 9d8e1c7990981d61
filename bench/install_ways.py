"""Seconds and megabytes of each way to castoff, and of stock's installation beside them; for docs/install.md.

    .venv/bin/python bench/install_ways.py --pin 2.9

Needs the wheels in dist and upstream's in castoff's cache, where a build has put them. What else the wheels require is
not installed: it is the same for all. It prints a table; nothing is downloaded but what castoff's package requires.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from castoff.core.console import Console
from castoff.core.interpreter import find_interpreter
from castoff.core.places import ROOT, cache_root
from castoff.core.runner import Runner
from castoff.core.text_table import text_table
from castoff.core.tools import tool

CASTOFF = str(ROOT / ".venv" / "bin" / "castoff")
Files = dict[str, tuple[int, int]]  # inode and size, by path


def timed(*command: str | Path, **environment: str) -> tuple[float, float]:
    """Run a command; return its seconds, and those of the CPU."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def files(folder: Path) -> Files:
    found = ((path, path.lstat()) for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path): (stat.st_ino, stat.st_size) for path, stat in found}


def size(listed: Files) -> float:
    """Megabytes; a file that has two names counts once."""
    return sum(dict(listed.values()).values()) / 1e6


class Bench:
    def __init__(self, folder: Path, pin: str) -> None:
        self.folder, self.pin, self.dist = folder, pin, ROOT / "dist" / f"{pin}-cpu"
        self.manifest = json.loads((self.dist / "manifest.json").read_text())
        self.python = find_interpreter(self.manifest["python"], Runner(folder / "logs", Console())).path
        self.rows: list[tuple[str, ...]] = []

    def row(self, title: str, spent: tuple[float, float], megabytes: float) -> None:
        seconds, cpu = spent
        shown = f"{megabytes:.1f}" if megabytes < 10 else f"{megabytes:.0f}"
        self.rows.append((title, f"{seconds:.1f}", f"{cpu:.1f}", shown))
        print(self.rows[-1], file=sys.stderr)

    def environment(self, name: str) -> Path:
        timed(tool("uv"), "venv", "--no-project", "--python", self.python, self.folder / name)
        return self.folder / name / "bin" / "python"

    def wheels(self, kind: str, wheels: list[Path]) -> Path:
        """Install wheels into an empty environment, with an empty cache and then with one that has them."""
        cache = self.folder / "uv" / kind
        for when in ("first", "again"):
            before = files(cache).values()
            python = self.environment(f"{kind}-{when}")
            install = [tool("uv"), "pip", "install", "--no-deps", "--python", python, *wheels]
            spent = timed(*install, UV_CACHE_DIR=str(cache))
            known = {inode for inode, _ in before}
            new = {**files(cache), **files(self.folder / f"{kind}-{when}")}
            written = size({path: row for path, row in new.items() if row[0] not in known})
            self.row(
                f"{kind} wheels, {'an empty cache' if when == 'first' else 'from the cache of uv'}", spent, written
            )
        return python

    def in_place(self, python: Path) -> None:
        """Patch an environment that has stock wheels, and make it stock again."""
        (site,) = python.parents[1].glob("lib/python3*/site-packages")
        out = self.folder / "out"
        timed(CASTOFF, "build", "--target", "package", "--pin", self.pin, "--out", out)
        (package,) = (out / "package").glob("*.whl")
        own = self.environment("castoff")
        timed(tool("uv"), "pip", "install", "--python", own, package)
        before = files(site)
        castoff = own.with_name("castoff")
        known = {inode for inode, _ in before.values()}
        for number in range(3):
            spent = timed(castoff, "install", "--python", python)
            after = files(site)
            written = size({path: row for path, row in after.items() if row[0] not in known})
            # A layer of an image has the kept files, too: there they are copies.
            kept = sum(row[1] for path, row in after.items() if "/.castoff/" in path and row[0] in known) / 1e6
            undone = timed(castoff, "uninstall", "--python", python)
            if number:  # the first compiles castoff's own Python files
                self.row(f"`castoff install` (a layer of an image: {written + kept:.1f} MB)", spent, written)
                self.row("`castoff uninstall`", undone, 0)
        if files(site) != before:
            raise SystemExit("castoff uninstall left other files than there were")

    def run(self) -> None:
        cache = cache_root() / "sha256"
        bases = [wheel["base"] for wheel in self.manifest["wheels"].values()]
        stock = self.wheels("stock", [cache / base["sha256"] / base["file"] for base in bases])
        self.wheels("patched", sorted(self.dist.glob("*.whl")))
        self.in_place(stock)
        out, common = self.folder / "built", ["--out", self.folder / "built", "--no-verify-install"]
        spent = timed(CASTOFF, "build", "--target", "cpu", "--pin", self.pin, *common)
        self.row("build the wheels, with all C++ in the cache", spent, size(files(out)))
        wanted = ["--pin", self.pin, "--python", self.manifest["python"], "--dirty"]
        spent = timed(CASTOFF, "release", *wanted, *common)
        self.row("`castoff release` of wheels that are there", spent, size(files(out / "release")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pin", default="2.9")
    arguments = parser.parse_args()
    cache_root().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench.", dir=cache_root()) as folder:
        bench = Bench(Path(folder), arguments.pin)
        bench.run()
    print(text_table(("way", "seconds", "of the CPU", "MB written"), bench.rows))


if __name__ == "__main__":
    main()
