"""The pin: which upstream releases a build starts from, by hash."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, Strict, model_validator

from castoff.core.errors import PinError
from castoff.core.toml_model import Model, fail, matching, not_empty, read_toml, unique, wrong

DEFAULT_PIN = "2.9"

PROJECTS = ("torch", "torch_xla")
"""The projects that castoff patches, in the order in which they are built."""

Text = Annotated[str, not_empty]
Version = Annotated[str, matching(r"\d+(\.\d+)+", "an exact version like '2.9.0'")]
Python = Annotated[str, matching(r"3\.\d+", "a CPython version like '3.11'")]
Platform = Annotated[str, matching(r"manylinux_2_\d+_x86_64", "a tag like 'manylinux_2_28_x86_64'")]
Sha256 = Annotated[str, matching(r"[0-9a-f]{64}", "a sha256 of 64 lower-case hex digits")]
Address = Annotated[str, matching(r"https://\S+", "an https address")]


class SourcePackage(Model):
    """[torch.source_package]: a distribution's source package that has the tree of a release."""

    name: Annotated[str, matching(r"[a-z0-9][a-z0-9.+-]*", "the name of a source package")]
    """The package's name."""
    version: Annotated[str, matching(r"[0-9][A-Za-z0-9.+~:-]*", "a version like '2.6.0+dfsg-7'")]
    """Its version."""
    suite: Annotated[str, matching(r"[a-z][a-z0-9-]*", "a suite like 'trixie'")]
    """The suite of the distribution that has it."""
    sha256: Sha256
    """The hash of the tarball with upstream's tree."""


class Upstream(Model):
    """[torch] and [torch_xla]: an upstream release."""

    version: Version
    """Its version, as its wheel has it, without a local part."""
    repository: Address
    """Where its source is."""
    tag: Annotated[str, matching(r"v\S+", "a tag like 'v2.9.0'")]
    """Its git tag."""
    commit: Annotated[str, matching(r"[0-9a-f]{40}", "a full git commit of 40 lower-case hex digits")]
    """The commit of that tag."""
    source_package: SourcePackage | None = None
    """Another place of its tree, for networks that do not reach the repository."""
    platform: Platform | None = None
    """The platform tag of the oldest systems that its libraries run on, if not the pin's."""
    requires: Annotated[
        tuple[Annotated[str, matching(r"[\w.-]+([<>=]=?[\w.]+)?", "a requirement like 'numpy<2'")], ...], unique
    ] = ()
    """What it needs besides the requirements in its wheel."""


class Variant(Model):
    """[variants.NAME]: a way in which upstream built a release."""

    title: Text
    """What it is, for a person."""
    index: Address | None = None
    """The package index that has it, if not the default one."""


@dataclass(frozen=True)
class PinnedWheel:
    """A wheel that a build may start from."""

    project: str  # "torch" or "torch_xla"
    python: str  # the CPython that it is for, such as "3.11"
    variant: str  # the name of its variant
    sha256: str  # the hash of the file; nothing else identifies it


class Runtime(Model):
    """[runtime]: what a device needs beside the wheels of this pin."""

    libtpu: Version
    """The version of the TPU runtime."""
    jax: Version
    """The version of JAX of the same time."""
    jaxlib: Version
    """The version of its compiled half."""


class CompilerTable(Model):
    """The environment that has a TPU compiler."""

    compiler: Annotated[str, matching(r"[\w.\-]+\.lock", "a lock file in the same folder")]
    """Its lock file."""
    compiler_pythons: Annotated[tuple[Python, ...], unique]
    """The CPython versions that it can have, best first."""

    @model_validator(mode="after")
    def _check_pythons(self) -> CompilerTable:
        if not self.compiler_pythons:
            raise wrong("at least one CPython version", "none", "compiler_pythons")
        return self


class Generation(CompilerTable, Runtime):
    """[tpu.generations.NAME]: the later compiler of a TPU generation that the pin's own does not know."""


class TpuTable(CompilerTable):
    """[tpu]: libtpu and its compiler, by hash."""

    platform: Platform
    """The platform tag of libtpu's wheels."""
    libtpu: dict[Python, Sha256]
    """The hashes of libtpu's wheels, by CPython."""
    generations: dict[Annotated[str, matching(r"\w+", "what topologies begin with")], Generation] = Field(
        default_factory=dict
    )
    """The compilers of other generations, by what their topologies begin with, such as "tpu7x"."""

    @model_validator(mode="after")
    def _check(self) -> TpuTable:
        if not self.libtpu:
            raise wrong("the hash of a wheel", "none", "libtpu")
        return self


@dataclass(frozen=True)
class Tpu:
    """What a TPU host needs beside the wheels, and what compiles for TPUs without one."""

    libtpu: str  # the version of libtpu
    jaxlib: str  # the version of jaxlib that runs its compiler
    platform: str  # the platform tag of libtpu's wheels
    wheels: dict[str, str]  # the hash of libtpu's wheel, by CPython version; none of one that only compiles
    compiler: Path  # the lock file of the environment that has the TPU compiler
    compiler_pythons: tuple[str, ...]  # the CPython versions that this environment can have, best first


class PinFile(Model):
    """pins/NAME.toml: a pair of upstream releases, or one of torch alone, and what goes with it."""

    name: Text
    """The name of the file, such as "2.9"."""
    platform: Platform
    """The platform tag of the wheels."""
    cxx11_abi: Annotated[int, Strict(), Field(ge=0, le=1)]
    """The value of ``_GLIBCXX_USE_CXX11_ABI`` that they were compiled with."""
    torch: Upstream
    """The torch release."""
    torch_xla: Upstream | None = None
    """The torch_xla release; left out where torch_xla has none for that torch."""
    runtime: Runtime | None = None
    """What a device needs beside the wheels, if that is still available."""
    tpu: TpuTable | None = None
    """The same by hash, for TPUs."""
    companions: dict[Annotated[str, matching(r"[a-z][a-z0-9-]*", "the name of a package")], Version] = Field(
        default_factory=dict
    )
    """Other packages of upstream's that are compiled against torch: the release of each that works with this one,
    found by trying."""
    variants: dict[str, Variant]
    """The builds that upstream published, by name."""
    wheels: dict[str, dict[Text, dict[Python, Sha256]]]
    """The hashes of the wheels that a build may start from, by project, variant and CPython."""

    @property
    def projects(self) -> tuple[str, ...]:
        """The projects that it has a release of, in the order in which they are built."""
        return PROJECTS if self.torch_xla is not None else PROJECTS[:1]

    @property
    def pinned(self) -> tuple[PinnedWheel, ...]:
        """Every wheel that a build may start from."""
        return tuple(
            PinnedWheel(project, python, variant, sha256)
            for project, variants in self.wheels.items()
            for variant, hashes in variants.items()
            for python, sha256 in hashes.items()
        )

    @property
    def pythons(self) -> tuple[str, ...]:
        """The CPython versions that every project has a wheel for, oldest first."""
        each = [{wheel.python for wheel in self.pinned if wheel.project == project} for project in self.projects]
        return tuple(sorted(set.intersection(*each), key=lambda version: tuple(map(int, version.split(".")))))

    @model_validator(mode="after")
    def _check(self) -> PinFile:
        for wheel in self.pinned:
            if wheel.project not in self.projects:
                raise wrong(" or ".join(self.projects), repr(wheel.project), "wheels")
            if wheel.variant not in self.variants:
                known = ", ".join(self.variants)
                raise wrong(f"one of {known} of [variants]", repr(wheel.variant), f"wheels.{wheel.project}")
        hashes = [wheel.sha256 for wheel in self.pinned]
        twice = next((value for value in hashes if hashes.count(value) > 1), None)
        if twice is not None:
            raise wrong("each hash once", f"{twice} twice", "wheels")
        if not self.pythons:
            raise wrong(f"wheels of {' and of '.join(self.projects)} for the same CPython", "no such CPython", "wheels")
        return self


class Pin(PinFile):
    """A pin."""

    folder: Path
    """The folder of its file."""

    def upstream(self, project: str) -> Upstream:
        """Return the release of a project.

        Raises:
            PinError: The pin has none.
        """
        release = self.torch if project == "torch" else self.torch_xla
        if release is None:
            raise PinError(
                f"pin {self.name} has no {project}",
                expected=f"[{project}] in its file",
                found="no such table: there is no release of it for this torch",
                next_step="Choose another pin with --pin.",
            )
        return release

    @property
    def requires(self) -> tuple[str, ...]:
        """What torch_xla needs besides the requirements in its wheel."""
        return () if self.torch_xla is None else self.torch_xla.requires

    def for_tpu(self, topology: str = "") -> Tpu:
        """Return what a TPU needs.

        Args:
            topology: The TPUs to compile for, such as "tpu7x:2x2x1", if their generation has a compiler of its own.

        Raises:
            PinError: The pin has no TPU part.
        """
        if self.tpu is None or self.runtime is None:
            raise PinError(
                f"pin {self.name} has no TPU part",
                expected="[runtime] and [tpu] in its file, with libtpu and its compiler by hash",
                found="no such table",
                next_step="Choose another pin with --pin, or add the table.",
            )
        other = self.tpu.generations.get(topology.partition(":")[0])
        runtime, table = other or self.runtime, other or self.tpu
        return Tpu(
            libtpu=runtime.libtpu,
            jaxlib=runtime.jaxlib,
            platform=self.tpu.platform,
            wheels={} if other else self.tpu.libtpu,
            compiler=self.folder / table.compiler,
            compiler_pythons=table.compiler_pythons,
        )

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
            python: The CPython version, such as "3.11".
            only: The hash of the only wheel to accept; any of them if None.

        Raises:
            PinError: There is none for that CPython, or none with that hash.
        """
        wheels = tuple(wheel for wheel in self.pinned if (wheel.project, wheel.python) == (project, python))
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


def pin_names(folder: Path) -> list[str]:
    """Return the names of all pins of a folder, newest first."""
    names = (path.stem for path in folder.glob("*.toml"))
    return sorted(names, key=lambda name: tuple(map(int, name.split("."))), reverse=True)


def pair_names(folder: Path) -> list[str]:
    """Return the names of the pins that have a torch_xla, newest first.

    Raises:
        PinError: A file is malformed.
    """
    return [name for name in pin_names(folder) if load_pin(folder, name).torch_xla is not None]


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
    read = read_toml(path, PinFile, PinError)
    if read.name != name:
        fail(path, PinError, [("name", f"{name!r}, the name of the file", repr(read.name))])
    tables: dict[str, CompilerTable] = {} if read.tpu is None else {"tpu": read.tpu}
    if read.tpu is not None:
        tables |= {f"tpu.generations.{known}": table for known, table in read.tpu.generations.items()}
    for key, table in tables.items():
        if not (folder / table.compiler).is_file():
            missing = (f"{key}.compiler", "a lock file in the same folder", f"{table.compiler}: no such file")
            fail(path, PinError, [missing])
    return Pin(**dict(read), folder=folder)
