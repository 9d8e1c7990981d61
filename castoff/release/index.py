"""The static package index of a release: PEP 503 and PEP 691 pages, with the metadata of wheels (PEP 658, PEP 714).

Any file server serves it, and pip and uv read it from a file:// URL. The pages of PEP 691 have the names that
bandersnatch gives them (index.v1_json), for servers that negotiate.
"""

from __future__ import annotations

import html
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import BytesParser
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from packaging.utils import canonicalize_name, parse_wheel_filename

from castoff.formats.wheels import dist_info
from castoff.release.layout import INDEX, WHEELS, ReleasedWheel

HTML_PAGE, JSON_PAGE = "index.html", "index.v1_json"
_META = {"api-version": "1.1"}


@dataclass(frozen=True)
class _File:
    """A wheel on a page."""

    wheel: ReleasedWheel
    project: str  # as the index names it
    version: str
    size: int
    metadata: str  # the hash of its METADATA
    requires_python: str | None

    @property
    def url(self) -> str:
        return f"../../{WHEELS}/{quote(self.wheel.path.name)}"


def wheel_metadata(wheel: Path) -> bytes:
    """Return the METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"{dist_info(archive.namelist())}/METADATA")


def write_index(folder: Path, wheels: Sequence[ReleasedWheel]) -> None:
    """Write the index of a release, and the metadata of its wheels beside them.

    Args:
        folder: The release, whose wheels are there.
    """
    projects: dict[str, list[_File]] = {}
    for wheel in sorted(wheels, key=lambda wheel: wheel.path.name):
        file = _describe(wheel)
        projects.setdefault(file.project, []).append(file)
    _write_pages(
        folder / INDEX,
        _page("castoff", [f'<a href="{name}/">{name}</a>' for name in sorted(projects)]),
        {"meta": _META, "projects": [{"name": name} for name in sorted(projects)]},
    )
    for name, files in projects.items():
        _write_pages(
            folder / INDEX / name,
            _page(name, [_anchor(file) for file in files]),
            {
                "meta": _META,
                "name": name,
                "versions": sorted({file.version for file in files}),
                "files": [_entry(file) for file in files],
            },
        )


def _describe(wheel: ReleasedWheel) -> _File:
    data = wheel_metadata(wheel.path)
    wheel.path.with_name(f"{wheel.path.name}.metadata").write_bytes(data)
    name, version, _, _ = parse_wheel_filename(wheel.path.name)
    return _File(
        wheel=wheel,
        project=canonicalize_name(name),
        version=str(version),
        size=wheel.path.stat().st_size,
        metadata=sha256(data).hexdigest(),
        requires_python=BytesParser().parsebytes(data)["Requires-Python"],
    )


def _entry(file: _File) -> dict[str, object]:
    return {
        "filename": file.wheel.path.name,
        "url": file.url,
        "hashes": {"sha256": file.wheel.sha256},
        "size": file.size,
        **({"requires-python": file.requires_python} if file.requires_python else {}),
        "core-metadata": {"sha256": file.metadata},
        "dist-info-metadata": {"sha256": file.metadata},
    }


def _anchor(file: _File) -> str:
    attributes = {
        "href": f"{file.url}#sha256={file.wheel.sha256}",
        **({"data-requires-python": file.requires_python} if file.requires_python else {}),
        "data-core-metadata": f"sha256={file.metadata}",
        "data-dist-info-metadata": f"sha256={file.metadata}",
    }
    written = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
    return f"<a {written}>{html.escape(file.wheel.path.name)}</a>"


def _page(title: str, anchors: Sequence[str]) -> str:
    head = f'<meta charset="utf-8">\n<meta name="pypi:repository-version" content="1.1">\n<title>{title}</title>\n'
    body = "<br>\n".join(anchors)
    return f"<!DOCTYPE html>\n<html>\n<head>\n{head}</head>\n<body>\n{body}\n</body>\n</html>\n"


def _write_pages(folder: Path, page: str, data: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / HTML_PAGE).write_text(page, encoding="utf-8")
    (folder / JSON_PAGE).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
