"""Checkout: the pinned upstream tree as a git repository, one commit for each topic on top.

So a maintainer can edit a topic in a normal checkout, with a debugger and upstream's own tests, and
`castoff refresh` writes the result back. The trailers of each topic's commit name the topic, the pin
and the hash of the topic's files in patches/.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from castoff.builder.apply import apply_to_checkout
from castoff.core.context import Context
from castoff.core.errors import CheckoutError
from castoff.model.pin import Pin
from castoff.model.topics import REGISTRY, Topic, registry
from castoff.upstream.repository import Repository
from castoff.upstream.source_tree import IDENTITY, Origin, upstream_tree

_TRAILER = re.compile(r"(?m)^Castoff-(Topic|Pin|State): (\S+)$")

_NOT_EDITS = """\
__pycache__/
_castoff_topics.py
*.egg-info/
.hypothesis/
.pytest_cache/
/build/
/dist/
/torch/csrc/autograd/generated/
/torchgen/packaged/
/xla/
"""
"""The files that tests and builds leave in a checkout; source packages do not have upstream's .gitignore."""


@dataclass(frozen=True)
class TopicCommit:
    """The commit of a topic."""

    commit: str  # its name
    topic: str  # the topic's full name
    pin: str  # the pin that it is for
    state: str  # the hash of the topic's files and hunks that the commit was made from
    message: str  # its whole message


def message_of(topic: Topic, pin: str) -> str:
    """Return the message of a topic's commit."""
    trailers = f"Castoff-Topic: {topic.key}\nCastoff-Pin: {pin}\nCastoff-State: {topic.source_hash(pin)}\n"
    return f"{topic.key}: {topic.title}\n\n{topic.why.strip()}\n\n{trailers}"


def topic_commits(repository: Repository) -> tuple[TopicCommit, ...]:
    """Return the topics' commits of a checkout, oldest first."""
    found = []
    for record in repository.git("log", "--reverse", "--format=%H%n%B%x00").split("\0"):
        commit, _, message = record.strip("\n").partition("\n")
        said = dict(_TRAILER.findall(message))
        if said.keys() == {"Topic", "Pin", "State"}:
            found.append(TopicCommit(commit, said["Topic"], said["Pin"], said["State"], message))
    return tuple(found)


def checkout(pin: Pin, project: str, topics: Sequence[Topic], folder: Path, context: Context) -> Origin:
    """Make a checkout.

    Args:
        topics: The topics of the pin's builds, all projects', in order.
        folder: A folder that is empty or does not exist.

    Returns:
        Where upstream's tree came from.

    Raises:
        CheckoutError: The folder is in use.
        FetchError: The tree is not available.
        ApplyError: A topic does not apply to it.
    """
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckoutError(
            f"{folder} is in use",
            expected="a folder that is empty or does not exist",
            found="one with files in it" if folder.is_dir() else "a file",
            next_step="Use another folder, or remove that one.",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with context.console.step("fetch", f"the tree of {project} {pin.upstream(project).version}"):
            origin = upstream_tree(project, pin.upstream(project), made, context)
            context.console.note(origin.about)
        (made / ".git" / "info").mkdir(exist_ok=True)
        (made / ".git" / "info" / "exclude").write_text(_NOT_EDITS, encoding="utf-8")
        _write_registry(topics, project, made)
        own = [topic for topic in topics if topic.project == project]
        with context.console.step("apply", f"{len(own)} topics, a commit for each"):
            for topic in own:
                commit_topic(topic, pin.name, made, context)
        made.chmod(0o777 & ~_umask())
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return origin


def update(pin: Pin, project: str, topics: Sequence[Topic], folder: Path, context: Context) -> None:
    """Bring a checkout up to date with the topics: from the first that changed, its commits are made again.

    Files that no changed topic changes keep their times, so that a build there compiles only what changed.

    Args:
        topics: The topics of the pin's builds, all projects', in order.

    Raises:
        CheckoutError: It is edited, or not a checkout of this pin. It is unchanged.
        ApplyError: A topic does not apply. The checkout is unchanged.
    """
    repository = Repository(folder.absolute(), context.runner)
    commits = topic_commits(repository)
    before = repository.one("rev-parse", "HEAD")
    _check_unedited(repository, commits, pin.name)
    wanted = [(topic.key, topic.source_hash(pin.name)) for topic in topics if topic.project == project]
    there = [(commit.topic, commit.state) for commit in commits]
    same = next((at for at, (new, old) in enumerate(zip(wanted, there, strict=False)) if new != old), None)
    same = min(len(wanted), len(there)) if same is None else same
    base = commits[same].commit + "^" if same < len(commits) else before
    repository.git("reset", "--quiet", "--hard", base)
    try:
        for topic in [topic for topic in topics if topic.project == project][same:]:
            commit_topic(topic, pin.name, folder, context)
    except BaseException:
        repository.git("reset", "--quiet", "--hard", before)
        raise
    _write_registry(topics, project, folder)


def _write_registry(topics: Sequence[Topic], project: str, folder: Path) -> None:
    """Write the file that names the topics of the build; git does not look at it, since no topic owns it."""
    if any(topic.project == project for topic in topics):
        (folder / ".git" / "info" / "exclude").write_text(_NOT_EDITS, encoding="utf-8")
        (folder / project).mkdir(exist_ok=True)
        (folder / project / REGISTRY).write_text(registry(topics, project), encoding="utf-8")


def _check_unedited(repository: Repository, commits: Sequence[TopicCommit], pin: str) -> None:
    status = repository.git("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all").splitlines()
    on_top = bool(commits) and repository.one("rev-parse", "HEAD") == commits[-1].commit
    pins = {commit.pin for commit in commits}
    if not status and on_top and pins == {pin}:
        return
    found = f"edits: {', '.join(line[3:] for line in status[:5])}" if status else f"commits of pin {', '.join(pins)}"
    raise CheckoutError(
        f"{repository.folder} cannot be brought up to date",
        expected=f"a checkout of pin {pin} without edits and without commits on top",
        found=found if commits else "no commits of topics",
        next_step="Write the edits back (castoff refresh), or use a new folder.",
    )


def commit_topic(topic: Topic, pin: str, folder: Path, context: Context) -> None:
    """Apply a topic to a checkout and commit it.

    Raises:
        ApplyError: It does not apply.
    """
    paths = apply_to_checkout(topic, pin, folder, context.runner)
    repository = Repository(folder, context.runner)
    if paths:
        repository.git("add", "--force", "--", *paths)
    message = message_of(topic, pin)
    repository.git("commit", "--quiet", "--no-verify", "--allow-empty", "--message", message, env=IDENTITY)
    context.console.note(f"{topic.key}: {len(paths)} files")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
