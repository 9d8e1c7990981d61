"""Turns a topic into what upstream would merge: `castoff stage`.

A branch with a commit for the topic, and one for each topic below it that it requires, on upstream's
tree. A topic's upstream/ folder has the recipe: stage.toml (the title, the tests, what is written differently
there), message.md (the body), measured.md, and tree/ (its tests, and files that only upstream needs).
castoff's names, its kill switch and its choices between releases of torch are removed; the
result has upstream's format, is linted by upstream's own configuration, compiles against the headers of
that release, and its tests have passed, or nothing is staged.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from castoff.builder.apply import apply_to_checkout, try_topics
from castoff.builder.environments import Environments
from castoff.core.console import Console
from castoff.core.context import Context, command_context
from castoff.core.errors import ApplyError, StageError, TopicError
from castoff.core.places import ROOT
from castoff.core.runner import environment_for_tests
from castoff.core.toml_model import Model, fail, matching, not_empty, read_toml, unique
from castoff.model.pin import load_pin, pair_names
from castoff.model.topics import CPP_SUFFIXES, Topic, load_topics
from castoff.upstream.checkout import topic_commits
from castoff.upstream.newer import best_pins, fetch_ref, version_of_tree
from castoff.upstream.repository import Repository
from castoff.upstream.style import conform

_OURS = re.compile("castoff", re.IGNORECASE)
_RAN = re.compile(r"Ran (\d+) tests? in [\d.]+s")
_TEST_SECONDS = "3600"
_MARKDOWN_LINK = "- {}\n"


Pattern = Annotated[str, matching(r"\S+", "a pattern of files like 'torch/_grad_dtype.py'")]
TestFile = Annotated[str, matching(r"test/\S+\.py", "a path like 'test/autograd/test_x.py'")]


class Replacement(Model):
    """[[replace]]: what is written differently upstream."""

    files: Annotated[tuple[Pattern, ...], unique] = ()
    """The files, as patterns; a file of upstream's that the topic does not touch, by its path. Left out: those of the
    replacement before."""
    old: Annotated[str, not_empty]
    """The text as the topic has it; it must be there."""
    new: str = ""
    """The text as upstream gets it; left out: none."""


class RecipeFile(Model):
    """upstream/stage.toml: how a topic becomes a pull request."""

    title: Annotated[str, matching(r"\[[\w./ -]+\] \S.*", "a title like '[autograd] Add …'")]
    """The commit's title, with upstream's tag."""
    tests: Annotated[tuple[TestFile, ...], unique]
    """The test files, by their paths upstream."""
    drop: Annotated[tuple[Pattern, ...], unique] = ()
    """The topic's files that upstream does not get."""
    replace: tuple[Replacement, ...] = ()
    """What is written differently there."""
    not_compiled: str = ""
    """Why its C++ cannot be compiled here, if so; the texts begin with it."""


@dataclass(frozen=True)
class Recipe:
    """How a topic becomes a pull request."""

    topic: Topic
    title: str  # the commit's title, with upstream's tag
    body: str  # what it does and why
    measured: str  # what was measured
    tests: tuple[str, ...]  # the test files, by their paths upstream
    drop: tuple[str, ...]  # the topic's files that upstream does not get
    replace: tuple[Replacement, ...]  # what is written differently there
    not_compiled: str  # why its C++ cannot be compiled here, if so

    @property
    def caveat(self) -> str:
        """The paragraph that says that its C++ was not compiled, if so."""
        return f"Not compiled here: {self.not_compiled}.\n\n" if self.not_compiled else ""

    @property
    def message(self) -> str:
        """The commit's message."""
        links = "".join(f"{link}\n" for link in self.topic.upstream)
        return f"{self.title}\n\n{self.caveat}{self.body.strip()}\n\n{links}"


@dataclass(frozen=True)
class TestRun:
    """A run of a staged test file."""

    command: str  # the command, as typed in a checkout
    output: str  # the end of its output
    passed: bool  # whether it ran tests, and all passed


@dataclass(frozen=True)
class Staged:
    """A topic that is staged."""

    recipe: Recipe
    commit: str
    tests: tuple[TestRun, ...]  # the runs of its tests
    without: tuple[TestRun, ...]  # the runs without the change, if that was tried
    notes: tuple[str, ...]  # what was checked, and what was not


def load_recipe(topic: Topic) -> Recipe:
    """Read how a topic becomes a pull request.

    Raises:
        TopicError: It has no recipe, or a wrong one.
    """
    folder = topic.folder / "upstream"
    missing = [name for name in ("stage.toml", "message.md", "measured.md") if not (folder / name).is_file()]
    if missing:
        raise TopicError(
            f"topic {topic.key} has no recipe for upstream",
            expected=f"stage.toml, message.md and measured.md in patches/{topic.key}/upstream",
            found=f"no {', no '.join(missing)}",
            next_step="Write them; docs/upstreaming.md describes them, patches/torch/grad-dtype has an example.",
        )
    path = folder / "stage.toml"
    read = read_toml(path, RecipeFile, TopicError)
    absent = [name for name in read.tests if not (folder / "tree" / name).is_file()]
    if absent or not read.tests:
        expected = f"test files in patches/{topic.key}/upstream/tree"
        fail(path, TopicError, [("tests", expected, f"no {', no '.join(absent)}" if absent else "none")])
    replaced: list[Replacement] = []
    for one in read.replace:
        replaced.append(one if one.files or not replaced else one.model_copy(update={"files": replaced[-1].files}))
    if any(not one.files for one in replaced):
        fail(path, TopicError, [("replace.files", "the files of the first replacement", "none")])
    body, measured = ((folder / name).read_text(encoding="utf-8") for name in ("message.md", "measured.md"))
    return Recipe(topic, read.title, body, measured, read.tests, read.drop, tuple(replaced), read.not_compiled)


def stack_of(topic: Topic, topics: Sequence[Topic]) -> tuple[Topic, ...]:
    """Return the topics that go upstream for one of them: those that it requires, in order, and itself last.

    Topics that never go upstream, and those of the other project, are left out.
    """
    by_key = {one.key: one for one in topics}
    needed: set[str] = set()
    open_ones = [topic.key]
    while open_ones:
        key = open_ones.pop()
        needed.add(key)
        open_ones += [required for required in by_key[key].requires if required not in needed]
    return tuple(one for one in topics if one.key in needed and one.project == topic.project and one.kind != "never")


def resolve_releases(text: str, version: tuple[int, int]) -> str:
    """Return C++ in which the choices between releases of torch are made.

    Args:
        text: The source, with ``#if CASTOFF_TORCH_AT_LEAST(major, minor)`` in it.
        version: The release that it is for.

    Raises:
        ValueError: A choice has an unknown form.
    """
    kept: list[str] = []
    # For each open #if: None for one of another macro, else whether the lines under it stay.
    stack: list[bool | None] = []
    for line in text.splitlines(keepends=True):
        words = line.strip()
        choice = re.fullmatch(r"#\s*if\s+(!?)\s*CASTOFF_TORCH_AT_LEAST\((\d+),\s*(\d+)\)", words)
        if choice is not None:
            stack.append((version >= (int(choice[2]), int(choice[3]))) != bool(choice[1]))
            continue
        if words.startswith("#if"):
            if "CASTOFF_TORCH_AT_LEAST" in words:
                raise ValueError(words)
            stack.append(None)
        elif words.startswith("#else") and stack and stack[-1] is not None:
            stack[-1] = not stack[-1]
            continue
        elif words.startswith("#elif") and stack and stack[-1] is not None:
            raise ValueError(words)
        elif words.startswith("#endif") and stack and stack.pop() is not None:
            continue
        if False not in stack:
            kept.append(line)
    joined = re.sub(r"#include <torch/csrc/castoff/torch_version\.h>\n", "", "".join(kept))
    return re.sub(r"\n{3,}", "\n\n", joined)


def written_otherwise(recipe: Recipe, texts: Mapping[str, str], version: tuple[int, int]) -> dict[str, str]:
    """Return a topic's texts as upstream gets them, by path.

    Args:
        recipe: How the topic becomes a pull request.
        texts: The topic's files, and those of upstream's that it changes, by path.
        version: The release of torch that they are for.

    Raises:
        TopicError: The recipe replaces a text that no file has, or a choice of C++ has an unknown form.
    """
    new = dict(texts)
    for path, text in texts.items():
        if path.endswith(CPP_SUFFIXES):
            try:
                new[path] = resolve_releases(text, version)
            except ValueError as error:
                choice = "#if CASTOFF_TORCH_AT_LEAST(a, b) and nothing else"
                raise _recipe_error(recipe, choice, f"{path}: {error}") from None
    for one in recipe.replace:
        matching = [path for path in new if any(fnmatch.fnmatchcase(path, pattern) for pattern in one.files)]
        having = [path for path in matching if one.old in new[path]]
        if not having:
            found = ", ".join(matching) or f"no file that matches {', '.join(one.files)}"
            raise _recipe_error(recipe, f"this text, to replace it:\n{one.old}", f"not in {found}")
        for path in having:
            new[path] = new[path].replace(one.old, one.new)
    return new


class _Staging:
    """Upstream's tree with topics applied, one after the other."""

    def __init__(self, tree: Path, version: str, context: Context) -> None:
        self.tree = tree
        self._version = version
        self.context = context
        self._repository = Repository(tree, context.runner)
        self.headers: list[str] = []  # the C++ headers that the topics add or change

    def lay(self, recipe: Recipe) -> tuple[list[str], list[str]]:
        """Apply a topic to the tree, as upstream gets it; return the new files and the changed ones."""
        topic = recipe.topic
        pin = self._pin(topic)
        paths = set(apply_to_checkout(topic, pin, self.tree, self.context.runner))
        extra = topic.folder / "upstream" / "tree"
        for source in sorted(path for path in extra.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            path = source.relative_to(extra).as_posix()
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, self.tree / path)
            paths.add(path)
        for path in recipe.drop:
            if path not in paths:
                raise _recipe_error(recipe, f"`drop` names files of the topic, not {path}", "no such file")
            (self.tree / path).unlink()
            paths.remove(path)
        # Upstream's own files that only upstream's change touches.
        paths |= {path for one in recipe.replace for path in one.files if (self.tree / path).is_file()}
        self._write_otherwise(recipe, sorted(paths))
        self.headers += sorted(path for path in paths if path.endswith(".h"))
        tracked = set(self._repository.git("ls-files", "-z", "--", *sorted(paths)).split("\0"))
        return sorted(paths - tracked), sorted(paths & tracked)

    def _pin(self, topic: Topic) -> str:
        pins = best_pins(topic, self._version, whole=True)
        with self.context.cache.lock("stage-fit"), self.context.cache.scratch("stage-fit") as scratch:
            (fit,) = try_topics([topic], {topic.key: pins}, self.tree, scratch, self.context.runner)
        if fit.failed:
            raise ApplyError(
                f"{topic.key} does not apply to this tree",
                expected=f"its files and hunks (of pin {fit.pin}) apply without fuzz",
                found="\n".join(f"{one.path}: {one.outcome.value}: {one.detail}" for one in fit.failed),
                next_step="Adapt the topic to that tree first.",
            )
        return fit.pin or pins[0]

    def _write_otherwise(self, recipe: Recipe, paths: Sequence[str]) -> None:
        major, minor = (int(part) for part in self._version.split(".")[:2])
        texts = {path: (self.tree / path).read_text(encoding="utf-8") for path in paths}
        for path, text in written_otherwise(recipe, texts, (major, minor)).items():
            (self.tree / path).write_text(text, encoding="utf-8")

    def commit(self, recipe: Recipe, paths: Sequence[str], author: Mapping[str, str]) -> str:
        """Commit the topic; return the commit.

        Raises:
            StageError: castoff's name is in the commit.
        """
        repository = self._repository
        repository.git("add", "--all", "--force", "--", *paths)
        added = [line for line in repository.git("diff", "--cached", "-U0").splitlines() if line.startswith("+")]
        ours = [
            line for line in [*added, *recipe.message.splitlines(), *recipe.measured.splitlines()] if _OURS.search(line)
        ]
        if ours:
            raise StageError(
                f"{recipe.topic.key} has castoff's name in it",
                expected="no name of castoff in the staged commit",
                found="\n".join(ours[:20]),
                next_step=f"Add a [[replace]] to patches/{recipe.topic.key}/upstream/stage.toml for each.",
            )
        repository.git("commit", "--quiet", "--no-verify", "--message", recipe.message, env=author)
        return repository.one("rev-parse", "HEAD")


def _recipe_error(recipe: Recipe, expected: str, found: str) -> TopicError:
    return TopicError(
        f"upstream/stage.toml of {recipe.topic.key} does not fit the topic",
        expected=expected,
        found=found,
        next_step=f"Correct patches/{recipe.topic.key}/upstream/stage.toml: the topic has changed.",
    )


def run_test(path: str, tree: Path, python: Path, context: Context) -> TestRun:
    """Run one of the staged test files as upstream does.

    Args:
        python: The interpreter of an environment with torch.
    """
    device = {"PJRT_DEVICE": "CPU"} if (tree / "torch_xla").is_dir() else {}
    said = "".join(f"{name}={value} " for name, value in device.items())
    relative = path.removeprefix("test/")
    done = context.runner.run(
        ["timeout", _TEST_SECONDS, python, relative],
        name="stage-test",
        cwd=tree / "test",
        env=environment_for_tests() | device,
        check=False,
    )
    ran = _RAN.search(done.output)
    end = done.output[ran.start() :].strip() if ran is not None else done.tail
    passed = done.returncode == 0 and ran is not None and int(ran[1]) > 0
    return TestRun(f"{said}python {path}", end, passed)


def stage(
    name: str,
    *,
    onto: str,
    out: Path,
    branch: str | None,
    python: Path | None,
    stock: Path | None,
    compile_cpp: bool,
    push: str | None,
    console: Console,
    root: Path = ROOT,
) -> None:
    """Turn a topic into what upstream would merge, and print where it is.

    Args:
        onto: The folder of a checkout, whose HEAD it goes onto (below castoff's own commits, if it has
            them), or a ref of upstream's repository.
        out: The folder for the patches and the pull request's text.
        branch: The branch's name; the topic's, if not given.
        python: The interpreter of an environment with the topic, to run the staged tests with; one with
            the wheels in dist/ is made if not given.
        stock: The interpreter of one without the topic, where the tests must fail; not tried if not given.
        compile_cpp: Whether to compile the staged C++ against the headers of the torch in ``python``.
        push: The remote to push the branch to, if at all.

    Raises:
        CastoffError: It cannot be staged. No branch was made and nothing was pushed.
    """
    topics = load_topics(root / "patches")
    found = [topic for topic in topics if name in (topic.key, topic.name) and topic.kind != "never"]
    if len(found) != 1:
        raise TopicError(
            f"{name} cannot be staged",
            expected="one of " + ", ".join(topic.key for topic in topics if topic.kind != "never"),
            found=f"{len(found)} topics of that name that may go upstream",
            next_step="Give one of them, with its project.",
        )
    recipes = [load_recipe(topic) for topic in stack_of(found[0], topics)]
    branch = branch or found[0].name
    out = out.absolute()
    with command_context(console) as context, context.cache.lock("stage"), context.cache.scratch("stage") as scratch:
        checkout = _checkout(onto, found[0], out, root, context)
        repository = Repository(checkout, context.runner)
        author = _author(repository)
        if repository.succeeds("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}"):
            raise StageError(
                f"{checkout} already has a branch {branch}",
                expected="no branch of that name, so that nothing is lost",
                found=repository.one("log", "-1", "--format=%h %s", branch),
                next_step=f"Give another name with --branch, or remove it: git -C {checkout} branch -D {branch}",
            )
        base = _base(repository)
        version = _version(checkout, base, repository)
        # A copy that shares the objects: the checkout gets its branch at the end, or is unchanged.
        tree = scratch / "tree"
        repository.git("clone", "--quiet", "--shared", "--no-checkout", checkout, tree)
        copy = Repository(tree, context.runner)
        copy.git("checkout", "--quiet", "--detach", base)
        chosen = _environment(python, version, found[0].project, root, context)
        staging = _Staging(tree, version, context)
        proof = stock.absolute() if stock is not None else None
        staged = [
            _stage_one(one, staging, python=chosen, stock=proof, compile_cpp=compile_cpp, author=author)
            for one in recipes
        ]
        files = _write(out, staged, base, version, copy)
        repository.git("fetch", "--quiet", tree, f"HEAD:refs/heads/{branch}")
        if push is not None:
            with console.step("push", f"{branch} to {push}"):
                repository.git("push", push, f"{branch}:{branch}")
    _report(staged, branch, checkout, files, push=push, console=console)


def _stage_one(
    recipe: Recipe,
    staging: _Staging,
    *,
    python: Path,
    stock: Path | None,
    compile_cpp: bool,
    author: Mapping[str, str],
) -> Staged:
    tree, context = staging.tree, staging.context
    console = context.console
    with console.step("lay", f"{recipe.topic.key} on upstream's tree"):
        new, changed = staging.lay(recipe)
        console.note(f"{len(new)} new files, {len(changed)} changed ones")
    with console.step("style", "upstream's own format and lint"):
        notes = list(conform(tree, new, changed, context))
    if recipe.not_compiled:
        notes.append(f"The C++ was not compiled: {recipe.not_compiled}.")
    elif compile_cpp:
        with console.step("compile", "the C++ against that release's headers"):
            notes.append(_compile(tree, [*new, *changed], staging.headers, python, context))
    else:
        notes.append("The C++ was not compiled (--no-compile).")
    with console.step("test", ", ".join(recipe.tests)):
        tests = tuple(run_test(path, tree, python, context) for path in recipe.tests)
        _check_passed(recipe, tests, python)
        without = tuple(run_test(path, tree, stock, context) for path in recipe.tests) if stock is not None else ()
        if any(run.passed for run in without):
            raise StageError(
                f"the tests of {recipe.topic.key} prove nothing",
                expected=f"they fail in {stock}, without the topic",
                found="\n".join(f"{run.command}: {run.output}" for run in without if run.passed),
                next_step=f"Correct them: patches/{recipe.topic.key}/upstream/tree/",
            )
    return Staged(recipe, staging.commit(recipe, [*new, *changed], author), tests, without, tuple(notes))


def _check_passed(recipe: Recipe, tests: Sequence[TestRun], python: Path) -> None:
    failed = [run for run in tests if not run.passed]
    if failed:
        raise StageError(
            f"the staged tests of {recipe.topic.key} do not pass; nothing is staged",
            expected=f"each of them passes in {python}",
            found="\n".join(f"{run.command}:\n{run.output}" for run in failed),
            next_step=f"Correct patches/{recipe.topic.key}, or its tests under upstream/tree/.",
        )


def _checkout(onto: str, topic: Topic, out: Path, root: Path, context: Context) -> Path:
    """Return the checkout to stage onto; a ref is fetched into the output folder."""
    if Path(onto).is_dir():
        folder = Path(onto).absolute()
        if not (folder / ".git").exists() or not (folder / topic.project / "__init__.py").is_file():
            raise StageError(
                f"{folder} is not a checkout of {topic.project}",
                expected=f"a git repository with {topic.project}/__init__.py in it",
                found="something else",
                next_step="`castoff checkout DIR` makes one.",
            )
        return folder
    folder = out / topic.project
    if folder.exists():
        raise StageError(
            f"{folder} exists already",
            expected="no such folder, to fetch the ref into",
            found="one",
            next_step=f"Remove it, choose another --out, or stage onto it: --onto {folder}",
        )
    out.mkdir(parents=True, exist_ok=True)
    with context.console.step("fetch", onto):
        newest = load_pin(root / "pins", pair_names(root / "pins")[0])
        fetch_ref(newest.upstream(topic.project).repository, onto, folder, context)
    return folder


def _base(repository: Repository) -> str:
    """Return the commit to stage onto: HEAD, or the one below castoff's own."""
    ours = topic_commits(repository)
    return repository.one("rev-parse", f"{ours[0].commit}^" if ours else "HEAD")


def _version(checkout: Path, base: str, repository: Repository) -> str:
    """Return the release of a commit of a checkout.

    Raises:
        StageError: The tree does not state it.
    """

    def text_of(name: str) -> str:
        path = f"{base}:{name}"
        return repository.git("show", path) if repository.succeeds("cat-file", "-e", path) else ""

    found = version_of_tree(text_of)
    if found is None:
        raise StageError(
            f"{checkout} does not state its release",
            expected="a version.txt that begins with a version (torch), or TORCH_XLA_VERSION in setup.py (torch_xla)",
            found="neither",
            next_step="Give the folder of a checkout of the topic's project.",
        )
    return found


def _author(repository: Repository) -> dict[str, str]:
    """Return the author of the commits, from git's settings."""
    said = {
        name: os.environ.get(f"GIT_AUTHOR_{name.upper()}") or _setting(repository, f"user.{name}")
        for name in ("name", "email")
    }
    if not all(said.values()):
        raise StageError(
            "git has no user name and address",
            expected="user.name and user.email, whose pull request it will be",
            found="none",
            next_step=f"In {repository.folder}: git config user.name …; git config user.email …",
        )
    return {f"GIT_{who}_{name.upper()}": value for who in ("AUTHOR", "COMMITTER") for name, value in said.items()}


def _setting(repository: Repository, name: str) -> str:
    return repository.one("config", "--default", "", "--get", name)


def _environment(python: Path | None, version: str, project: str, root: Path, context: Context) -> Path:
    """Return the interpreter to run the staged tests with: the user's, or one with the wheels in dist/.

    Raises:
        StageError: It has another release of the project than the tree.
    """
    minor = ".".join(version.split(".")[:2])
    if python is None:
        dist = root / "dist" / f"{minor}-cpu"
        context.console.note(f"the tests run in an environment with the wheels in {dist}")
        return Environments(context, root=root).patched(dist)
    ask = f"import importlib.metadata; print(importlib.metadata.version({project!r}))"
    found = context.runner.run([python, "-c", ask], name="ask-release", check=False).output.strip()
    if not found.startswith(f"{minor}."):
        raise StageError(
            f"{python} has another {project} than the tree",
            expected=f"{project} {minor}, as the tree says ({version})",
            found=found.splitlines()[-1] if found else "no such package",
            next_step=f"Name an environment of that release: .venv/bin/castoff env patched --pin {minor}",
        )
    return python.absolute()


_ASK_TORCH = "import os, torch; print(os.path.dirname(torch.__file__)); print(int(torch._C._GLIBCXX_USE_CXX11_ABI))"


def _compile(tree: Path, paths: Sequence[str], headers: Sequence[str], python: Path, context: Context) -> str:
    """Check the syntax and types of the staged C++; return a note about it.

    Raises:
        StageError: It does not compile.
    """
    sources = [path for path in paths if path.endswith(".cpp")]
    if not sources:
        return "The change has no C++."
    package, abi = context.runner.run([python, "-c", _ASK_TORCH], name="ask-torch").output.split()[-2:]
    with context.cache.lock("stage-headers"), context.cache.scratch("stage-headers") as scratch:
        # Only staged headers come from the tree: the others are in the wheel, with the generated ones.
        for path in headers:
            (scratch / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tree / path, scratch / path)
        include = Path(package) / "include"
        for path in sources:
            command: list[str | Path] = ["g++", "-std=c++17", "-fsyntax-only", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
            command += ["-DAT_PER_OPERATOR_HEADERS", f"-I{scratch}", "-isystem", include]
            command += ["-isystem", include / "torch" / "csrc" / "api" / "include", tree / path]
            done = context.runner.run(command, name="stage-compile", check=False)
            if done.returncode != 0:
                raise StageError(
                    f"{path} does not compile, as staged",
                    expected=f"g++ compiles it against the headers in {include}",
                    found=done.tail,
                    next_step=f"Read the whole log: {done.log}",
                )
    return f"{len(sources)} C++ files compile against the headers of the release's wheel (g++ -fsyntax-only)."


def _write(out: Path, staged: Sequence[Staged], base: str, version: str, repository: Repository) -> list[Path]:
    """Write the patches and the texts into the output folder."""
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("*.patch"), *out.glob("pull-request*.md")]:
        old.unlink()
    repository.git("format-patch", "--quiet", "--output-directory", out, f"{base}..{staged[-1].commit}")
    for number, one in enumerate(staged, start=1):
        name = "pull-request.md" if len(staged) == 1 else f"pull-request-{number}-{one.recipe.topic.name}.md"
        text = pull_request(one, number, len(staged), version)
        if _OURS.search(text):
            raise StageError(
                f"the pull request of {one.recipe.topic.key} has castoff's name in it",
                expected="no name of castoff in it",
                found="\n".join(line for line in text.splitlines() if _OURS.search(line)),
                next_step=f"Correct patches/{one.recipe.topic.key}/upstream/.",
            )
        (out / name).write_text(text, encoding="utf-8")
    return sorted([*out.glob("*.patch"), *out.glob("pull-request*.md")])


def pull_request(one: Staged, number: int, count: int, version: str) -> str:
    """Return the text of a pull request.

    Args:
        number: Its place in the stack, from 1.
        version: The release that it is staged onto.
    """
    recipe = one.recipe
    stack = f"This is {number} of {count} in a stack.\n\n" if count > 1 else ""
    plan = "".join(f"```\n$ {run.command}\n{run.output}\n```\n\n" for run in one.tests)
    without = "".join(f"```\n$ {run.command}\n{run.output}\n```\n\n" for run in one.without)
    if without:
        without = f"The same without the change:\n\n{without}"
    notes = "".join(_MARKDOWN_LINK.format(note) for note in one.notes)
    links = "".join(_MARKDOWN_LINK.format(link) for link in recipe.topic.upstream)
    how = "that has this behaviour by other code" if recipe.not_compiled else "with this change applied"
    where = f"On the wheel of {recipe.topic.project} {version} {how}, not on a build of the branch:"
    return (
        f"{recipe.caveat}# {recipe.title}\n\n{stack}{recipe.body.strip()}\n\n"
        f"## What was measured\n\n{recipe.measured.strip()}\n\n"
        f"## Test plan\n\n{where}\n\n{plan}{without}{notes}\n## Links\n\n{links}"
    )


def _report(
    staged: Sequence[Staged], branch: str, checkout: Path, files: Sequence[Path], *, push: str | None, console: Console
) -> None:
    rows = [f"{checkout}: branch {branch}, {len(staged)} commit{'s' if len(staged) > 1 else ''}"]
    for one in staged:
        rows.append(f"  {one.commit[:12]} {one.recipe.title}")
        rows += [f"    {run.command}: {run.output.splitlines()[0]}" for run in one.tests]
        rows += [f"    {note}" for note in one.notes]
    rows += [f"  {path}" for path in files]
    rows.append("  (git am --keep-non-patch keeps the tag in the title)")
    rows.append(f"pushed to {push}" if push is not None else "Nothing was pushed.")
    data: dict[str, object] = {
        "branch": branch,
        "checkout": str(checkout),
        "commits": [{"topic": one.recipe.topic.key, "commit": one.commit, "notes": list(one.notes)} for one in staged],
        "files": [str(path) for path in files],
        "pushed": push,
    }
    console.result("\n".join(rows), data)
