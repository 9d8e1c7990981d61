"""Fetches the browser libraries of ci/vendored.toml with npm, into the tree.

    .venv/bin/python ci/vendor.py [--update]

Each package must have the hash that ci/vendored.lock states; --update writes the lock instead. The lock has npm's
hash of each package and the SHA-256 of each file, with which a unit test compares the tree.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WANTED = ROOT / "ci" / "vendored.toml"
LOCK = ROOT / "ci" / "vendored.lock"


def wanted() -> dict[str, Any]:
    """The packages of ci/vendored.toml, by name."""
    return tomllib.loads(WANTED.read_text(encoding="utf-8"))


def fetched(name: str, package: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A package's entry in the lock, and its files by their place in the tree."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"{name}@{package['version']}", "--json", "--ignore-scripts"]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        # npm 11 gives a list, npm 12 an object by name.
        said = json.loads(done.stdout)
        packed = said[0] if isinstance(said, list) else next(iter(said.values()))
        with tarfile.open(Path(folder) / packed["filename"]) as archive:
            files = {to: read(archive, f"package/{member}") for member, to in package["files"].items()}
    hashes = {to: hashlib.sha256(content).hexdigest() for to, content in files.items()}
    return {"version": package["version"], "integrity": packed["integrity"], "sha256": hashes}, files


def read(archive: tarfile.TarFile, member: str) -> bytes:
    """The content of a file in a package."""
    file = archive.extractfile(member)
    assert file is not None, f"{member} is no file"
    return file.read()


def main() -> None:
    """Fetch all packages, compare them with the lock or write it, and put their files into the tree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write ci/vendored.lock")
    update = parser.parse_args().update
    lock, files = {}, {}
    for name, package in wanted().items():
        lock[name], own = fetched(name, package)
        files.update(own)
    if update:
        LOCK.write_text(json.dumps(lock, indent=1) + "\n", encoding="utf-8")
    elif lock != (before := json.loads(LOCK.read_text(encoding="utf-8"))):
        wrong = ", ".join(name for name in lock if lock[name] != before.get(name)) or "the list of packages"
        raise SystemExit(f"expected what ci/vendored.lock states, found other content: {wrong}; --update writes it")
    for to, content in files.items():
        (ROOT / to).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / to).write_bytes(content)


if __name__ == "__main__":
    main()
