"""The plan of a build from source: every step as data, before anything is done.

The steps are upstream's own: two checkouts, torch_xla's inside torch's, submodules, an environment,
`setup.py bdist_wheel` (ninja) for torch, and once more (Bazel) for torch_xla. What differs from them is
that the checkouts have the topics, and that the C++ of torch_xla's topics is compiled against torch alone
and added to the finished wheel, as in an overlay build; so is that of torch's on pins without C++ hunks.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from castoff.core.errors import TopicError
from castoff.core.places import ROOT
from castoff.core.tools import tool
from castoff.model.pin import PROJECTS, Pin
from castoff.model.topics import Topic

CORE_HOURS = {"torch": 14, "torch_xla": 30}
"""A guess: some 4,500 objects of torch at 11 s, which was measured on a few; XLA and LLVM beside it."""


@dataclass(frozen=True)
class Command:
    """A program to run.

    Attributes:
        words: The command.
        folder: Where to run it.
        environment: What to set in its environment.
    """

    words: tuple[str, ...]
    folder: str
    environment: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """Return it as one would type it, a setting of its environment in each line."""
        settings = "".join(f'{name}="{value}" \\\n       ' for name, value in self.environment)
        return f"cd {shlex.quote(self.folder)} && {settings}{shlex.join(self.words)}"

    def settings(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return its whole environment.

        Args:
            base: What it adds to; what it sets may have $PATH for that one's.
        """
        own = {name: value.replace("$PATH", base.get("PATH", os.defpath)) for name, value in self.environment}
        return {**base, **own}


@dataclass(frozen=True)
class Step:
    """A step of the build.

    Attributes:
        name: Its short name.
        about: What it does, for a person.
        commands: What it runs, in order.
        files: Files that it writes first, as (path, text).
        depends: A hash of what else it is made from.
        core_hours: How much a machine has to compute for it, roughly.
    """

    name: str
    about: str
    commands: tuple[Command, ...]
    files: tuple[tuple[str, str], ...] = ()
    depends: str = ""
    core_hours: int = 0

    def key(self, before: str) -> str:
        """Return a hash of it and of the steps before it.

        Args:
            before: The key of the step before it.
        """
        return hashlib.sha256(json.dumps([before, asdict(self)]).encode()).hexdigest()


@dataclass(frozen=True)
class Job:
    """What is to be built from source.

    Attributes:
        pin: The pin.
        version: The version of castoff, such as "castoff.1".
        target: What the wheels are for.
        python: The CPython version.
        interpreter: Where that is.
        topics: The topics, in order.
        work: The folder of the build. It stays, so that the next build starts where this one ended.
        out: The folder of all output folders.
        jobs: How many compilers to run at once for torch, and for torch_xla, where each needs more memory.
        launcher: The compiler cache, ccache or sccache, or None.
        remote_cache: The address of a remote cache for Bazel, or None.
    """

    pin: Pin
    version: str
    target: str
    python: str
    interpreter: Path
    topics: tuple[Topic, ...]
    work: Path
    out: Path
    jobs: tuple[int, int]
    launcher: Path | None
    remote_cache: str | None

    @property
    def trees(self) -> dict[str, Path]:
        """Where the checkouts are: torch_xla looks for torch's in the folder above its own."""
        torch = self.work / "pytorch"
        return {"torch": torch, "torch_xla": torch / "xla"}

    @property
    def environment(self) -> Path:
        """The Python environment that the build runs in."""
        return self.work / "environment"

    def wheel_version(self, project: str) -> str:
        """Return the version of a project's wheel."""
        return f"{self.pin.upstream(project).version}+{self.version}"

    def wheel(self, project: str) -> Path:
        """Return where upstream's build leaves a project's wheel."""
        tag = "cp" + self.python.replace(".", "")
        name = f"{project}-{self.wheel_version(project)}-{tag}-{tag}-linux_x86_64.whl"
        return self.trees[project] / "dist" / name


def projects_to_overlay(topics: Sequence[Topic], pin: str) -> tuple[str, ...]:
    """Return the projects whose topics' C++ is added to the finished wheel, as in an overlay build.

    torch_xla's is in every build: it uses torch's headers alone. torch's is compiled into libtorch_cpu by the
    hunks that call it; on a pin that has none, it is an overlay here too.

    Raises:
        TopicError: Some topics of torch have such hunks and some do not: neither way would have each once.
    """
    with_cpp = [topic for topic in topics if topic.project == "torch" and topic.sources()]
    called = [topic for topic in with_cpp if _calls_its_cpp(topic, pin)]
    if not called:
        return PROJECTS
    lacking = [topic.key for topic in with_cpp if topic not in called]
    if lacking:
        raise TopicError(
            f"{len(lacking)} topic(s) have no C++ hunks for pin {pin}",
            expected=f"hunks/{pin}.patch adds the C++ files of each topic of torch to build_variables.bzl, or of none",
            found=f"so in {', '.join(topic.key for topic in called)}, not in {', '.join(lacking)}",
            next_step=f"Write them in a checkout (castoff checkout --pin {pin}, castoff refresh).",
        )
    return ("torch_xla",)


def _calls_its_cpp(topic: Topic, pin: str) -> bool:
    new = [path for path in topic.new_files() if path.endswith(".cpp")]
    hunks = topic.hunks(pin)
    text = hunks.read_text(encoding="utf-8") if hunks is not None else ""
    return all(f'+    "{path}",' in text for path in new)


def make_plan(job: Job) -> tuple[Step, ...]:
    """Return the steps of a build from source, in order."""
    torch, xla = job.trees["torch"], job.trees["torch_xla"]
    return (
        _checkout(job, "torch"),
        _submodules(torch),
        _checkout(job, "torch_xla"),
        _submodules(xla),
        _environment(job),
        Step(
            "torch",
            f"upstream's build of torch, by ninja, {job.jobs[0]} compilers at once",
            (_bdist_wheel(job, "torch", _torch_settings(job)), _install(job)),
            core_hours=CORE_HOURS["torch"],
        ),
        Step(
            "torch_xla",
            f"upstream's build of torch_xla, by Bazel, {job.jobs[1]} compilers at once",
            (_bdist_wheel(job, "torch_xla", _torch_xla_settings(job)),),
            files=((str(xla / ".bazelrc.user"), _bazelrc(job)),),
            core_hours=CORE_HOURS["torch_xla"],
        ),
        _assemble(job),
    )


def _castoff(*words: str | Path) -> Command:
    return Command((sys.executable, "-m", "castoff", *map(str, words)), str(ROOT))


def _checkout(job: Job, project: str) -> Step:
    own = [topic for topic in job.topics if topic.project == project]
    words = ("checkout", "--update", "--pin", job.pin.name, "--project", project, job.trees[project])
    upstream = job.pin.upstream(project)
    return Step(
        f"checkout-{project}",
        f"{project} {upstream.tag} ({upstream.commit[:12]}) with {len(own)} topics, a commit for each",
        (_castoff(*words),),
        depends=" ".join(topic.source_hash(job.pin.name) for topic in own),
    )


def _submodules(tree: Path) -> Step:
    git = "git", "submodule"
    commands = (
        Command((*git, "sync", "--recursive"), str(tree)),
        Command((*git, "update", "--init", "--recursive", "--depth=1", "--jobs=4"), str(tree)),
    )
    return Step(f"submodules-{tree.name}", "what upstream has in other repositories", commands)


def _environment(job: Job) -> Step:
    uv, source = str(tool("uv")), job.pin.for_source()
    constraints = job.work / "constraints.txt"
    listed = job.trees["torch"] / source.requirements
    # wheel and pip: setup.py calls them. MKL, linked statically, is what upstream's wheels have.
    more = ("wheel", "pip", "mkl-static", "mkl-include")
    install = (uv, "pip", "install", "--python", str(job.environment / "bin" / "python"))
    commands = (
        Command(
            (uv, "venv", "--no-project", "--allow-existing", "--python", str(job.interpreter), str(job.environment)),
            "/",
        ),
        Command((*install, "--constraint", str(constraints), "--requirement", str(listed), *more), "/"),
    )
    text = "".join(f"{line}\n" for line in source.constraints)
    return Step(
        "environment", f"CPython {job.python} and the packages of the build", commands, ((str(constraints), text),)
    )


def _bdist_wheel(job: Job, project: str, settings: tuple[tuple[str, str], ...]) -> Command:
    programs = job.environment / "bin"
    # PATH: cmake and ninja are those of the environment, as upstream's requirements have them.
    environment = (("PATH", f"{programs}:$PATH"), *settings)
    return Command((str(programs / "python"), "setup.py", "bdist_wheel"), str(job.trees[project]), environment)


def _torch_settings(job: Job) -> tuple[tuple[str, str], ...]:
    launchers = ("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER") if job.launcher is not None else ()
    return (
        ("PYTORCH_BUILD_VERSION", job.wheel_version("torch")),
        ("PYTORCH_BUILD_NUMBER", "1"),
        ("_GLIBCXX_USE_CXX11_ABI", str(job.pin.cxx11_abi)),
        ("USE_CUDA", "0"),
        ("USE_ROCM", "0"),
        ("USE_XPU", "0"),
        ("BUILD_TEST", "0"),
        # The environment's MKL, or none: without BLAS=MKL the build would go on with no BLAS at all.
        ("CMAKE_PREFIX_PATH", str(job.environment)),
        ("BLAS", "MKL"),
        ("USE_STATIC_MKL", "1"),
        ("MAX_JOBS", str(job.jobs[0])),
        *((name, str(job.launcher)) for name in launchers),
    )


def _torch_xla_settings(job: Job) -> tuple[tuple[str, str], ...]:
    return (
        ("TORCH_XLA_VERSION", job.wheel_version("torch_xla")),
        ("GIT_VERSIONED_XLA_BUILD", "0"),
        ("VERSIONED_XLA_BUILD", "0"),
        ("CXX_ABI", str(job.pin.cxx11_abi)),
        ("HERMETIC_PYTHON_VERSION", job.python),
        ("TPUVM_MODE", "1"),  # one wheel for CPU and TPU, like upstream's own
        ("BUNDLE_LIBTPU", "0"),
        ("BUILD_CPP_TESTS", "0"),
        ("BAZEL_JOBS", str(job.jobs[1])),
    )


def _install(job: Job) -> Command:
    python = str(job.environment / "bin" / "python")
    words = (str(tool("uv")), "pip", "install", "--python", python, "--reinstall-package", "torch")
    return Command((*words, str(job.wheel("torch"))), "/")


def _bazelrc(job: Job) -> str:
    lines = [f"build --disk_cache={job.work / 'bazel'}"]
    if job.remote_cache is not None:
        lines += [f"build --remote_cache={job.remote_cache}", "build --remote_upload_local_results"]
    return "".join(f"{line}\n" for line in lines)


def _assemble(job: Job) -> Step:
    words: list[str | Path] = ["assemble", "--pin", job.pin.name, "--target", job.target, "--python", job.interpreter]
    overlaid = " and ".join(projects_to_overlay(job.topics, job.pin.name))
    about = f"the C++ of {overlaid}'s topics, checks, and the output folder"
    hashes = " ".join(topic.content_hash(job.pin.name) for topic in job.topics)
    words += [*(str(job.wheel(project)) for project in PROJECTS), "--out", job.out]
    return Step("assemble", about, (_castoff(*words),), depends=hashes)
