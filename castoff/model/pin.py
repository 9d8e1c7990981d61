"""The pin: which upstream releases a build starts from, by hash."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from castoff.core.errors import PinError
from castoff.core.tables import Table

PROJECTS = ("torch", "torch_xla")
"""The projects that castoff patches, in the order in which they are built."""


@dataclass(frozen=True)
class SourcePackage:
    """A distribution's source package that has the tree of a release.

    Attributes:
        name: The package's name.
        version: Its version.
        suite: The suite of the distribution that has it.
        sha256: The hash of the tarball with upstream's tree.
    """

    name: str
    version: str
    suite: str
    sha256: str


@dataclass(frozen=True)
class Upstream:
    """An upstream release.

    Attributes:
        project: "torch" or "torch_xla".
        version: Its version, as its wheel has it, without a local part.
        repository: Where its source lives.
        tag: Its git tag.
        commit: The commit of that tag, all 40 digits.
        source_package: Where its tree is too, for networks without the repository.
        platform: The oldest systems that its libraries run on, where those are others than the pin's.
        requires: What it needs besides what its wheels say they require, as pip takes it.
    """

    project: str
    version: str
    repository: str
    tag: str
    commit: str
    source_package: SourcePackage | None = None
    platform: str | None = None
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A way in which upstream built a release.

    Attributes:
        name: Its short name.
        title: What it is, for a person.
        index: The package index that has it, where that is not the default one.
    """

    name: str
    title: str
    index: str | None


@dataclass(frozen=True)
class PinnedWheel:
    """A wheel that a build may start from.

    Attributes:
        project: "torch" or "torch_xla".
        python: The CPython it is for, such as "3.11".
        variant: The name of its variant.
        sha256: The hash of the file, the only thing that it is recognised by.
    """

    project: str
    python: str
    variant: str
    sha256: str


@dataclass(frozen=True)
class Runtime:
    """What a device needs beside the wheels of this pin.

    Attributes:
        libtpu: The version of the TPU runtime.
        jax: The version of JAX of the same era.
        jaxlib: The version of its compiled half.
    """

    libtpu: str
    jax: str
    jaxlib: str


@dataclass(frozen=True)
class Tpu:
    """What a TPU host needs beside the wheels, and what compiles for TPUs without one.

    Attributes:
        libtpu: The version of libtpu.
        jaxlib: The version of jaxlib that drives its compiler.
        platform: The platform tag of libtpu's wheels.
        wheels: The hash of libtpu's wheel, by CPython version.
        compiler: The lock file of the environment that has the TPU compiler.
        compiler_pythons: The CPython versions that this environment can have, best first.
    """

    libtpu: str
    jaxlib: str
    platform: str
    wheels: dict[str, str]
    compiler: Path
    compiler_pythons: tuple[str, ...]


@dataclass(frozen=True)
class Pin:
    """A pair of upstream releases and what goes with it.

    Attributes:
        name: Its name, such as "2.9".
        platform: The platform tag of its wheels.
        cxx11_abi: The value of ``_GLIBCXX_USE_CXX11_ABI`` that they were compiled with.
        torch: The torch release.
        torch_xla: The torch_xla release.
        runtime: What a device needs beside them, where that can still be had.
        tpu: The same by hash, for TPUs; None where the pin has no such part.
        variants: The builds that upstream published, by name.
        wheels: Every wheel that a build may start from.
    """

    name: str
    platform: str
    cxx11_abi: int
    torch: Upstream
    torch_xla: Upstream
    runtime: Runtime | None
    tpu: Tpu | None
    variants: dict[str, Variant]
    wheels: tuple[PinnedWheel, ...]

    @property
    def pythons(self) -> tuple[str, ...]:
        """The CPython versions that every project has a wheel for, oldest first."""
        each = [{wheel.python for wheel in self.wheels if wheel.project == project} for project in PROJECTS]
        return tuple(sorted(set.intersection(*each), key=lambda version: tuple(map(int, version.split(".")))))

    def upstream(self, project: str) -> Upstream:
        """Return the release of a project."""
        return self.torch if project == "torch" else self.torch_xla

    def for_tpu(self) -> Tpu:
        """Return what a TPU needs.

        Raises:
            PinError: The pin says nothing of TPUs.
        """
        if self.tpu is None:
            raise PinError(
                f"pin {self.name} says nothing of TPUs",
                expected="[tpu] in its file, with libtpu and its compiler by hash",
                found="no such table",
                next_step="Choose another pin with --pin, or add the table.",
            )
        return self.tpu

    def libtpu_sha256(self, python: str) -> str:
        """Return the hash of libtpu's wheel for a CPython.

        Raises:
            PinError: There is none.
        """
        tpu = self.for_tpu()
        if python not in tpu.wheels:
            raise PinError(
                f"libtpu {tpu.libtpu} has no wheel for CPython {python}",
                expected=f"one of the CPythons that it is published for: {', '.join(tpu.wheels)}",
                found=f"CPython {python}",
                next_step="Choose one of them with --python.",
            )
        return tpu.wheels[python]

    def platform_of(self, project: str) -> str:
        """Return the platform tag of the oldest systems that a project's wheel runs on."""
        return self.upstream(project).platform or self.platform

    def accepted(self, project: str, python: str, *, only: str | None = None) -> tuple[PinnedWheel, ...]:
        """Return the wheels of a project that a build for one CPython may start from.

        Args:
            project: "torch" or "torch_xla".
            python: The CPython version, such as "3.11".
            only: The hash of the one wheel to accept, if any of them will not do.

        Raises:
            PinError: Upstream has none for that CPython, or none of that hash.
        """
        wheels = tuple(wheel for wheel in self.wheels if (wheel.project, wheel.python) == (project, python))
        if not wheels:
            raise PinError(
                f"pin {self.name} has no {project} wheel for CPython {python}",
                expected=f"one of CPython {', '.join(self.pythons)}",
                found=f"CPython {python}",
                next_step=f"Choose another with --python, for instance --python {self.pythons[-1]}.",
            )
        if only is not None and only not in {wheel.sha256 for wheel in wheels}:
            raise PinError(
                f"pin {self.name} does not know this {project} wheel",
                expected=f"one of {', '.join(wheel.sha256 for wheel in wheels)}",
                found=only,
                next_step="Build again with the pins of this tree.",
            )
        return tuple(wheel for wheel in wheels if only in (None, wheel.sha256))


def load_pin(folder: Path, name: str) -> Pin:
    """Read and check a pins file.

    Args:
        folder: The folder ``pins``.
        name: The pin's name, such as "2.9".

    Raises:
        PinError: There is no such pin, or its file is malformed.
    """
    path = folder / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml"))) or "none"
        raise PinError(
            f"there is no pin {name}",
            expected=f"one of the pins in {folder}: {known}",
            found=name,
            next_step="Choose one of them with --pin.",
        )
    top = Table.load(path, PinError)
    if top.text("name") != name:
        top.fail("name", f"the file's name, {name!r}", repr(top.text("name")))
    variants = {key: _variant(top.table("variants"), key) for key in top.table("variants").names()}
    runtime = _runtime(top.table("runtime")) if top.has("runtime") else None
    pin = Pin(
        name=name,
        platform=_platform(top),
        cxx11_abi=top.number("cxx11_abi", (0, 1)),
        torch=_upstream(top, "torch"),
        torch_xla=_upstream(top, "torch_xla"),
        runtime=runtime,
        tpu=_tpu(top.table("tpu"), folder, runtime) if runtime and top.has("tpu") else None,
        variants=variants,
        wheels=tuple(_wheel(table, variants) for table in top.tables("wheels")),
    )
    top.done()
    hashes = [wheel.sha256 for wheel in pin.wheels]
    if len(set(hashes)) != len(hashes):
        twice = next(value for value in hashes if hashes.count(value) > 1)
        top.fail("wheels", "each hash once", f"{twice} twice")
    if not pin.pythons:
        top.fail("wheels", "wheels of torch and of torch_xla for the same CPython", "no CPython that has both")
    return pin


_VERSION = r"\d+(\.\d+)+"
_PLATFORM = r"manylinux_2_\d+_x86_64"
_PLATFORM_EXAMPLE = "a tag like 'manylinux_2_28_x86_64'"
_PYTHON = r"3\.\d+"
_PYTHON_EXAMPLE = "a CPython version like '3.11'"
_SHA256 = r"[0-9a-f]{64}"
_SHA256_EXAMPLE = "a sha256 of 64 lower-case hex digits"


def _platform(table: Table) -> str:
    return table.text("platform", _PLATFORM, example=_PLATFORM_EXAMPLE)


def _upstream(top: Table, project: str) -> Upstream:
    table = top.table(project)
    release = Upstream(
        project=project,
        version=table.text("version", _VERSION, example="a version like '2.9.0'"),
        repository=table.text("repository", r"https://\S+", example="an https address"),
        tag=table.text("tag", r"v\S+", example="a tag like 'v2.9.0'"),
        commit=table.text("commit", r"[0-9a-f]{40}", example="a full git commit of 40 lower-case hex digits"),
        source_package=_source_package(table.table("source_package")) if table.has("source_package") else None,
        platform=_platform(table) if table.has("platform") else None,
        requires=table.texts("requires", r"[\w.-]+([<>=]=?[\w.]+)?", example="requirements like 'numpy<2'"),
    )
    table.done()
    return release


def _source_package(table: Table) -> SourcePackage:
    package = SourcePackage(
        name=table.text("name", r"[a-z0-9][a-z0-9.+-]*", example="the name of a source package"),
        version=table.text("version", r"[0-9][A-Za-z0-9.+~:-]*", example="a version like '2.6.0+dfsg-7'"),
        suite=table.text("suite", r"[a-z][a-z0-9-]*", example="a suite like 'trixie'"),
        sha256=table.text("sha256", r"[0-9a-f]{64}", example="a sha256 of 64 lower-case hex digits"),
    )
    table.done()
    return package


def _runtime(table: Table) -> Runtime:
    example = "an exact version"
    runtime = Runtime(
        libtpu=table.text("libtpu", _VERSION, example=example),
        jax=table.text("jax", _VERSION, example=example),
        jaxlib=table.text("jaxlib", _VERSION, example=example),
    )
    table.done()
    return runtime


def _tpu(table: Table, folder: Path, runtime: Runtime) -> Tpu:
    wheels: dict[str, str] = {}
    for wheel in table.tables("libtpu"):
        python = wheel.text("python", _PYTHON, example=_PYTHON_EXAMPLE)
        if python in wheels:
            wheel.fail("python", "each CPython once", f"{python} twice")
        wheels[python] = wheel.text("sha256", _SHA256, example=_SHA256_EXAMPLE)
        wheel.done()
    tpu = Tpu(
        libtpu=runtime.libtpu,
        jaxlib=runtime.jaxlib,
        platform=_platform(table),
        wheels=wheels,
        compiler=folder / table.text("compiler", r"[\w.\-]+\.lock", example="a lock file in the same folder"),
        compiler_pythons=table.texts("compiler_pythons", _PYTHON, example=_PYTHON_EXAMPLE),
    )
    if not tpu.compiler.is_file():
        table.fail("compiler", "a lock file in the same folder", "no such file")
    if not tpu.compiler_pythons:
        table.fail("compiler_pythons", "at least one CPython version", "none")
    table.done()
    return tpu


def _variant(variants: Table, name: str) -> Variant:
    table = variants.table(name)
    index = table.text("index", r"https://\S+", example="an https address") if table.has("index") else None
    variant = Variant(name=name, title=table.text("title"), index=index)
    table.done()
    return variant


def _wheel(table: Table, variants: dict[str, Variant]) -> PinnedWheel:
    wheel = PinnedWheel(
        project=table.text("project", "|".join(PROJECTS), example=" or ".join(PROJECTS)),
        python=table.text("python", _PYTHON, example=_PYTHON_EXAMPLE),
        variant=table.text(
            "variant", "|".join(variants) or "(?!)", example=f"one of {', '.join(variants)} of [variants]"
        ),
        sha256=table.text("sha256", _SHA256, example=_SHA256_EXAMPLE),
    )
    table.done()
    return wheel
