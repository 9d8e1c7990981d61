"""The patches in hunks/ of a topic: one for each set of pins that have the same hunks.

``2.8+2.9.patch`` has the hunks of the files that are changed alike on both pins, ``2.9.patch`` those of 2.9 alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

UNPROVEN = "unproven.patch"
"""The hunks on C++ that nobody has applied or compiled yet; topic.toml names their pins."""

_INDEX_LINE = re.compile(rb"(?m)^index [0-9a-f]+\.\.[0-9a-f]+.*\n")


def pins_of(patch: Path) -> list[str]:
    """Return the pins that a patch is for, by its name."""
    return patch.stem.split("+")


def patches_of(folder: Path, pin: str) -> tuple[Path, ...]:
    """Return the patches of a topic's folder hunks/ that are for a pin."""
    return tuple(path for path in sorted(folder.glob("*.patch")) if path.name != UNPROVEN and pin in pins_of(path))


def text_of(patches: Sequence[Path]) -> bytes:
    """Return the text of several patches as that of one."""
    return b"".join(path.read_bytes() for path in patches)


def parts_of(patch: bytes) -> list[bytes]:
    """Return the part of each file of a patch."""
    return [part for part in re.split(rb"(?m)^(?=diff --git )", patch) if part]


def shared(by_pin: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the patches of hunks/ by their names, for what is changed on each pin."""
    pins: dict[bytes, list[str]] = {}
    for pin in sorted(by_pin, key=lambda pin: [int(number) for number in pin.split(".")]):
        for part in parts_of(_INDEX_LINE.sub(b"", by_pin[pin])):
            pins.setdefault(part, []).append(pin)
    patches: dict[str, bytes] = {}
    for part in sorted(pins):
        name = f"{'+'.join(pins[part])}.patch"
        patches[name] = patches.get(name, b"") + part
    return patches


def write(folder: Path, patches: Mapping[str, bytes]) -> list[str]:
    """Give a folder hunks/ these patches; return the names of those that were written or removed."""
    there = {path.name: path.read_bytes() for path in folder.glob("*.patch") if path.name != UNPROVEN}
    changed = sorted(name for name in there.keys() | patches.keys() if there.get(name) != patches.get(name))
    folder.mkdir(exist_ok=True)
    for name in changed:
        if name in patches:
            (folder / name).write_bytes(patches[name])
        else:
            (folder / name).unlink()
    return changed


def with_pin(folder: Path, pin: str, patch: bytes) -> dict[str, bytes]:
    """Return the patches that a topic's folder hunks/ is to have once those of a pin say what one patch says."""
    there = {one for path in folder.glob("*.patch") if path.name != UNPROVEN for one in pins_of(path)}
    return shared({one: text_of(patches_of(folder, one)) for one in there} | {pin: patch})
