"""The topics: one folder each, read and checked before anything is built."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from castoff.core.errors import TopicError
from castoff.core.toml_model import Model, fail, matching, not_empty, read_toml, unique, wrong
from castoff.model.hunks import UNPROVEN, patches_of, pins_of
from castoff.model.pin import PROJECTS, Address

PYTHON_SUFFIXES = (".py", ".pyi")
CPP_SUFFIXES = (".cpp", ".h")

_TOPIC_NAME = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
_PIN_NAME = r"\d+\.\d+"

Text = Annotated[str, not_empty]
TopicName = Annotated[str, matching(_TOPIC_NAME, "a name like 'grad-dtype'")]
TopicKey = Annotated[str, matching(rf"({'|'.join(PROJECTS)})/{_TOPIC_NAME}", "'project/name'")]
PinName = Annotated[str, matching(_PIN_NAME, "the name of a pin, like '2.9'")]
State = Annotated[
    str,
    matching(
        r"(?s)applies|upstream|cannot: (?!.*not tried).*\S.*",
        "'applies', 'upstream' or 'cannot: reason', once it was tried",
    ),
]
Symbol = Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]*", "a symbol")]
SymbolNames = Annotated[tuple[Symbol, ...], unique]


class PinOverlayTable(Model):
    """[overlay."2.9"]: symbols on one pin only."""

    interpose: SymbolNames = ()
    """Functions of torch that the topic interposes on this pin, besides those that it interposes on every pin."""


class OverlayTable(Model):
    """[overlay]: the symbols that the topic's C++ exports, by their mangled names."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, PinOverlayTable] = Field(init=False)

    interpose: SymbolNames = ()
    """Functions of torch that the topic interposes on every pin: torch's calls of them go to the topic's definition."""
    exports: SymbolNames = ()
    """Other symbols that it defines, for Python to find."""

    @property
    def pins(self) -> dict[str, PinOverlayTable]:
        """What differs from pin to pin."""
        return self.__pydantic_extra__

    @model_validator(mode="after")
    def _check(self) -> OverlayTable:
        for pin, own in self.pins.items():
            if re.fullmatch(_PIN_NAME, pin) is None:
                raise wrong("interpose, exports or the name of a pin, like '2.9'", "an unknown key", pin)
            twice = set(self.interpose) & set(own.interpose)
            if twice:
                raise wrong("symbols that are not in [overlay] interpose", ", ".join(sorted(twice)), f"{pin}.interpose")
        return self


class TopicFile(Model):
    """patches/PROJECT/NAME/topic.toml: a reason to differ from upstream."""

    name: TopicName
    """The name of the folder."""
    project: Literal["torch", "torch_xla"]
    """The project that it patches."""
    title: Annotated[str, matching(r"\S[^\n]*", "one line")]
    """What a user gets, in one line."""
    why: Text
    """Why it exists, and its limits."""
    kind: Literal["backport", "waiting", "never"]
    """backport: from a later release of upstream's; waiting: not upstream yet; never: not meant for upstream."""
    upstream: Annotated[tuple[Address, ...], unique] = ()
    """The issues, pull requests and releases where upstream discusses it. A topic that is waiting or a backport has
    at least one link with a number or a version."""
    drop_when: Text
    """When the topic can be removed."""
    requires: Annotated[tuple[TopicKey, ...], unique] = ()
    """The topics that it needs, as "project/name"."""
    after: Annotated[tuple[TopicKey, ...], unique] = ()
    """Topics that go before it in builds that have them. Of two kernels for one operator, the later topic's is called
    first."""
    module: Annotated[str, matching(r"_[a-z0-9_]*|", "a module like '_my_topic'")] = ""
    """Of torch_xla: the module whose install() puts it in force at import. Left out if hunks do, or C++ alone: its
    `castoff_<name>_install`, which `exports` names."""
    tests: Annotated[
        tuple[Annotated[str, matching(r"tests/\S+\.py", "a path like 'tests/ir/test_x.py'")], ...], unique
    ] = ()
    """The files of tests that prove it, as paths from the root of the tree."""
    unproven: Annotated[tuple[PinName, ...], unique] = ()
    """Pins whose hunks on C++, in hunks/unproven.patch, nobody has applied or compiled yet. `castoff checkout
    --unproven` takes them."""
    pins: dict[PinName, State]
    """For each pin "applies", "upstream" (that release has it), or "cannot: " and the reason; the list `applies` has
    those to which it applies."""
    overlay: OverlayTable = OverlayTable()
    """The symbols of its C++, see below."""

    @field_validator("pins", mode="before")
    @classmethod
    def _each(cls, pins: object) -> object:
        """Give each pin of the list ``applies`` its state."""
        match pins:
            case {"applies": [*names], **others} if all(isinstance(name, str) for name in names):
                return {**dict.fromkeys(names, "applies"), **others}
        return pins

    @model_validator(mode="after")
    def _check(self) -> TopicFile:
        interposed = [*self.overlay.interpose, *(name for own in self.overlay.pins.values() for name in own.interpose)]
        # Only the overlay of torch is loaded ahead of libtorch_cpu.so.
        if interposed and self.project != "torch":
            raise wrong("nothing: only torch's overlay can interpose", repr(interposed), "overlay.interpose")
        return self


@dataclass(frozen=True)
class Symbols:
    """The symbols that a topic's C++ exports on one pin."""

    interpose: tuple[str, ...] = ()  # functions of torch that it interposes
    exports: tuple[str, ...] = ()  # other symbols, for Python to find


class Topic(TopicFile):
    """One reason to differ from upstream."""

    folder: Path
    """Where it is."""
    takes_unproven: bool = False
    """Whether its part of a checkout has the hunks that nobody has proven."""

    @property
    def key(self) -> str:
        """Its full name, "project/name"."""
        return f"{self.project}/{self.name}"

    @property
    def is_cpp_alone(self) -> bool:
        """Whether its C++ puts it in force without a module."""
        return not self.module and f"castoff_{self.name.replace('-', '_')}_install" in self.overlay.exports

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

    def hunks(self, pin: str) -> tuple[Path, ...]:
        """Return the patches of upstream's files on a pin."""
        return patches_of(self.folder / "hunks", pin)

    def unproven_hunks(self, pin: str) -> Path | None:
        """Return the patch of upstream's C++ files on a pin that nobody has proven, if there is one."""
        return self.folder / "hunks" / UNPROVEN if pin in self.unproven else None

    def with_unproven(self, pin: str) -> Topic:
        """Return the same topic, whose part of a checkout of a pin has the hunks that nobody has proven."""
        return self.model_copy(update={"takes_unproven": pin in self.unproven})

    def patches(self, pin: str) -> tuple[Path, ...]:
        """Return the patches that make its part of a build or checkout of a pin."""
        unproven = self.unproven_hunks(pin) if self.takes_unproven else None
        return (*self.hunks(pin), *([unproven] if unproven else []))

    def sources(self) -> tuple[Path, ...]:
        """Return the C++ files that are compiled into the overlay."""
        files = [*_files(self.folder / "files"), *_files(self.folder / "overlay")]
        return tuple(path for path in files if path.suffix == ".cpp")

    def headers(self) -> tuple[Path, ...]:
        """Return its C++ headers."""
        files = [*_files(self.folder / "files"), *_files(self.folder / "overlay")]
        return tuple(path for path in files if path.suffix == ".h")

    def overlay_symbols(self, pin: str) -> Symbols:
        """Return the symbols that its C++ exports on a pin."""
        own = self.overlay.pins.get(pin, PinOverlayTable())
        return Symbols((*self.overlay.interpose, *own.interpose), self.overlay.exports)

    def content_hash(self, pin: str) -> str:
        """Return one hash over everything of it that goes into a build of a pin."""
        return self._hash([self.folder / "topic.toml", *_files(self.folder / "overlay")], pin)

    def source_hash(self, pin: str) -> str:
        """Return one hash over its part of a checkout of a pin: its files and hunks."""
        return self._hash([], pin)

    def _hash(self, more: list[Path], pin: str) -> str:
        digest = hashlib.sha256()
        for path in [*more, *_files(self.folder / "files"), *self.patches(pin)]:
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
        The topics; where `requires` leaves a choice, torch's before torch_xla's, then by name.

    Raises:
        TopicError: A topic is malformed, or requires itself or one that does not exist.
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
        TopicError: One of them does not name the pin, or requires one that does not apply to it.
    """
    by_key = {topic.key: topic for topic in topics}
    for topic in topics:
        if pin not in topic.pins:
            _fail(topic, f'"{pin}" under [pins]', "no such key", "State there whether the topic applies to this pin.")
        if topic.applies(pin):
            for required in topic.requires:
                if by_key[required].pins.get(pin, "").startswith("cannot"):
                    _fail(
                        topic,
                        f"{required}, which it requires, applies to {pin}",
                        f"{required} says {by_key[required].pins[pin]!r}",
                        f"Set {pin} to 'cannot: …' in {topic.key} too.",
                    )
    return tuple(topic for topic in topics if topic.applies(pin))


def named(topics: Sequence[Topic], names: Sequence[str]) -> tuple[Topic, ...]:
    """Return the topics of some names, in order: "grad-dtype" or "torch/grad-dtype"; all of them without names.

    Raises:
        TopicError: There is no topic of one of the names.
    """
    for name in names:
        if not any(name in (topic.key, topic.name) for topic in topics):
            raise TopicError(
                f"there is no topic {name}",
                expected=f"one of {', '.join(topic.key for topic in topics)}",
                found=name,
                next_step="`castoff topics` lists them.",
            )
    return tuple(topic for topic in topics if not names or topic.key in names or topic.name in names)


ALWAYS_ON = ("kill-switch", "runtime")
"""What the other topics stand on: the switch, which has none itself, and the C++ that they share."""

REGISTRY = "_castoff_topics.py"
"""The generated file in the package of either project by which its Python half knows the topics of the build."""


def registry(topics: Sequence[Topic], project: str) -> str:
    """Return the text of a project's ``REGISTRY``.

    Args:
        topics: The topics of the build, all projects', in order.
    """
    switched = [topic for topic in topics if topic.name not in ALWAYS_ON]
    own = [topic for topic in switched if topic.project == project]
    others = [topic for topic in switched if topic.project != project]
    modules = json.dumps({topic.name: "C++" if topic.is_cpp_alone else topic.module for topic in own}, indent=4)
    names = json.dumps([topic.name for topic in others], indent=4)
    return (
        '"""The topics of this build: made by castoff from each topic.toml, not to be edited."""\n\n'
        "#: This project's, in the order of their installation, and the module whose install() puts each in force;\n"
        '#: "C++" where that does alone, "" where hunks do.\n'
        f"TOPICS = {modules}\n\n#: The other project's.\nOTHERS = {names}\n"
    )


def _fail(topic: Topic, expected: str, found: str, next_step: str) -> None:
    raise TopicError(f"topic {topic.key} is not consistent", expected=expected, found=found, next_step=next_step)


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _load(folder: Path, project: str) -> Topic:
    path = folder / "topic.toml"
    read = read_toml(path, TopicFile, TopicError)
    for key, value in (("name", folder.name), ("project", project)):
        if getattr(read, key) != value:
            fail(path, TopicError, [(key, f"{value!r}, the name of the folder", repr(getattr(read, key)))])
    topic = Topic(**dict(read), folder=folder)
    _check_files(topic)
    _check_module(topic)
    return topic


def _check_files(topic: Topic) -> None:
    """Check that every file of the topic is in a folder that the build reads."""
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
                    "Move or rename it.",
                )
    if (topic.folder / "hunks" / UNPROVEN).is_file() != bool(topic.unproven):
        _fail(
            topic,
            f"hunks/{UNPROVEN} and the pins that it is for, as `unproven`, or neither",
            f"`unproven` is {list(topic.unproven)}",
            "Add what is missing, or remove the other.",
        )
    for path in _files(topic.folder / "hunks"):
        if path.name != UNPROVEN and not set(pins_of(path)) <= topic.pins.keys():
            _fail(
                topic,
                f"hunks/ has patches of {', '.join(topic.pins)}, the pins in topic.toml",
                str(path.relative_to(topic.folder)),
                "Name the patch after its pins, like 2.8+2.9.patch, and each pin in topic.toml.",
            )
    if topic.overlay != OverlayTable() and not topic.sources():
        _fail(topic, "C++ sources, since topic.toml has [overlay]", "none", "Add the sources or remove [overlay].")


def _check_module(topic: Topic) -> None:
    installer = topic.folder / "files" / topic.project / f"{topic.module}.py"
    if topic.module and not (topic.project == "torch_xla" and installer.is_file()):
        _fail(
            topic,
            f"files/torch_xla/{topic.module}.py, as `module` says, whose install() enables the topic",
            "no such file",
            "Add the module, or correct `module`.",
        )


def _ordered(topics: dict[str, Topic]) -> tuple[Topic, ...]:
    for topic in topics.values():
        for key, names, what in (("requires", topic.requires, "requires"), ("after", topic.after, "comes after")):
            for name in names:
                if name not in topics:
                    _fail(topic, f"{name}, which it {what}", "no such topic", f"Add that topic or correct `{key}`.")
    sorter = TopologicalSorter({topic.key: (*topic.requires, *topic.after) for topic in topics.values()})
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise TopicError(
            "topics require each other",
            expected="`requires` and `after` without a cycle",
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
