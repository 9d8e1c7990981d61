"""A git repository that castoff made: trees and commits by plumbing, without the user's index."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from castoff.core.runner import Completed, Runner

_NEUTRAL = ("commit.gpgsign=false", "core.autocrlf=false", "core.quotepath=false", "diff.noprefix=false", "gc.auto=0")
"""Settings of a user that would change the output."""


@dataclass(frozen=True)
class Change:
    """The change of one file between two trees."""

    status: str  # git's letter: A, M, D or T
    path: str
    mode: str  # its mode in the later tree


class Repository:
    """A repository."""

    def __init__(self, folder: Path, runner: Runner) -> None:
        self.folder = folder
        self._runner = runner

    def git(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> str:
        """Run git; return what it wrote.

        Raises:
            CommandError: It failed.
        """
        return self._run(arguments, env, check=True).output

    def succeeds(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> bool:
        """Run git; return whether it succeeded."""
        return self._run(arguments, env, check=False).returncode == 0

    def _run(self, arguments: tuple[str | Path, ...], env: Mapping[str, str] | None, *, check: bool) -> Completed:
        settings = [word for setting in _NEUTRAL for word in ("-c", setting)]
        return self._runner.run(
            ["git", *settings, *arguments],
            name=f"git-{arguments[0]}",
            cwd=self.folder,
            env={**_without_git(), **(env or {})},
            check=check,
        )

    def one(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> str:
        """Run git; return the one line that it wrote."""
        return self.git(*arguments, env=env).strip()

    @contextmanager
    def index(self, tree: str | None = None) -> Iterator[dict[str, str]]:
        """Provide a separate index, as an environment for git.

        Args:
            tree: Its content; a copy of the user's index if not given.
        """
        git_dir = Path(self.one("rev-parse", "--absolute-git-dir"))
        path = git_dir / "castoff-index"
        path.unlink(missing_ok=True)
        try:
            environment = {"GIT_INDEX_FILE": str(path)}
            if tree is not None:
                self.git("read-tree", tree, env=environment)
            elif (git_dir / "index").is_file():
                shutil.copy2(git_dir / "index", path)  # with its time, which git compares with those of the files
            yield environment
        finally:
            path.unlink(missing_ok=True)

    def working_tree(self) -> str:
        """Return the tree of the present files, without those that upstream's .gitignore excludes."""
        with self.index() as index:
            self.git("add", "--all", ".", env=index)
            return self.one("write-tree", env=index)

    def with_patch(self, tree: str, patch: Path, *options: str) -> str | None:
        """Return a tree with a patch applied, or None if it does not apply."""
        with self.index(tree) as index:
            if not self.succeeds("apply", "--cached", "--whitespace=nowarn", *options, patch, env=index):
                return None
            return self.one("write-tree", env=index)

    def changes(self, old: str, new: str) -> list[Change]:
        """Return what differs between two trees, by path."""
        words = self.git("diff-tree", "-r", "-z", "--no-renames", old, new).split("\0")
        changes = []
        for head, path in zip(words[0::2], words[1::2], strict=False):
            _, mode, _, _, status = head.split()
            changes.append(Change(status, path, mode))
        return sorted(changes, key=lambda change: change.path)

    def read(self, tree: str, path: str, target: Path) -> None:
        """Write a file of a tree to another path, byte by byte."""
        blob = self.one("rev-parse", f"{tree}:{path}")
        with self.index(tree) as index:
            prefix = f"{target.parent}/.castoff-{target.name}/"
            self.git("checkout-index", f"--prefix={prefix}", "--", path, env=index)
        (Path(prefix) / path).replace(target)
        shutil.rmtree(prefix)
        assert blob == self.one("hash-object", "--no-filters", target)

    def commit(self, tree: str, parent: str, message: str, identity: Mapping[str, str]) -> str:
        """Make a commit; return its name."""
        return self.one("commit-tree", tree, "-p", parent, "-m", message, env=identity)


def _without_git() -> dict[str, str]:
    """Return the environment without variables that would point git to another repository."""
    return {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
