"""The package index: the newest wheel of a project, found by pip without a download."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

from castoff.core.context import Context
from castoff.core.errors import FetchError

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64")
"""The tags under which upstream published wheels of torch and torch_xla."""


@dataclass(frozen=True)
class Release:
    """A wheel of the package index."""

    project: str
    version: str  # its version, with the local part if it has one
    python: str  # the CPython it is for
    file: str  # the file's name
    sha256: str  # the file's hash, as the index states it
    requires: tuple[str, ...]  # its requirements as in METADATA, with those of extras

    def pinned(self, name: str) -> str | None:
        """Return the exact version of a package that it or one of its extras requires, if one does."""
        for line in self.requires:
            requirement = Requirement(line)
            exact = re.fullmatch(r"==([\d.]+)", str(requirement.specifier))
            if requirement.name == name and exact is not None:
                return exact[1]
        return None


def find_release(
    project: str, versions: str, python: str, indexes: Sequence[str], context: Context, *, only_index: str | None = None
) -> Release | None:
    """Return the newest wheel that the package index has, or None if it has none.

    Args:
        versions: Which versions, such as "==2.8.*".
        python: The CPython version, such as "3.11".
        indexes: Package indexes to use besides those in pip's configuration.
        only_index: The only index to use instead.

    Raises:
        FetchError: The index states no sha256 for the wheel.
    """
    command: list[str | Path] = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps"]
    command += ["--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:", "--report", "-"]
    command += ["--python-version", python, "--implementation", "cp", "--abi", "cp" + python.replace(".", "")]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    if only_index is not None:
        # It may be out of reach here, and is asked once for each CPython: do not wait long.
        command += ["--index-url", only_index, "--retries", "0", "--timeout", "20"]
    for index in indexes:
        command += ["--extra-index-url", index]
    with context.cache.lock("released"), context.cache.scratch("released") as scratch:
        command += ["--target", scratch / "nothing", f"{project}{versions}"]
        asked = context.runner.run(command, name=f"released-{project}", check=False)
    start = asked.output.find("{\n")
    if asked.returncode != 0 or start < 0:
        context.console.note(f"{project}{versions} for CPython {python}: the package index has no wheel")
        return None
    (found,) = json.JSONDecoder().raw_decode(asked.output[start:])[0]["install"]
    return _release(project, python, found, asked.log)


def _release(project: str, python: str, found: dict[str, dict[str, object]], log: Path) -> Release:
    file = unquote(urlsplit(str(found["download_info"]["url"])).path).rpartition("/")[2]
    archive = found["download_info"].get("archive_info")
    hashes = archive.get("hashes", {}) if isinstance(archive, dict) else {}
    metadata = found["metadata"]
    requires = metadata.get("requires_dist", [])
    if "sha256" not in hashes:
        raise FetchError(
            f"the package index states no sha256 for {file}",
            expected="a link with #sha256=…",
            found=f"pip's report: {hashes or 'no hashes'}",
            next_step=f"Use another index (--index). pip's log: {log}",
        )
    return Release(
        project=project,
        version=str(metadata["version"]),
        python=python,
        file=file,
        sha256=hashes["sha256"],
        requires=tuple(map(str, requires if isinstance(requires, list) else [])),
    )
