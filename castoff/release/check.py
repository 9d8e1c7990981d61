"""Check a release: every file by its hash, and that index, bill of materials and provenance are about these wheels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urldefrag

from castoff.builder.fetch import file_sha256
from castoff.core.errors import VerifyError
from castoff.release.index import HTML_PAGE, JSON_PAGE, wheel_metadata
from castoff.release.layout import INDEX, PROVENANCE, SBOM, SIGNATURE, SUMS, WHEELS, released_files
from castoff.release.provenance import LOCAL_BUILDER, Statement

_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")


@dataclass(frozen=True)
class Checked:
    """What a release is, once nothing was found to be wrong with it."""

    wheels: int
    tree: str  # the commit of castoff's tree
    dirty: bool  # whether the tree had changes that were not committed
    builder: str  # the URI of who made it
    signed: bool  # whether there is a signature: it is not checked here


def check_release(folder: Path) -> Checked:
    """Check a release.

    Raises:
        VerifyError: The first problem found, with the name of the file.
    """
    sums = _check_sums(folder)
    wheels = {name.removeprefix(f"{WHEELS}/"): value for name, value in sums.items() if name.endswith(".whl")}
    _check_index(folder, wheels)
    _reading(folder / SBOM, lambda path: _check_sbom(path, wheels))
    statement = _reading(folder / PROVENANCE, lambda path: _check_provenance(path, wheels))
    tree = statement.tree()
    return Checked(
        wheels=len(wheels),
        tree=tree.digest["gitCommit"],
        dirty=bool(tree.annotations),
        builder=statement.predicate.run_details.builder.id,
        signed=(folder / SIGNATURE).is_file(),
    )


def report(folder: Path, checked: Checked) -> str:
    """Say what a release is, and what was not checked."""
    lines = [f"{folder}: no problems found: {checked.wheels} wheels, of commit {checked.tree}"]
    if checked.dirty:
        lines.append("That tree had changes that were not committed: nobody else can make the same.")
    lines.append(f"builder   {checked.builder}" + (" (by hand)" if checked.builder == LOCAL_BUILDER else ""))
    if checked.signed:
        lines.append(
            f"signature {SIGNATURE}, which is not checked here. With `pip install sigstore`:\n"
            f"          sigstore verify github --cert-identity WORKFLOW@REF {SUMS}"
        )
    else:
        lines.append(f"signature none: the files agree with {SUMS}, and nobody vouches for {SUMS}")
    return "\n".join(lines)


def _check_sums(folder: Path) -> dict[str, str]:
    """Compare every file with its hash; return the hashes."""
    try:
        *lines, last = (folder / SUMS).read_text(encoding="utf-8").split("\n")
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        _refuse(folder / SUMS, "the hashes of a release", "no such file, or no text")
    if last:
        _refuse(folder / SUMS, "a line break at its end", repr(last))
    sums = {}
    for number, line in enumerate(lines, start=1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in sums:
            _refuse(folder / SUMS, "one line for each file: its sha256 and its path", f"line {number}: {line!r}")
        sums[match[2]] = match[1]
    there = set(released_files(folder))
    for name in sorted({*sums, *there}):
        if name not in sums:
            _refuse(folder / name, f"a file that {SUMS} lists", "one that it does not list")
        if name not in there or (folder / name).is_symlink():
            _refuse(folder / name, f"a file, as {SUMS} lists it", "no such file")
        found = file_sha256(folder / name)
        if found != sums[name]:
            _refuse(folder / name, f"sha256 {sums[name]}, as {SUMS} says", found)
    return sums


class _Anchors(HTMLParser):
    """The attributes of every link of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(dict(attrs))


def _check_index(folder: Path, wheels: Mapping[str, str]) -> None:
    """Check that both kinds of pages list exactly these wheels, by their hashes and those of their metadata."""
    wanted = {}
    for name, value in wheels.items():
        metadata = wheel_metadata(folder / WHEELS / name)
        beside = folder / WHEELS / f"{name}.metadata"
        if not beside.is_file() or beside.read_bytes() != metadata:
            _refuse(beside, f"the METADATA of {name}", "another text, or no file")
        wanted[f"../../{WHEELS}/{name}"] = (value, sha256(metadata).hexdigest())
    for page, read in ((HTML_PAGE, _html_entries), (JSON_PAGE, _json_entries)):
        listed: dict[str, tuple[str, str]] = {}
        for path in sorted((folder / INDEX).glob(f"*/{page}")):
            listed |= _reading(path, read)
        for url in sorted({*wanted, *listed}):
            if wanted.get(url) != listed.get(url):
                expected = ", metadata ".join(wanted[url]) if url in wanted else "no such wheel"
                found = ", metadata ".join(listed[url]) if url in listed else "no such entry"
                _refuse(folder / INDEX, f"{page} lists {url} with sha256 {expected}", found)


def _html_entries(path: Path) -> dict[str, tuple[str, str]]:
    anchors = _Anchors()
    anchors.feed(path.read_text(encoding="utf-8"))
    found = {}
    for attributes in anchors.found:
        url, fragment = urldefrag(attributes["href"] or "")
        both = {attributes["data-core-metadata"], attributes["data-dist-info-metadata"]}
        (metadata,) = both
        found[unquote(url)] = (fragment.removeprefix("sha256="), (metadata or "").removeprefix("sha256="))
    return found


def _json_entries(path: Path) -> dict[str, tuple[str, str]]:
    found = {}
    for file in json.loads(path.read_text(encoding="utf-8"))["files"]:
        (metadata,) = {file["core-metadata"]["sha256"], file["dist-info-metadata"]["sha256"]}
        found[unquote(file["url"])] = (file["hashes"]["sha256"], metadata)
    return found


def _check_sbom(path: Path, wheels: Mapping[str, str]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    if data["bomFormat"] != "CycloneDX":
        raise ValueError(f"bomFormat {data['bomFormat']!r}")
    listed = {part["bom-ref"]: part["hashes"][0]["content"] for part in data["components"]}
    _compare(path, "components", listed, wheels)


def _check_provenance(path: Path, wheels: Mapping[str, str]) -> Statement:
    statement = Statement.model_validate_json(path.read_text(encoding="utf-8"))
    statement.tree()
    subject = {(part.name or "").removeprefix(f"{WHEELS}/"): part.digest["sha256"] for part in statement.subject}
    _compare(path, "subjects", subject, wheels)
    return statement


def _compare(path: Path, what: str, listed: Mapping[str, str], wheels: Mapping[str, str]) -> None:
    for name in sorted({*listed, *wheels}):
        if listed.get(name) != wheels.get(name):
            _refuse(
                path, f"{what}: {name} with sha256 {wheels.get(name, '- no such wheel')}", listed.get(name, "not there")
            )


def _reading(path: Path, read: Callable[[Path], Any]) -> Any:
    """Read a file; whatever it is not is an error of it."""
    try:
        return read(path)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        _refuse(path, "the file of a release", f"{type(error).__name__}: {error}")


def _refuse(path: Path, expected: str, found: str) -> NoReturn:
    raise VerifyError(
        f"{path} is not as it was released",
        expected=expected,
        found=found,
        next_step="Fetch the release again. If that does not help, do not use it.",
    )
