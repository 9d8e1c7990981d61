"""The topics: one folder each, read whole and checked before anything is built."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from castoff.core.errors import TopicError
from castoff.core.tables import Table
from castoff.model.pin import PROJECTS

KINDS = ("backport", "waiting", "never")
"""Why a topic is not upstream's: taken from a later release, waiting there, or never meant for it."""

PYTHON_SUFFIXES = (".py", ".pyi")
CPP_SUFFIXES = (".cpp", ".h")

_PIN_NAME = r"\d+\.\d+"
_TOPIC_NAME = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
_SYMBOL = r"[A-Za-z_][A-Za-z0-9_]*"


@dataclass(frozen=True)
class Symbols:
    """What a topic's part of an overlay shows to the world.

    Attributes:
        interpose: Mangled names of torch's functions that it takes the place of.
        exports: Further names, for Python to find.
    """

    interpose: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topic:
    """One reason to differ from upstream.

    Attributes:
        name: Its name, which is its folder's.
        project: The project that it patches.
        title: What a user gets, in one line.
        why: Why it exists.
        kind: One of ``KINDS``.
        upstream: Where upstream speaks of it.
        drop_when: When it can go.
        requires: The topics that it builds on, as "project/name".
        tests: The files of tests that prove it, from the root of the tree.
        pins: For each pin: "applies", "upstream", or "cannot: " and the reason.
        symbols: For each pin, what its overlay part shows.
        folder: Where it is.
    """

    name: str
    project: str
    title: str
    why: str
    kind: str
    upstream: tuple[str, ...]
    drop_when: str
    requires: tuple[str, ...]
    tests: tuple[str, ...]
    pins: dict[str, str]
    symbols: dict[str, Symbols]
    folder: Path

    @property
    def key(self) -> str:
        """Its full name, "project/name"."""
        return f"{self.project}/{self.name}"

    def applies(self, pin: str) -> bool:
        """Tell whether it is part of builds of a pin."""
        return self.pins.get(pin) == "applies"

    def new_python(self) -> dict[str, Path]:
        """Return its new Python files by their path in the wheel."""
        return {path: source for path, source in self.new_files().items() if source.suffix in PYTHON_SUFFIXES}

    def new_files(self) -> dict[str, Path]:
        """Return all its new files by their path in upstream's tree."""
        root = self.folder / "files"
        return {path.relative_to(root).as_posix(): path for path in _files(root)}

    def hunks(self, pin: str) -> Path | None:
        """Return the patch that calls it from upstream's files on a pin, if there is one."""
        path = self.folder / "hunks" / f"{pin}.patch"
        return path if path.is_file() else None

    def sources(self) -> tuple[Path, ...]:
        """Return the C++ files that its overlay part is compiled from."""
        files = [*_files(self.folder / "files"), *_files(self.folder / "overlay")]
        return tuple(path for path in files if path.suffix == ".cpp")

    def headers(self) -> tuple[Path, ...]:
        """Return the C++ headers that it brings."""
        files = [*_files(self.folder / "files"), *_files(self.folder / "overlay")]
        return tuple(path for path in files if path.suffix == ".h")

    def overlay_symbols(self, pin: str) -> Symbols:
        """Return what its overlay part shows on a pin."""
        return self.symbols.get(pin, Symbols())

    def content_hash(self, pin: str) -> str:
        """Return one hash over everything of it that goes into a build of a pin."""
        return self._hash([self.folder / "topic.toml", *_files(self.folder / "overlay")], pin)

    def source_hash(self, pin: str) -> str:
        """Return one hash over what it lays on a checkout of a pin: its files and hunks."""
        return self._hash([], pin)

    def _hash(self, more: list[Path], pin: str) -> str:
        digest = hashlib.sha256()
        hunks = self.hunks(pin)
        for path in [*more, *_files(self.folder / "files"), *([hunks] if hunks is not None else [])]:
            name = path.relative_to(self.folder).as_posix().encode()
            data = path.read_bytes()
            # Lengths first, so that no two different trees can hash the same bytes.
            digest.update(b"%d %d " % (len(name), len(data)) + name + data)
        return digest.hexdigest()


def load_topics(folder: Path) -> tuple[Topic, ...]:
    """Read every topic, each after those that it requires.

    Args:
        folder: The folder ``patches``.

    Returns:
        The topics; among equals torch's before torch_xla's, then by name.

    Raises:
        TopicError: A topic is malformed, requires one that is not there, or itself.
    """
    topics: dict[str, Topic] = {}
    for project in PROJECTS:
        for path in sorted((folder / project).glob("*/")):
            if path.name != "__pycache__":
                topic = _load(path, project)
                topics[topic.key] = topic
    return _ordered(topics)


def select(topics: tuple[Topic, ...], pin: str) -> tuple[Topic, ...]:
    """Return the topics that are part of builds of a pin, in order.

    Raises:
        TopicError: One of them says nothing of the pin, or requires one that does not apply to it.
    """
    by_key = {topic.key: topic for topic in topics}
    for topic in topics:
        if pin not in topic.pins:
            _fail(topic, f'"{pin}" under [pins]', "no such key", "Say there whether the topic applies to this pin.")
        if topic.applies(pin):
            for required in topic.requires:
                if by_key[required].pins.get(pin, "").startswith("cannot"):
                    _fail(
                        topic,
                        f"{required}, which it requires, applies to {pin}",
                        f"{required} says {by_key[required].pins[pin]!r}",
                        f"Make {topic.key} say 'cannot: …' for {pin} too.",
                    )
    return tuple(topic for topic in topics if topic.applies(pin))


def _fail(topic: Topic, expected: str, found: str, next_step: str) -> None:
    raise TopicError(f"topic {topic.key} is not consistent", expected=expected, found=found, next_step=next_step)


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _load(folder: Path, project: str) -> Topic:
    top = Table.load(folder / "topic.toml", TopicError)
    pins = top.table("pins")
    topic = Topic(
        name=top.text("name", _TOPIC_NAME, example="a name like 'grad-dtype'"),
        project=top.text("project", "|".join(PROJECTS), example=" or ".join(PROJECTS)),
        title=top.text("title", r"\S[^\n]*", example="one line"),
        why=top.text("why"),
        kind=top.text("kind", "|".join(KINDS), example=", ".join(KINDS)),
        upstream=top.texts("upstream", r"https://\S+", example="https addresses"),
        drop_when=top.text("drop_when"),
        requires=top.texts("requires", rf"({'|'.join(PROJECTS)})/{_TOPIC_NAME}", example="'project/name'"),
        tests=top.texts("tests", r"tests/\S+\.py", example="paths like 'tests/ir/test_x.py'"),
        pins={
            name: pins.text(
                name, r"(?s)applies|upstream|cannot: .*\S.*", example="'applies', 'upstream' or 'cannot: reason'"
            )
            for name in pins.names()
        },
        symbols=_symbols(top, project),
        folder=folder,
    )
    top.done()
    for key, value in (("name", folder.name), ("project", project)):
        if getattr(topic, key) != value:
            top.fail(key, f"{value!r}, as its folder says", repr(getattr(topic, key)))
    for name in topic.pins:
        if re.fullmatch(_PIN_NAME, name) is None:
            top.fail("pins", "names of pins, like '2.9'", repr(name))
    _check_files(topic)
    return topic


def _symbols(top: Table, project: str) -> dict[str, Symbols]:
    if not top.has("overlay"):
        return {}
    overlay = top.table("overlay")
    symbols: dict[str, Symbols] = {}
    for pin in overlay.names():
        table = overlay.table(pin)
        symbols[pin] = Symbols(
            interpose=table.texts("interpose", _SYMBOL, example="mangled symbols"),
            exports=table.texts("exports", _SYMBOL, example="symbols"),
        )
        # Only the overlay of torch is loaded ahead of libtorch_cpu.so.
        if project != "torch" and symbols[pin].interpose:
            table.fail("interpose", "nothing: only torch's overlay can interpose", repr(symbols[pin].interpose))
        table.done()
    return symbols


def _check_files(topic: Topic) -> None:
    """Check that every file of the topic is where the build will look for it."""
    allowed = {
        "files": (*PYTHON_SUFFIXES, *CPP_SUFFIXES),
        "overlay": CPP_SUFFIXES,
        "hunks": (".patch",),
    }
    for name, suffixes in allowed.items():
        for path in _files(topic.folder / name):
            if path.suffix not in suffixes:
                _fail(
                    topic,
                    f"only {', '.join(suffixes)} files under {name}/",
                    str(path.relative_to(topic.folder)),
                    "Move it elsewhere or give it its right name.",
                )
    for path in _files(topic.folder / "hunks"):
        if path.stem not in topic.pins:
            _fail(
                topic,
                f"hunks/ has patches of {', '.join(topic.pins)}, the pins in topic.toml",
                str(path.relative_to(topic.folder)),
                "Name the patch after a pin, and the pin in topic.toml.",
            )
    if topic.symbols and not topic.sources():
        _fail(topic, "C++ sources, since topic.toml has [overlay]", "none", "Add the sources or remove [overlay].")


def _ordered(topics: dict[str, Topic]) -> tuple[Topic, ...]:
    for topic in topics.values():
        for required in topic.requires:
            if required not in topics:
                _fail(topic, f"{required}, which it requires", "no such topic", "Add that topic or mend `requires`.")
    sorter = TopologicalSorter({topic.key: topic.requires for topic in topics.values()})
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise TopicError(
            "topics require each other",
            expected="`requires` without a cycle",
            found=cycle,
            next_step="Remove one of these requirements.",
        ) from error
    order = list(topics)
    result: list[Topic] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=order.index)
        result += [topics[key] for key in ready]
        sorter.done(*ready)
    return tuple(result)
