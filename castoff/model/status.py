"""Status: which topics are part of the builds of which pins, and why the others are not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from castoff.model.pin import pin_names
from castoff.model.topics import Topic, load_topics, select

CANNOT = "cannot"


@dataclass(frozen=True)
class Status:
    """The topics' states on every pin."""

    pins: tuple[str, ...]  # the names of the pins, newest first
    topics: tuple[Topic, ...]  # the topics, each after those that it requires

    def reasons(self) -> list[str]:
        """Return why topics cannot be part of a pin, each reason once; the table counts them from 1."""
        every = (_reason(topic, pin) for topic in self.topics for pin in self.pins)
        return list(dict.fromkeys(reason for reason in every if reason))

    def rows(self) -> list[list[str]]:
        """Return the topic's name and its state on each pin, where "cannot" has its reason's number."""
        numbers = {reason: number for number, reason in enumerate(self.reasons(), start=1)}
        return [[topic.key, *(self._cell(topic, pin, numbers) for pin in self.pins)] for topic in self.topics]

    def unproven(self) -> dict[str, list[str]]:
        """Return the topics with hunks on C++ that nobody has proven, and for which pins."""
        return {topic.key: list(topic.unproven) for topic in self.topics if topic.unproven}

    def as_dict(self) -> dict[str, object]:
        """Return the same as plain data."""
        topics = {topic.key: dict(topic.pins) for topic in self.topics}
        return {"pins": list(self.pins), "topics": topics, "unproven": self.unproven()}

    @staticmethod
    def _cell(topic: Topic, pin: str, numbers: dict[str, int]) -> str:
        reason = _reason(topic, pin)
        return f"{CANNOT} ({numbers[reason]})" if reason else topic.pins[pin]


def read_status(root: Path) -> Status:
    """Read the topics' states.

    Raises:
        TopicError: A topic is malformed, or does not name one of the pins.
    """
    pins = pin_names(root / "pins")
    topics = load_topics(root / "patches")
    for pin in pins:
        select(topics, pin)
    return Status(tuple(pins), topics)


def _reason(topic: Topic, pin: str) -> str:
    state, _, reason = topic.pins[pin].partition(": ")
    return reason if state == CANNOT else ""
