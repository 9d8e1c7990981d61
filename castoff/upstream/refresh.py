"""Refresh: write the edits of a checkout back into a topic.

An edit is everything in the folder that is not in the topics' commits: changed and new files, and
commits on top. New files go to files/, the rest becomes hunks with the least context that is unique
in upstream's file. Nothing is written before a check that the new topic, applied to the tree under it,
gives the edited tree. Then the checkout's commits are made again, with the edits in the topic's own,
and the files in the folder are not changed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from castoff.builder.apply import CHECKOUT_ONLY_SUFFIXES
from castoff.core.context import Context
from castoff.core.errors import CheckoutError
from castoff.model.hunks import UNPROVEN, with_pin
from castoff.model.topics import CPP_SUFFIXES, PYTHON_SUFFIXES, Topic
from castoff.upstream.checkout import TopicCommit, message_of, topic_commits
from castoff.upstream.repository import Change, Repository
from castoff.upstream.source_tree import IDENTITY

_PLAIN = "100644"
_MOST_CONTEXT = 50
_OLD_LINES = re.compile(r"(?m)^@@ -(\d+)(?:,(\d+))? ")


@dataclass(frozen=True)
class Refreshed:
    """The changes of a topic."""

    topic: str  # its full name
    files: tuple[str, ...]  # the new files that it has now, by their paths upstream
    hunks: tuple[str, ...]  # the upstream files that it changes now
    changed: tuple[str, ...]  # the files of its folder that were written or removed
    replaced: str  # the checkout's commit before, which git keeps for a while


def refresh(name: str, folder: Path, topics: Sequence[Topic], context: Context) -> Refreshed:
    """Write an edited checkout back into a topic.

    Args:
        name: The topic, as "project/name", or "name" if the checkout has one of that name.

    Returns:
        The changes of the topic.

    Raises:
        CheckoutError: The folder is not such a checkout, an edit is not of this topic, a topic cannot contain
            it, or the topic in patches/ is not the one that the checkout was made with.
    """
    if not (folder / ".git").exists():
        raise _error(f"{folder} is not a checkout", "a folder that `castoff checkout` made", "no git repository")
    with context.cache.lock("refresh"), context.cache.scratch("refresh") as scratch:
        edited = _Edited(Repository(folder.absolute(), context.runner), name, topics, scratch)
        return edited.write_back()


class _Edited:
    """An edited checkout and the topic that the edits are for."""

    def __init__(self, repository: Repository, name: str, topics: Sequence[Topic], scratch: Path) -> None:
        self._repository = repository
        self._scratch = scratch
        self._commits = topic_commits(repository)
        self._head = repository.one("rev-parse", "HEAD")
        self._check_order()
        self._at = self._find(name)
        self._own = self._commits[self._at]
        self._topic = self._topic_in_patches(topics)
        self._parent = repository.one("rev-parse", f"{self._own.commit}^")

    def write_back(self) -> Refreshed:
        trees = self._edited_trees()
        changes = self._repository.changes(self._parent, trees[0])
        _check_changes(changes)
        self._check_owners(changes, trees[0])
        new = self._scratch / "topic"
        files = [change.path for change in changes if change.status == "A"]
        hunks = [change.path for change in changes if change.status == "M"]
        for path in files:
            target = new / "files" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            self._repository.read(trees[0], path, target)
        patch = self._scratch / f"{self._own.pin}.patch"
        patch.write_bytes(b"".join(self._hunks_of(path, trees[0]) for path in hunks))
        self._check_round_trip(files, new, patch if hunks else None, trees[0])
        for name, text in with_pin(self._topic.folder / "hunks", self._own.pin, patch.read_bytes()).items():
            (new / "hunks").mkdir(parents=True, exist_ok=True)
            (new / "hunks" / name).write_bytes(text)
        changed = _replace(self._topic, new)
        self._commit(trees)
        return Refreshed(self._topic.key, tuple(files), tuple(hunks), tuple(changed), self._head)

    def _check_order(self) -> None:
        """Check that the topics' commits follow each other, so that the commits on top are edits."""
        for earlier, later in zip(self._commits, self._commits[1:], strict=False):
            if self._repository.one("rev-parse", f"{later.commit}^") != earlier.commit:
                raise _error(
                    "the checkout has commits between those of its topics",
                    f"{earlier.topic} right below {later.topic}",
                    "another commit between them",
                    "Move it to the top, or into a topic's commit (git rebase --interactive).",
                )
        if not self._commits:
            raise _error("this is not a checkout of castoff", "commits with the trailer Castoff-Topic", "none")

    def _find(self, name: str) -> int:
        found = [at for at, commit in enumerate(self._commits) if name in (commit.topic, commit.topic.split("/")[1])]
        if len(found) != 1:
            known = ", ".join(commit.topic for commit in self._commits)
            raise _error(
                f"{name} is not a topic of this checkout",
                f"one of {known}",
                name if not found else f"{len(found)} commits of it",
                "Give one of them; a new topic gets its commit from `castoff checkout` once it has a topic.toml.",
            )
        return found[0]

    def _topic_in_patches(self, topics: Sequence[Topic]) -> Topic:
        topic = next((topic for topic in topics if topic.key == self._own.topic), None)
        if topic is None:
            raise _error(f"there is no topic {self._own.topic}", f"patches/{self._own.topic}", "no such folder")
        made_with = (topic, topic.with_unproven(self._own.pin))
        if all(one.source_hash(self._own.pin) != self._own.state for one in made_with):
            raise _error(
                f"patches/{topic.key} is not what this checkout was made with",
                f"files/ and hunks/ of that time (hash {self._own.state[:12]})",
                f"other ones (hash {topic.source_hash(self._own.pin)[:12]}), which would be overwritten",
                "Keep a copy of them, restore the earlier ones (git stash), refresh, and merge the two.",
            )
        return topic

    def _edited_trees(self) -> list[str]:
        """Return the trees of the topic's commit and of those above it, all with the edits."""
        repository = self._repository
        working = repository.working_tree()
        top = repository.one("rev-parse", f"{self._commits[-1].commit}^{{tree}}")
        later = self._commits[self._at :]
        if working == top:
            return [repository.one("rev-parse", f"{commit.commit}^{{tree}}") for commit in later]
        edits = self._scratch / "edits.patch"
        repository.git("diff-tree", "-p", "--binary", "--full-index", f"--output={edits}", top, working)
        trees = []
        for commit in later[:-1]:
            tree = repository.with_patch(commit.commit, edits, "--3way")
            if tree is None:
                above = ", ".join(commit.topic for commit in later[1:])
                raise _error(
                    f"the edits do not fit {commit.topic}",
                    f"edits of lines that exist without the topics above it ({above})",
                    "edits of lines or files of those topics",
                    f"Refresh the topic that has those lines, or amend the commit of {self._own.topic} "
                    "(git rebase --interactive).",
                )
            trees.append(tree)
        return [*trees, working]

    def _check_owners(self, changes: Sequence[Change], tree: str) -> None:
        """Check that no line or file of a topic below is changed. The topics above are checked by `_edited_trees`."""
        below = {commit.commit: commit.topic for commit in self._commits[: self._at]}
        base = self._repository.one("rev-parse", f"{self._commits[0].commit}^")
        for change in changes:
            if change.status != "M":
                continue
            if not self._repository.succeeds("cat-file", "-e", f"{base}:{change.path}"):
                added = self._repository.one("log", "--diff-filter=A", "--format=%H", self._parent, "--", change.path)
                raise self._others_line(below.get(added, "another topic"), change.path, 1)
            for line, commit in self._replaced_lines(change.path, tree):
                if commit in below:
                    raise self._others_line(below[commit], change.path, line)

    def _replaced_lines(self, path: str, tree: str) -> Iterator[tuple[int, str]]:
        """Yield the lines below the topic that its tree no longer has, with the commit that each is from."""
        # The options with names override a user's settings.
        options = ("-U0", "--no-color", "--no-ext-diff", "--no-textconv")
        diff = self._repository.git("diff-tree", "-r", "-p", *options, self._parent, tree, "--", f":(literal){path}")
        for start, count in _OLD_LINES.findall(diff):
            if count == "0":
                continue
            blamed = self._repository.git(
                "blame", "-s", "-l", "--root", "-L", f"{start},+{count or 1}", self._parent, "--", path
            )
            for offset, line in enumerate(blamed.splitlines()):
                yield int(start) + offset, line.split()[0].lstrip("^")

    def _others_line(self, topic: str, path: str, line: int) -> CheckoutError:
        return _error(
            f"the edits change a line of {topic}",
            f"edits of upstream's lines and of those of {self._own.topic}",
            f"an edit of {path}, line {line} (without {self._own.topic} and the topics above it)",
            f"Refresh {topic} with that edit, and edit {self._own.topic} after that.",
        )

    def _hunks_of(self, path: str, tree: str) -> bytes:
        """Return the diff of a file, with the least context that is unique in it."""
        original, output = self._scratch / "original", self._scratch / "diff"
        self._repository.read(self._parent, path, original)
        before = original.read_bytes().split(b"\n")
        for context in range(1, _MOST_CONTEXT):
            options = (
                f"-U{context}",
                "--no-color",
                "--no-ext-diff",
                "--no-textconv",
                "--abbrev=7",
                f"--output={output}",
            )
            self._repository.git("diff-tree", "-r", "-p", *options, self._parent, tree, "--", f":(literal){path}")
            diff = output.read_bytes()
            if b"\nGIT binary patch\n" in diff or b"\nBinary files " in diff:
                break
            if all(_places(block, before) == 1 for block in _old_sides(diff)):
                return diff
        raise _error(
            f"{path} cannot become hunks", "text in which the context of each change is unique", "another change"
        )

    def _check_round_trip(self, files: Sequence[str], new: Path, patch: Path | None, tree: str) -> None:
        """Check that the new topic, applied to the tree under it, gives the edited tree."""
        repository = self._repository
        made: str | None = repository.one("rev-parse", f"{self._parent}^{{tree}}")
        if patch is not None:
            made = repository.with_patch(self._parent, patch)
        if made is not None:
            with repository.index(made) as index:
                for path in files:
                    blob = repository.one("hash-object", "-w", "--no-filters", new / "files" / path)
                    entry = f"{_PLAIN},{blob},{path}"
                    repository.git("update-index", "--add", "--cacheinfo", entry, env=index)
                made = repository.one("write-tree", env=index)
        if made != tree:
            raise _error(
                f"the files and hunks of {self._topic.key} do not give the edits",
                "files and hunks that give the edited tree",
                f"another tree ({made})",
                "This is a bug in castoff; nothing was written.",
            )

    def _commit(self, trees: Sequence[str]) -> None:
        """Make the commits of the topic and of those above it again; the folder's files are not changed."""
        repository, parent = self._repository, self._parent
        for commit, tree in zip(self._commits[self._at :], trees, strict=True):
            parent = repository.commit(tree, parent, self._message(commit), IDENTITY)
        repository.git("update-ref", "-m", f"castoff refresh {self._topic.key}", "HEAD", parent, self._head)
        repository.git("read-tree", parent)
        repository.succeeds("update-index", "-q", "--refresh")

    def _message(self, commit: TopicCommit) -> str:
        return message_of(self._topic, commit.pin) if commit is self._own else commit.message


def _error(summary: str, expected: str, found: str, next_step: str = "") -> CheckoutError:
    advice = next_step or "Give a folder that `castoff checkout` made."
    return CheckoutError(summary, expected=expected, found=found, next_step=advice)


def _check_changes(changes: Sequence[Change]) -> None:
    """Check that a topic can contain the changes."""
    for change in changes:
        path = Path(change.path)
        if change.status not in ("A", "M"):
            raise _error(
                f"{path} is removed or of another type",
                "changed files and new ones",
                f"git's status {change.status}",
                "Topics remove and rename no files: restore it, and make it unused instead.",
            )
        allowed = (*PYTHON_SUFFIXES, *(CPP_SUFFIXES if change.status == "A" else CHECKOUT_ONLY_SUFFIXES))
        if path.suffix not in allowed:
            raise _error(
                f"a topic cannot contain {path}",
                f"{', '.join(allowed)} files",
                path.name,
                "If it is not part of the topic, remove it or list it in .git/info/exclude.",
            )
        if change.status == "A" and change.mode != _PLAIN:
            raise _error(f"{path} is not a plain file", f"mode {_PLAIN}", change.mode, f"chmod 644 {path}")


def _old_sides(diff: bytes) -> list[list[bytes]]:
    """Return the lines that each hunk of a diff expects."""
    blocks: list[list[bytes]] = []
    for line in diff.split(b"\n"):
        if line.startswith(b"@@ "):
            blocks.append([])
        elif blocks and line[:1] in (b" ", b"-"):
            blocks[-1].append(line[1:])
    return blocks


def _places(block: list[bytes], lines: list[bytes]) -> int:
    return sum(lines[at : at + len(block)] == block for at in range(len(lines) - len(block) + 1))


def _replace(topic: Topic, new: Path) -> list[str]:
    """Write the new files and hunks, each by one rename; return the files that changed."""
    wanted = {path.relative_to(new): path for path in sorted(new.rglob("*")) if path.is_file()}
    patches = {path.name for path in (topic.folder / "hunks").glob("*.patch")} - {UNPROVEN}
    present = {Path("files", path) for path in topic.new_files()} | {Path("hunks", name) for name in patches}
    changed = []
    for relative, source in wanted.items():
        target = topic.folder / relative
        if target.is_file() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.new")
        shutil.copyfile(source, beside)
        beside.replace(target)
        changed.append(str(relative))
    for relative in sorted(present - wanted.keys()):
        target = topic.folder / relative
        if target.is_file():
            target.unlink()
            changed.append(str(relative))
        while target.parent != topic.folder and not any(target.parent.iterdir() if target.parent.is_dir() else [0]):
            target = target.parent
            target.rmdir()
    return changed
