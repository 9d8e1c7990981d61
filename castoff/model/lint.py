"""Checks of topics beyond the schema of topic.toml: reasons, small hunks, tests that prove them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from castoff.model.pin import pin_names
from castoff.model.topics import Topic, load_topics

MOST_ADDED = 12
"""Lines that one hunk may add: it is a call site, and the logic is in the topic's new files."""
MOST_CONTEXT = 3
"""Context lines that a hunk may have on either side."""

_PLACE = re.compile(r"/(issues|pull|commit|releases/tag)/\w")
"""What a link to a discussion upstream contains; a link to a repository is not one."""

_MARKER = "fails_on_stock"
_EXPECTATIONS = frozenset({"ir", "hlo", "expect_tpu"})
"""The functions with which tests state IR or HLO: of tests/ir/ir_text.py and tests/tpu/conftest.py."""


@dataclass(frozen=True)
class Finding:
    """One problem of a topic."""

    topic: str  # the topic's full name, "project/name"
    expected: str  # what was expected
    found: str  # what is there
    next_step: str  # what to do


def lint_topics(root: Path) -> list[Finding]:
    """Return the problems of the topics of a tree, topic by topic.

    Args:
        root: The tree, with ``patches``, ``pins``, ``tests``, ``docs/topics.md`` and ``CHANGELOG.md``.

    Raises:
        TopicError: A topic.toml is malformed.
    """
    pins = pin_names(root / "pins")
    checks = (_reasons, _pins, _hunks, _tests, _example, _changelog, _table, _installed)
    return [
        Finding(topic.key, *finding)
        for topic in load_topics(root / "patches")
        for check in checks
        for finding in check(topic, root, pins)
    ]


Findings = Iterator[tuple[str, str, str]]


def _reasons(topic: Topic, _root: Path, _pins: list[str]) -> Findings:
    if topic.kind != "never" and not any(map(_PLACE.search, topic.upstream)):
        yield (
            "a link to an issue, a pull request, a commit or a release, since the topic is "
            f"{'a backport' if topic.kind == 'backport' else 'waiting for upstream'}",
            f"`upstream` of {', '.join(topic.upstream)}" if topic.upstream else "no `upstream`",
            "Link the page where upstream discusses it; if nobody has reported it, report it first, or say `never`.",
        )


def _pins(topic: Topic, _root: Path, pins: list[str]) -> Findings:
    for pin in pins:
        if pin not in topic.pins:
            yield f'"{pin}" under [pins]', "no such key", "State there whether the topic applies, or why it cannot."


def _hunks(topic: Topic, _root: Path, pins: list[str]) -> Findings:
    for pin in pins:
        patches = topic.with_unproven(pin).patches(pin)
        for name, lines in (hunk for patch in patches for hunk in _hunks_of(patch)):
            added = sum(line.startswith("+") for line in lines)
            if added > MOST_ADDED:
                yield (
                    f"a hunk that adds at most {MOST_ADDED} lines ({pin}, {name})",
                    f"{added} lines",
                    "Move them into a new file under files/, and call it.",
                )
            context = max(_leading_context(lines), _leading_context(lines[::-1]))
            if context > MOST_CONTEXT:
                yield (
                    f"at most {MOST_CONTEXT} lines of context on either side ({pin}, {name})",
                    f"{context} lines",
                    f"Write it with `castoff refresh {topic.name}`.",
                )


def _hunks_of(patch: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each hunk of a patch: its file and line numbers, and its lines."""
    file = name = ""
    lines: list[str] = []
    for line in patch.read_text(encoding="utf-8").splitlines():
        if line.startswith(("diff ", "@@")):
            if lines:
                yield name, lines
            lines = []
        if line.startswith("+++ "):
            file, lines = line.removeprefix("+++ b/"), []
        elif line.startswith("@@"):
            name = f"{file} {line.split(' @@')[0].removeprefix('@@ ')}"
        elif line.startswith(("+", "-", " ")) and not line.startswith("--- "):
            lines.append(line)
        elif not line:
            lines.append(" ")
    if lines:
        yield name, lines


def _leading_context(lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines) if not line.startswith(" ")), len(lines))


def _tests(topic: Topic, root: Path, _pins: list[str]) -> Findings:
    if not topic.tests:
        yield "`tests`, the files that prove the topic", "none", "Name them in topic.toml."
        return
    missing = [path for path in topic.tests if not (root / path).is_file()]
    for path in missing:
        yield f"{path}, which is in `tests`", "no such file", "Correct the name, or write the test."
    texts = [(root / path).read_text(encoding="utf-8") for path in topic.tests if path not in missing]
    proofs = [test for text in texts for test in _proofs(text)]
    if not proofs:
        yield (
            f"a test marked {_MARKER}, which must fail on stock wheels in ci/test.sh",
            "none in `tests`",
            "Mark the tests that show what the topic changes.",
        )
    elif topic.kind != "never" and not any(map(_expects_ir, proofs)):
        yield (
            f"a test marked {_MARKER} that states the IR or the HLO of a program ({', '.join(sorted(_EXPECTATIONS))})",
            f"none of the {len(proofs)} with that mark",
            "Write one in tests/ir/, as CONTRIBUTING.md says.",
        )


def _proofs(text: str) -> list[ast.FunctionDef]:
    """Return the tests of a module that must fail on stock wheels: they, their class or the module are marked."""
    module = ast.parse(text)
    names = {_MARKER}  # what modules import from tests/marks.py
    for node in module.body:
        if isinstance(node, ast.Assign) and _marks(node.value, names):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    everywhere = "pytestmark" in names
    found = []
    for node in module.body:
        of_class = isinstance(node, ast.ClassDef) and _marked(node, names)
        for test in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(test, ast.FunctionDef) and test.name.startswith("test"):
                found += [test] if everywhere or of_class or _marked(test, names) else []
    return found


def _marked(node: ast.ClassDef | ast.FunctionDef, names: set[str]) -> bool:
    return any(_marks(decorator, names) for decorator in node.decorator_list)


def _marks(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is the marker, or one of the names that a module gives to it."""
    while isinstance(node, ast.Call):
        node = node.func
    return node.attr == _MARKER if isinstance(node, ast.Attribute) else isinstance(node, ast.Name) and node.id in names


def _expects_ir(test: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Name) and node.id in _EXPECTATIONS for node in ast.walk(test))


def _example(topic: Topic, _root: Path, _pins: list[str]) -> Findings:
    if topic.kind != "never" and not (topic.folder / "example.py").is_file():
        yield (
            "example.py, the program that docs/before-after.md shows",
            "no such file",
            "Write the smallest program that shows the difference.",
        )


def _changelog(topic: Topic, root: Path, _pins: list[str]) -> Findings:
    if f"`{topic.name}`" not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        yield f"`{topic.name}` in CHANGELOG.md", "no line about it", "State under [Unreleased] what users get."


def _table(topic: Topic, root: Path, _pins: list[str]) -> Findings:
    link = f"](../patches/{topic.key})"
    if link not in (root / "docs" / "topics.md").read_text(encoding="utf-8"):
        yield f"a row with [`{topic.name}`{link} in docs/topics.md", "no such link", "Add the row."


def _installed(topic: Topic, _root: Path, _pins: list[str]) -> Findings:
    """Check that something installs a topic of torch_xla; one of torch may need only its interpositions."""
    needed = topic.project == "torch_xla" and topic.kind != "never"
    if needed and not topic.module and not topic.is_cpp_alone and not any(map(topic.hunks, topic.pins)):
        yield (
            "`module`, whose install() `import torch_xla` calls, its C++, or hunks",
            "none of them",
            "Name the module, or export castoff_<name>_install, in topic.toml: nothing else installs the topic.",
        )
