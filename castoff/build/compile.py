"""Compile: the topics' C++ files, made into one overlay library for each project.

They are compiled against the headers in the stock wheel and linked with its libraries, by the CMake
and ninja of the lock file and the machine's own C++ compiler. An overlay is kept in the cache under
a hash of everything that it is made from, so a build that changes no C++ compiles nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from castoff.build.fetch import BaseWheel
from castoff.core.cache import Cache
from castoff.core.context import Context
from castoff.core.errors import CommandError, CompileError, MachineError, RepackError
from castoff.core.runner import Runner
from castoff.core.tools import tool
from castoff.formats.elf import defined_symbols
from castoff.model.pin import Pin
from castoff.model.topics import Topic

GLUE = Path(__file__).parent / "overlay"
"""What every overlay is compiled with: the CMake project and the shims for older systems."""

TORCH_LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libtorch_global_deps.so", "libtorch_python.so")
"""The libraries of the torch wheel that a build looks into."""

_RPATHS = {"torch": "$ORIGIN", "torch_xla": "$ORIGIN/../../torch/lib"}

_COMPILE_OPTIONS = (
    "-O2",
    "-DNDEBUG",  # as upstream's own build: some inline code differs without it
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
)

_LINK_OPTIONS = (
    "-Wl,--build-id=none",
    "-Wl,-z,defs",
    "-Wl,-z,relro",
    # RPATH and not RUNPATH, like torch's own libraries: LD_LIBRARY_PATH must not bring another torch.
    "-Wl,--disable-new-dtags",
    "-Wl,--strip-all",
)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler."""

    path: Path
    version: str  # how it names itself


@dataclass(frozen=True)
class TorchTree:
    """The part of the torch wheel that overlays are compiled against."""

    folder: Path  # the folder that holds it, as ``torch`` does in the wheel
    cxx11_abi: int  # the ``_GLIBCXX_USE_CXX11_ABI`` that its libraries were compiled with
    variant: str  # the variant of the wheel

    @property
    def lib(self) -> Path:
        """Where its libraries are."""
        return self.folder / "lib"


@dataclass(frozen=True)
class Overlay:
    """A compiled overlay."""

    project: str  # the project whose topics it holds
    path: Path  # the library
    symbols: tuple[str, ...]  # what it shows to others, and nothing else
    interposed: tuple[str, ...]  # those of them that take the place of torch's functions
    compiler: str  # what compiled it
    key: str  # the hash of everything that it was made from


def overlay_name(project: str) -> str:
    """Return the file name of a project's overlay."""
    return f"libcastoff_{project}.so"


def find_compiler(runner: Runner) -> Compiler:
    """Find the C++ compiler: CXX, else g++, else clang++.

    Raises:
        MachineError: There is none, or it does not run.
    """
    wanted = os.environ.get("CXX")
    candidates = [wanted] if wanted else ["g++", "clang++"]
    for candidate in candidates:
        found = shutil.which(candidate)
        if found is not None:
            version = runner.run([found, "--version"], name="compiler").output.splitlines()[0]
            machine = runner.run([found, "-dumpmachine"], name="compiler").output.strip()
            return Compiler(Path(found), f"{version} [{machine}]")
    raise MachineError(
        "there is no C++ compiler",
        expected=f"{' or '.join(candidates)} on PATH",
        found="none",
        next_step="Install one (Debian and Ubuntu: apt-get install g++), or name yours with CXX=….",
    )


def unpack_torch(base: BaseWheel, pin: Pin, cache: Cache) -> TorchTree:
    """Unpack what compiling and checking need of the torch wheel, once for each wheel.

    Args:
        base: The upstream torch wheel.
        pin: The pin, whose ABI must be the wheel's.
        cache: Where it is kept.

    Raises:
        CompileError: The wheel's C++ ABI is not the pin's.
        RepackError: The wheel does not have the files.
    """
    sha256 = base.pinned.sha256

    def make(folder: Path) -> None:
        with zipfile.ZipFile(base.path) as archive:
            names = [name for name in archive.namelist() if name.startswith("torch/include/")]
            libraries = [f"torch/lib/{name}" for name in TORCH_LIBRARIES]
            missing = sorted(set(libraries) - set(archive.namelist()))
            if missing or not names:
                raise RepackError(
                    f"{base.path.name} is not a torch wheel that castoff knows",
                    expected="torch/include/ and " + ", ".join(libraries),
                    found="without " + ", ".join(missing or ["torch/include/"]),
                    next_step="Check the pin's hashes.",
                )
            archive.extractall(folder, [*names, *libraries])

    # What is taken out of the wheel is part of the key: a later castoff may need more of it.
    key = hashlib.sha256(" ".join([sha256, *TORCH_LIBRARIES]).encode()).hexdigest()
    folder = cache.ensure(cache.unpacked(key), f"unpack-{key}", make) / "torch"
    abi = cxx11_abi(folder / "lib" / "libc10.so")
    if abi != pin.cxx11_abi:
        raise CompileError(
            f"{base.path.name} has another C++ ABI than its pin",
            expected=f"_GLIBCXX_USE_CXX11_ABI={pin.cxx11_abi}, as pins/{pin.name}.toml says",
            found=f"{abi}, as the names of c10::Error's constructors in its libc10.so show",
            next_step=f"Mend cxx11_abi in pins/{pin.name}.toml.",
        )
    return TorchTree(folder, abi, base.pinned.variant)


def cxx11_abi(libc10: Path) -> int:
    """Return the ``_GLIBCXX_USE_CXX11_ABI`` that a libc10.so was compiled with."""
    # c10::Error takes std::string, which the mangled names of its constructors spell out.
    constructors = [name for name in defined_symbols(libc10) if name.startswith("_ZN3c105ErrorC")]
    return int(any("NSt7__cxx11" in name for name in constructors))


def compile_overlay(
    project: str,
    topics: Sequence[Topic],
    pin: Pin,
    torch: TorchTree,
    compiler: Compiler,
    *,
    version: str,
    context: Context,
) -> Overlay | None:
    """Compile the overlay of one project.

    Args:
        project: "torch" or "torch_xla".
        topics: The topics of the build, all projects', in order.
        pin: The pin.
        torch: What to compile against.
        compiler: What to compile with.
        version: The version of castoff, which the overlay carries.
        context: The means of the build.

    Returns:
        The overlay, or None if no topic of the project has C++ sources.

    Raises:
        CompileError: It does not compile, or does not show what the topics declare.
    """
    own = [topic for topic in topics if topic.project == project]
    sources = [source for topic in own for source in topic.sources()]
    if not sources:
        return None
    # C++ for torch_xla may use what torch's topics bring; not the other way round.
    visible = own if project == "torch" else list(topics)
    interposed = sorted({name for topic in own for name in topic.overlay_symbols(pin.name).interpose})
    exports = {name for topic in own for name in topic.overlay_symbols(pin.name).exports}
    symbols = sorted({*interposed, *exports})
    job = _Job(project, visible, sources, symbols, pin, torch, compiler, version)
    key = job.key()
    folder = context.cache.overlay(key)
    if folder.is_dir():
        context.console.note(f"{overlay_name(project)}: nothing changed, taken from the cache")
    context.cache.ensure(folder, f"overlay-{key}", lambda made: job.compile(made, context.runner))
    path = folder / overlay_name(project)
    _check_exports(path, symbols)
    return Overlay(project, path, tuple(symbols), tuple(interposed), compiler.version, key)


@dataclass(frozen=True)
class _Job:
    """Everything that determines an overlay."""

    project: str
    topics: Sequence[Topic]
    sources: list[Path]
    symbols: list[str]
    pin: Pin
    torch: TorchTree
    compiler: Compiler
    version: str

    def key(self) -> str:
        """Hash it, with contents for files and with nothing that depends on where they are."""
        headers = [header for topic in self.topics for header in topic.headers()]
        files = {self._relative(path): _content_hash(path) for path in [*self.sources, *headers]}
        glue = {path.name: _content_hash(path) for path in sorted(GLUE.iterdir()) if path.is_file()}
        inputs = {
            "project": self.project,
            "files": files,
            "glue": glue,
            "compile": [*_COMPILE_OPTIONS, *self._definitions()],
            "link": [*_LINK_OPTIONS, _RPATHS[self.project]],
            "symbols": self.symbols,
            "compiler": self.compiler.version,
            "torch": [self.pin.torch.commit, self.torch.variant],
        }
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()

    def compile(self, folder: Path, runner: Runner) -> None:
        """Leave the library in a folder."""
        build = folder.parent / "build"
        build.mkdir()
        script = build / "symbols.map"
        script.write_text(version_script(self.symbols), encoding="utf-8")
        settings = build / "settings.cmake"
        settings.write_text(self._settings(script), encoding="utf-8")
        # The user's own flags would change what is built without changing its key.
        flags = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
        environment = {key: value for key, value in os.environ.items() if key not in flags}
        configure: list[str | Path] = [tool("cmake"), "-G", "Ninja", "-C", settings, "-S", GLUE, "-B", build]
        compilation: list[str | Path] = [tool("cmake"), "--build", build, "--", "-k", "0"]
        for name, command in (("configure", configure), ("compile", compilation)):
            try:
                runner.run(command, name=f"{name}-{self.project}", env=environment)
            except CommandError as error:
                raise CompileError(
                    f"{overlay_name(self.project)} does not compile",
                    expected=f"{self.compiler.version} compiles the topics without a warning",
                    found=error.found,
                    next_step=f"{error.next_step} and mend the topic that it names.",
                ) from error
        (build / overlay_name(self.project)).rename(folder / overlay_name(self.project))

    def _relative(self, path: Path) -> str:
        return next(
            f"{topic.key}/{path.relative_to(topic.folder).as_posix()}"
            for topic in self.topics
            if path.is_relative_to(topic.folder)
        )

    def _definitions(self) -> list[str]:
        return [
            f"-D_GLIBCXX_USE_CXX11_ABI={self.torch.cxx11_abi}",
            f'-DCASTOFF_VERSION="{self.version}"',
            f'-DCASTOFF_TORCH_GIT_VERSION="{self.pin.torch.commit}"',
            f'-DCASTOFF_TORCH_XLA_GIT_VERSION="{self.pin.torch_xla.commit}"',
        ]

    def _settings(self, script: Path) -> str:
        includes = [folder for topic in self.topics for folder in (topic.folder / "files", topic.folder / "overlay")]
        # Where the files are must not show in the library.
        prefixes = [f"-ffile-prefix-map={topic.folder}={topic.key}" for topic in self.topics]
        prefixes += [f"-ffile-prefix-map={GLUE}=castoff", f"-ffile-prefix-map={self.torch.folder}=torch"]
        prefixes += [f"-ffile-prefix-map={script.parent}=build"]
        include = self.torch.folder / "include"
        lists: dict[str, Sequence[str | Path]] = {
            "CASTOFF_SOURCES": [*self.sources, GLUE / "compat.cpp"],
            "CASTOFF_INCLUDES": [folder for folder in includes if folder.is_dir()],
            "CASTOFF_SYSTEM_INCLUDES": [include, include / "torch" / "csrc" / "api" / "include"],
            "CASTOFF_COMPILE_OPTIONS": [
                *_COMPILE_OPTIONS,
                *self._definitions(),
                *prefixes,
                f"SHELL:-include {GLUE / 'compat.h'}",
            ],
            "CASTOFF_LINK_OPTIONS": [
                *_LINK_OPTIONS,
                f"-Wl,-rpath,{_RPATHS[self.project]}",
                f"-Wl,--version-script={script}",
            ],
            "CASTOFF_LIBRARIES": [self.torch.lib / "libtorch_cpu.so", self.torch.lib / "libc10.so"],
            "CASTOFF_NAME": [overlay_name(self.project).removeprefix("lib").removesuffix(".so")],
            "CASTOFF_VERSION_SCRIPT": [script],
            "CMAKE_CXX_COMPILER": [self.compiler.path],
            "CMAKE_MAKE_PROGRAM": [tool("ninja")],
            "CMAKE_SKIP_RPATH": ["ON"],
        }
        rows = []
        for name, values in lists.items():
            words = " ".join(f"[==[{value}]==]" for value in values)
            rows.append(f'set({name} {words} CACHE STRING "")\n')
        return "".join(rows)


def version_script(symbols: Sequence[str]) -> str:
    """Return the linker's version script that shows these symbols and hides all others."""
    shown = "".join(f"    {symbol};\n" for symbol in symbols)
    return "{\n" + (f"  global:\n{shown}" if shown else "") + "  local: *;\n};\n"


def _content_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_exports(path: Path, symbols: Sequence[str]) -> None:
    missing = sorted(set(symbols) - defined_symbols(path))
    if missing:
        raise CompileError(
            f"{path.name} lacks symbols that its topics declare",
            expected="a definition, with default visibility, of each symbol under [overlay] in topic.toml",
            found="none of\n" + "\n".join(f"  {name}" for name in missing),
            next_step="Compare the names with those in the object files (nm), or remove them from topic.toml.",
        )
