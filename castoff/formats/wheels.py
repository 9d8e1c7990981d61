"""Names and metadata inside a wheel."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from castoff.core.errors import RepackError

_FIELDS = ("path", "digest", "size")


@dataclass(frozen=True)
class Row:
    """A row of RECORD."""

    path: str  # the member
    digest: str  # its hash, as RECORD writes it; empty for RECORD itself
    size: str  # its size, as RECORD writes it


def dist_info(names: Iterable[str]) -> str:
    """Return the name of a wheel's dist-info folder.

    Raises:
        RepackError: There is none, or more than one.
    """
    found = sorted({name.split("/", 1)[0] for name in names if re.match(r"[^/]+\.dist-info/", name)})
    if len(found) != 1:
        raise RepackError(
            "this is not a wheel",
            expected="one .dist-info folder",
            found=", ".join(found) or "none",
            next_step="Check the file and the pin's hash of it.",
        )
    return found[0]


def record_digest(data: bytes) -> str:
    """Return the hash of a member as RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def parse_record(data: bytes) -> list[Row]:
    """Return the rows of a RECORD."""
    rows = [row for row in csv.reader(io.StringIO(data.decode("utf-8"))) if row]
    bad = next((row for row in rows if len(row) != len(_FIELDS)), None)
    if bad is not None:
        raise RepackError(
            "RECORD is malformed",
            expected="three fields a row",
            found=",".join(bad),
            next_step="Check the file and the pin's hash of it.",
        )
    return [Row(*row) for row in rows]


def write_record(rows: Iterable[Row]) -> bytes:
    """Return a RECORD of these rows."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((row.path, row.digest, row.size) for row in rows)
    return text.getvalue().encode("utf-8")


def updated_record(data: bytes, renames: Mapping[str, str], contents: Mapping[str, bytes]) -> bytes:
    """Return a RECORD with the rows of changed members; all other rows stay.

    Args:
        data: The RECORD before.
        renames: New names of members, by their old ones.
        contents: The contents of changed and new members, by their new names.
    """
    rows = []
    known = set()
    for row in parse_record(data):
        path = renames.get(row.path, row.path)
        known.add(path)
        if path in contents:
            rows.append(Row(path, record_digest(contents[path]), str(len(contents[path]))))
        else:
            rows.append(Row(path, row.digest, row.size))
    rows += [
        Row(path, record_digest(contents[path]), str(len(contents[path]))) for path in sorted(contents.keys() - known)
    ]
    return write_record(rows)


def with_requirements(metadata: bytes, requires: Iterable[str]) -> bytes:
    """Return a METADATA with further requirements.

    Args:
        metadata: The METADATA before.
        requires: The requirements, as pip takes them.
    """
    lines = "".join(f"\nRequires-Dist: {line}" for line in requires).encode()
    if not lines:
        return metadata
    head, separator, body = metadata.partition(b"\n\n")
    return head.rstrip(b"\n") + lines + (separator or b"\n") + body


def replaced_version(metadata: bytes, version: str) -> bytes:
    """Return a METADATA with another version.

    Args:
        metadata: The METADATA before.
    """
    head, separator, body = metadata.partition(b"\n\n")
    head, count = re.subn(rb"(?m)^Version: [^\r\n]*", b"Version: " + version.encode(), head)
    _once(count, "METADATA", "one line 'Version: …'")
    return head + separator + body


def replaced_version_module(source: bytes, version: str) -> bytes:
    """Return a ``version.py`` with another ``__version__``."""
    source, count = re.subn(
        rb"(?m)^__version__ = (['\"])[^'\"\r\n]*\1", b"__version__ = '%s'" % version.encode(), source
    )
    _once(count, "version.py", "one line '__version__ = …'")
    return source


def _once(count: int, name: str, expected: str) -> None:
    if count != 1:
        raise RepackError(
            f"{name} is not as upstream writes it",
            expected=expected,
            found=f"{count} of them",
            next_step=f"Look at {name} in the upstream wheel and adapt castoff/formats/wheels.py to it.",
        )
