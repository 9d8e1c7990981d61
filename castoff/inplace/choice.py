"""Choice: which topics are off by default in an environment that castoff patches."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from castoff.core.errors import InstallError
from castoff.model.topics import ALWAYS_ON, load_topics, select


def left_out(root: Path, pin: str, only: Collection[str], without: Collection[str]) -> tuple[str, ...]:
    """Return the topics of a pin that are to be off.

    Args:
        only: The topics to be on, with those that they require; all but those in ``without`` if empty.

    Raises:
        InstallError: There is no such topic on that pin, or one that stays on requires one that is to be off.
    """
    topics = select(load_topics(root / "patches"), pin)
    needs: dict[str, set[str]] = {topic.name: set() for topic in topics}
    for topic in topics:
        # Of those that it requires, upstream itself may have some.
        needs[topic.name] |= {key.partition("/")[2] for key in topic.requires} & needs.keys() - {topic.name, *ALWAYS_ON}
    names = needs.keys() - {*ALWAYS_ON}
    unknown = {*only, *without} - names
    if unknown:
        raise InstallError(
            f"pin {pin} has no such topic: {', '.join(sorted(unknown))}",
            expected=f"some of {', '.join(sorted(names))}",
            found=", ".join(sorted(unknown)),
            next_step="Choose among these. Without any: castoff uninstall.",
        )
    on = set(only) or names - set(without)
    while only and (more := {need for name in on for need in needs[name]} - on):
        on |= more
    for name in sorted(on - set(without)):
        missing = needs[name] & set(without)
        if missing:
            raise InstallError(
                f"{name} requires {', '.join(sorted(missing))}",
                expected="that topics which stay on have those that they require",
                found=f"without {', '.join(sorted(without))}",
                next_step=f"Leave out {name}, too: --without {name}",
            )
    return tuple(sorted(names - (on - set(without))))
