"""Upstream's trees that no pin is of: their version, how they are fetched, and whose hunks to try on them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from castoff.builder.apply import CHECKOUT_ONLY_SUFFIXES
from castoff.core.context import Context
from castoff.core.errors import CommandError, FetchError
from castoff.model.hunks import text_of
from castoff.model.topics import Topic

_VERSION_OF_TREE = {
    "version.txt": re.compile(r"()(\d+\.\d+\.\d+)"),
    "setup.py": re.compile(r"(?s).*(TORCH_XLA_VERSION)['\"], *['\"](\d+\.\d+\.\d+)['\"]"),
}
"""The files in which torch's tree and torch_xla's state their version, and its form."""
_CALL_SITES = re.compile(rb"(?m)^\+\+\+ b/(.+)$")


def version_of_tree(text_of: Callable[[str], str]) -> str | None:
    """Return the release of a tree of torch or of torch_xla, if the tree states it.

    Args:
        text_of: Gives the text of a file at the top of the tree, empty if there is none.
    """
    found = (pattern.match(text_of(name)) for name, pattern in _VERSION_OF_TREE.items())
    return next((match[2] for match in found if match is not None), None)


def fetch_ref(repository: str, ref: str, folder: Path, context: Context) -> None:
    """Fetch the tree of a ref of upstream's repository into a folder.

    Raises:
        FetchError: It is not available.
    """
    folder.mkdir()
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    commands: list[list[str | Path]] = [
        ["git", "init", "--quiet", folder],
        ["git", "fetch", "--quiet", "--depth=1", repository, ref],
        ["git", "checkout", "--quiet", "FETCH_HEAD"],
    ]
    try:
        for command in commands:
            context.runner.run(command, name=f"git-{command[1]}", cwd=folder, env=environment)
    except CommandError as error:
        raise FetchError(
            f"{ref} of {repository} is not available",
            expected="git fetches that ref",
            found=error.found,
            next_step="Check the ref and the network, or give the folder of a checkout.",
        ) from error


def best_pins(topic: Topic, version: str | None, *, whole: bool) -> list[str]:
    """Return the pins whose hunks of a topic to try, best first.

    Args:
        version: The version of the tree, if it is known.
        whole: Whether the tree has C++ too: then hunks with C++ call sites come first.
    """
    applying = [pin for pin in topic.pins if topic.applies(pin)]
    at = _number(version) if version else max(map(_number, applying), default=(0, 0))

    def rank(pin: str) -> tuple[bool, int, tuple[int, ...]]:
        major, minor = _number(pin)
        distance = abs(at[0] - major) * 1000 + abs(at[1] - minor)
        return (whole and not _has_call_sites_in_cpp(topic, pin), distance, (-major, -minor))

    return sorted(applying, key=rank)


def _number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _has_call_sites_in_cpp(topic: Topic, pin: str) -> bool:
    paths = _CALL_SITES.findall(text_of(topic.hunks(pin)))
    return any(path.decode().strip().endswith(CHECKOUT_ONLY_SUFFIXES) for path in paths)
