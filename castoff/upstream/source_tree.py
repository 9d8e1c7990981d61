"""Source trees: an upstream tree, from git or from the distribution's source package.

Git comes first: the pinned tag must name the pinned commit. For networks that do not reach the git host, a
pin may name a source package of the distribution; it is fetched from the mirrors in this machine's apt
configuration, and accepted by its sha256 only.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from castoff.builder.fetch import file_sha256
from castoff.core.context import Context
from castoff.core.errors import CommandError, FetchError
from castoff.core.runner import Runner
from castoff.model.pin import SourcePackage, Upstream

_REACH_SECONDS = "30"
_EPOCH = "2000-01-01T00:00:00+00:00"

IDENTITY = {
    "GIT_AUTHOR_NAME": "castoff",
    "GIT_AUTHOR_EMAIL": "castoff@localhost",
    "GIT_COMMITTER_NAME": "castoff",
    "GIT_COMMITTER_EMAIL": "castoff@localhost",
    "GIT_AUTHOR_DATE": _EPOCH,
    "GIT_COMMITTER_DATE": _EPOCH,
}
"""Author and date, always the same, so that the same tree and topics give the same commits."""


@dataclass(frozen=True)
class Origin:
    """The origin of an upstream tree."""

    kind: str  # "git" or "source package"
    about: str  # what it is, for a person


def upstream_tree(project: str, upstream: Upstream, folder: Path, context: Context) -> Origin:
    """Make an empty folder a git repository whose one commit is the pinned upstream tree.

    Args:
        folder: An empty folder.
        context: The cache, the runner and the console; the source package is kept in the cache.

    Returns:
        The origin of the tree.

    Raises:
        FetchError: Neither is available, or it is not what the pin names.
    """
    runner = context.runner
    runner.run(["git", "init", "--quiet", folder], name="git-init")
    refused = _from_git(upstream, folder, runner)
    if refused is None:
        return Origin("git", f"{upstream.repository} {upstream.tag} ({upstream.commit[:12]})")
    package = upstream.source_package
    if package is None:
        raise FetchError(
            f"the tree of {project} {upstream.version} is not available",
            expected=f"git fetches {upstream.tag} of {upstream.repository}",
            found=refused,
            next_step="Check the network and git's proxy settings, or use a machine that reaches that host.",
        )
    context.console.note(f"git does not reach {project}'s repository; taking the source package")
    _unpack(_source_package(package, context), folder)
    about = f"source package {package.name} {package.version}"
    _commit_all(folder, f"{project} {upstream.version}, the tree of the {about}", runner)
    return Origin("source package", about)


def _from_git(upstream: Upstream, folder: Path, runner: Runner) -> str | None:
    """Fetch and check out the pinned commit; return the reason if the host cannot be reached."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    tag = f"refs/tags/{upstream.tag}"
    listed = runner.run(
        ["timeout", _REACH_SECONDS, "git", "ls-remote", upstream.repository, tag, f"{tag}^{{}}"],
        name="git-ls-remote",
        env=environment,
        check=False,
    )
    if listed.returncode != 0:
        return listed.tail
    rows = [line.split("\t") for line in listed.output.splitlines() if "\t" in line]
    commits = {row[1]: row[0] for row in rows}
    # An annotated tag is an object itself; ^{} is the commit that it names.
    found = commits.get(f"{tag}^{{}}") or commits.get(tag) or "no such tag"
    if found != upstream.commit:
        raise FetchError(
            f"{upstream.tag} of {upstream.repository} is not what the pin names",
            expected=f"commit {upstream.commit}",
            found=found,
            next_step="Do not build from it; find out who moved the tag.",
        )
    runner.run(
        ["git", "fetch", "--quiet", "--depth=1", upstream.repository, tag],
        name="git-fetch",
        cwd=folder,
        env=environment,
    )
    runner.run(["git", "checkout", "--quiet", "-b", "castoff", upstream.commit], name="git-checkout", cwd=folder)
    return None


def _source_package(package: SourcePackage, context: Context) -> Path:
    """Return the upstream tarball of a source package, from the cache or from apt."""
    kept = context.cache.wheel(package.sha256)
    with context.cache.lock(f"source-{package.sha256}"):
        for path in kept.glob("*"):
            if file_sha256(path) == package.sha256:
                return path
        shutil.rmtree(kept, ignore_errors=True)
        with context.cache.scratch(f"source-{package.sha256}") as scratch:
            path = _download(package, scratch, context.runner)
            found = file_sha256(path)
            if found != package.sha256:
                raise FetchError(
                    f"{path.name} is not the file that the pin names",
                    expected=f"sha256 {package.sha256}",
                    found=found,
                    next_step="Do not use it. Another mirror may have the correct one.",
                )
            filled = scratch / "filled"
            filled.mkdir()
            path.rename(filled / path.name)
            kept.parent.mkdir(parents=True, exist_ok=True)
            filled.rename(kept)
    return kept / path.name


def _download(package: SourcePackage, scratch: Path, runner: Runner) -> Path:
    lists, downloads = scratch / "lists", scratch / "downloads"
    (lists / "partial").mkdir(parents=True)
    downloads.mkdir()
    configured = scratch / "sources.list"
    configured.write_text(source_list(package, _mirrors(runner)), encoding="utf-8")
    apt: list[str | Path] = ["apt-get", "--option", f"Dir::Etc::sourcelist={configured}"]
    apt += ["--option", "Dir::Etc::sourceparts=-", "--option", f"Dir::State::Lists={lists}"]
    apt += ["--option", "APT::Sandbox::User=root"]  # apt's own user cannot write here
    wanted = f"{package.name}={package.version}"
    try:
        runner.run([*apt, "update"], name="apt-update", cwd=downloads)
        runner.run([*apt, "source", "--download-only", "--tar-only", wanted], name="apt-source", cwd=downloads)
    except CommandError as error:
        raise FetchError(
            f"the source package {wanted} is not available",
            expected=f"a mirror of this machine's apt has {wanted} in {package.suite}",
            found=error.found,
            next_step=error.next_step,
        ) from error
    found = sorted(downloads.glob("*.orig.tar.*"))
    if len(found) != 1:
        raise FetchError(
            f"the source package {wanted} does not have the expected form",
            expected="one .orig.tar file",
            found=", ".join(path.name for path in found) or "none",
            next_step="Look at the package, and adapt castoff/upstream/source_tree.py.",
        )
    return found[0]


def _mirrors(runner: Runner) -> list[str]:
    """Return the mirrors of the distribution that this machine's apt is configured with."""
    rows = runner.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(SUITE) $(CODENAME)", "Label: Debian"],
        name="apt-indextargets",
    ).output.splitlines()
    mirrors = sorted({row.split()[0] for row in rows if re.match(r"\S+://\S+|\S+:/\S+", row)})
    if not mirrors:
        raise FetchError(
            "apt has no mirror of the distribution",
            expected="`apt-get indextargets` lists a Debian repository",
            found="none",
            next_step="Run `apt-get update`, on Debian; elsewhere, make git reach upstream's repository.",
        )
    return mirrors


def source_list(package: SourcePackage, mirrors: list[str]) -> str:
    """Return a list of apt sources for a package.

    Args:
        mirrors: The mirrors to take it from.
    """
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    option = f"[signed-by={keyring}] " if keyring.is_file() else ""
    return "".join(f"deb-src {option}{mirror} {package.suite} main\n" for mirror in mirrors)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack a tarball with one folder at its top, without that folder."""
    with tarfile.open(archive) as tar:
        # Python 3.11.2, in Debian 12, has no filters yet; the archive was checked by its hash.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        for member in tar:
            _, _, name = member.name.partition("/")
            if name:
                inner = copy.copy(member)
                inner.name = name
                tar.extract(inner, folder)


def _commit_all(folder: Path, message: str, runner: Runner) -> None:
    environment = {**os.environ, **IDENTITY}
    runner.run(["git", "checkout", "--quiet", "-b", "castoff"], name="git-checkout", cwd=folder)
    runner.run(["git", "add", "--all", "--force", "."], name="git-add", cwd=folder)
    runner.run(
        ["git", "-c", "gc.auto=0", "commit", "--quiet", "--no-verify", "--message", message],
        name="git-commit",
        cwd=folder,
        env=environment,
    )
