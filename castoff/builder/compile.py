"""Compile: build one overlay library for each project from the topics' C++ files.

They are compiled against the headers in the stock wheel and linked with its libraries, by the ninja of
the lock file and the machine's own C++ compiler. The cache keeps each overlay and each object (``objects.py``)
under a hash of its inputs: a build that changes no C++ compiles nothing, and one that changes a file compiles
only that file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from castoff.builder.fetch import BaseWheel
from castoff.builder.objects import Headers, Library, Unit, content_hash, json_hash, make_libraries
from castoff.core.cache import Cache
from castoff.core.context import Context
from castoff.core.errors import CompileError, MachineError, RepackError
from castoff.core.runner import Runner
from castoff.formats.elf import defined_symbols
from castoff.model.pin import Pin
from castoff.model.topics import Topic

GLUE = Path(__file__).resolve().parent / "overlay"
"""What every overlay is compiled with: the headers of all sources, and the shims for older systems."""

STUBS = "libcastoff_interposed.so"
"""The library that has torch's interposed functions as jumps into torch's overlay.

It alone is loaded with global symbols, and needs no other library. The overlay needs libtorch_cpu.so: with it, all of
torch's symbols would be global, and libraries that bring their own copies, such as _XLAC, would call torch's.
"""

_MOST_OVERLAYS = 100

TORCH_LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libtorch_python.so")
"""The libraries of the torch wheel that a build reads."""

_RPATHS = {"torch": "$ORIGIN", "torch_xla": "$ORIGIN/../../torch/lib"}

_COMPILE_OPTIONS = (
    "-O2",
    # As in upstream's own build: some inline code differs without the first; without the second torch's headers
    # include every operator, which takes a third of the time.
    "-DNDEBUG",
    "-DAT_PER_OPERATOR_HEADERS",
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
    version: str  # the first line of its --version, and its target

    @property
    def is_gcc(self) -> bool:
        """Whether it takes GCC's own options."""
        return "clang" not in self.version


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
    symbols: tuple[str, ...]  # everything that it exports
    interposed: tuple[str, ...]  # those of them that interpose torch's functions
    compiler: str  # the compiler's version
    key: str  # the hash of everything that it was made from

    def members(self) -> dict[str, bytes]:
        """Return the library, and its stubs if it interposes functions, as members of the project's wheel."""
        names = (self.path.name, *([STUBS] if self.interposed else []))
        return {f"{self.project}/lib/{name}": self.path.with_name(name).read_bytes() for name in names}


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


def needed_compiler(topics: Sequence[Topic], runner: Runner) -> Compiler | None:
    """Find the C++ compiler, as `find_compiler` does, if a topic has C++ sources."""
    return find_compiler(runner) if any(topic.sources() for topic in topics) else None


def unpack_torch(base: BaseWheel, pin: Pin, cache: Cache) -> TorchTree:
    """Unpack the part of the torch wheel that compiling and checking need, once for each wheel.

    Args:
        pin: The pin, whose ABI must be the wheel's.

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

    # The list of libraries is part of the key: a later castoff may need more of them.
    key = hashlib.sha256(" ".join([sha256, *TORCH_LIBRARIES]).encode()).hexdigest()
    folder = cache.ensure(cache.unpacked(key), f"unpack-{key}", make) / "torch"
    abi = cxx11_abi(folder / "lib" / "libc10.so")
    if abi != pin.cxx11_abi:
        raise CompileError(
            f"{base.path.name} has another C++ ABI than its pin",
            expected=f"_GLIBCXX_USE_CXX11_ABI={pin.cxx11_abi}, as pins/{pin.name}.toml says",
            found=f"{abi}, as the names of c10::Error's constructors in its libc10.so show",
            next_step=f"Correct cxx11_abi in pins/{pin.name}.toml.",
        )
    return TorchTree(folder, abi, base.pinned.variant)


def cxx11_abi(libc10: Path) -> int:
    """Return the ``_GLIBCXX_USE_CXX11_ABI`` that a libc10.so was compiled with."""
    # c10::Error takes std::string, whose ABI is in the mangled names of its constructors.
    constructors = [name for name in defined_symbols(libc10) if name.startswith("_ZN3c105ErrorC")]
    return int(any("NSt7__cxx11" in name for name in constructors))


def compile_overlay(
    project: str,
    topics: Sequence[Topic],
    pin: Pin,
    torch: TorchTree,
    compiler: Compiler,
    *,
    context: Context,
) -> Overlay | None:
    """Compile the overlay of one project, as ``compile_overlays`` does.

    Returns:
        The overlay, or None if no topic of the project has C++ sources.
    """
    return compile_overlays([project], topics, pin, torch, compiler, context=context).get(project)


def compile_overlays(
    projects: Sequence[str],
    topics: Sequence[Topic],
    pin: Pin,
    torch: TorchTree,
    compiler: Compiler,
    *,
    context: Context,
) -> dict[str, Overlay]:
    """Compile the overlays of projects, all their files at once.

    Args:
        projects: "torch" or "torch_xla", or both.
        topics: The topics of the build, all projects', in order.

    Returns:
        The overlays by project; none for a project without C++ sources.

    Raises:
        CompileError: One does not compile, or does not export what the topics declare.
    """
    jobs = {}
    for project in projects:
        # C++ for torch_xla may use the headers of torch's topics; not the other way round.
        visible = [topic for topic in topics if project != "torch" or topic.project == project]
        job = _Job(project, visible, pin, torch, compiler)
        if job.own_sources():
            jobs[job.key()] = job
    cache = context.cache
    with ExitStack() as locked:
        for key, job in jobs.items():
            if cache.overlay(key).is_dir():
                os.utime(cache.overlay(key))  # used now
                context.console.note(f"{overlay_name(job.project)}: nothing changed, taken from the cache")
            else:
                locked.enter_context(cache.lock(f"overlay-{key}"))
        missing = {key: job for key, job in jobs.items() if not cache.overlay(key).is_dir()}
        if missing:
            scratch = locked.enter_context(cache.scratch(f"overlay-{next(iter(missing))}"))
            wanted = [library for key, job in missing.items() for library in job.libraries(scratch / key)]
            make_libraries(wanted, compiler.path, scratch, context, precompile=compiler.is_gcc)
            for key in missing:
                cache.keep_folder(cache.overlay(key), scratch / key)
            cache.trim(cache.overlays, most=_MOST_OVERLAYS)
    return {job.project: job.overlay(cache.overlay(key), key) for key, job in jobs.items()}


@dataclass(frozen=True)
class _Job:
    """The inputs of an overlay: its project, and the topics whose headers its sources may include."""

    project: str
    topics: Sequence[Topic]
    pin: Pin
    torch: TorchTree
    compiler: Compiler

    def own_sources(self) -> list[Path]:
        return [source for topic in self.topics if topic.project == self.project for source in topic.sources()]

    def symbols(self) -> list[str]:
        own = [topic.overlay_symbols(self.pin.name) for topic in self.topics if topic.project == self.project]
        return sorted({name for symbols in own for name in (*symbols.interpose, *symbols.exports)})

    def interposed(self) -> list[str]:
        own = [topic.overlay_symbols(self.pin.name) for topic in self.topics if topic.project == self.project]
        return sorted({name for symbols in own for name in symbols.interpose})

    def key(self) -> str:
        """Return a hash of the inputs: the contents of the files, and nothing that depends on their folders."""
        units = [unit.key() for unit in self.units()]
        link = [*_LINK_OPTIONS, _RPATHS[self.project], stubs(self.interposed())]
        return json_hash({"link": link, "symbols": self.symbols(), "units": units})

    def libraries(self, folder: Path) -> list[Library]:
        """Return the libraries to link into a folder, which is created."""
        folder.mkdir()
        return [self._overlay(folder), *([self._stubs(folder)] if self.interposed() else [])]

    def _stubs(self, folder: Path) -> Library:
        source = folder.with_suffix(".s")
        source.write_text(stubs(self.interposed()), encoding="utf-8")
        return Library(folder / STUBS, [], [*_LINK_OPTIONS, "-nostdlib", f"-Wl,-soname,{STUBS}"], [source])

    def _overlay(self, folder: Path) -> Library:
        script = folder.with_suffix(".map")
        script.write_text(version_script(self.symbols()), encoding="utf-8")
        path = folder / overlay_name(self.project)
        rpath = f"-Wl,-rpath,{_RPATHS[self.project]}"
        flags = [*_LINK_OPTIONS, rpath, f"-Wl,-soname,{path.name}", f"-Wl,--version-script={script}"]
        # torch's libraries go ahead of libstdc++, as in the stock wheel.
        return Library(path, self.units(), flags, [self.torch.lib / "libtorch_cpu.so", self.torch.lib / "libc10.so"])

    def overlay(self, folder: Path, key: str) -> Overlay:
        """Return the finished overlay in a folder, with its symbols checked."""
        path = folder / overlay_name(self.project)
        symbols = self.symbols()
        _check_exports(path, symbols)
        return Overlay(self.project, path, tuple(symbols), tuple(self.interposed()), self.compiler.version, key)

    def units(self) -> list[Unit]:
        """Return its sources and how each is compiled."""
        include = [folder for topic in self.topics for folder in (topic.folder / "files", topic.folder / "overlay")]
        include = [folder.resolve() for folder in include if folder.is_dir()]
        names = {topic.folder.resolve(): topic.key for topic in self.topics} | {GLUE: "castoff"}
        headers = Headers(names, include, GLUE / "common.h")
        torch = self.torch.folder / "include"
        options = [f"-std={_standard(self.pin)}", *_COMPILE_OPTIONS, *_options_of(self.compiler), *self._definitions()]
        # The paths of the files must not be in the library.
        prefixes = [
            f"-ffile-prefix-map={folder}={name}" for folder, name in {**names, self.torch.folder: "torch"}.items()
        ]
        folders = [f"-I{folder}" for folder in (*include, GLUE)]
        for folder in (torch, torch / "torch" / "csrc" / "api" / "include"):
            folders += ["-isystem", str(folder)]
        flags = [*options, *prefixes, *folders]
        inputs = {
            "options": options,
            "compiler": self.compiler.version,
            "torch": [self.pin.torch.commit, self.torch.variant],
            "before torch": self._before_torch(torch),
        }
        sources = [*(source.resolve() for source in self.own_sources()), GLUE / "compat.cpp"]
        return [Unit(source, flags, headers, inputs) for source in sources]

    def _before_torch(self, include: Path) -> dict[str, str]:
        """Return the topics' headers that replace torch's in torch's own includes."""
        found = {}
        for topic in self.topics:
            for header in topic.headers():
                name = Path(*header.relative_to(topic.folder).parts[1:])
                if (include / name).exists():
                    found[str(name)] = content_hash(header)
        return found

    def _definitions(self) -> list[str]:
        return [
            f"-D_GLIBCXX_USE_CXX11_ABI={self.torch.cxx11_abi}",
            *(
                f'-DCASTOFF_{project.upper()}_GIT_VERSION="{self.pin.upstream(project).commit}"'
                for project in self.pin.projects
            ),
        ]


def _standard(pin: Pin) -> str:
    """Return the standard of C++ that the headers of a pin's torch are written in."""
    return "c++20" if tuple(map(int, pin.torch.version.split(".")[:2])) >= (2, 10) else "c++17"


def _options_of(compiler: Compiler) -> list[str]:
    """Return flags that make a compiler faster: GCC collects garbage often unless it may use 1.5 GB."""
    return ["--param=ggc-min-heapsize=1500000"] if compiler.is_gcc else []


def version_script(symbols: Sequence[str]) -> str:
    """Return the linker's version script that exports these symbols and no others."""
    shown = "".join(f"    {symbol};\n" for symbol in symbols)
    return "{\n" + (f"  global:\n{shown}" if shown else "") + "  local: *;\n};\n"


def stubs(symbols: Sequence[str]) -> str:
    """Return the assembly of functions that jump to the addresses in the array ``castoff_interposed``.

    ``import torch`` fills the array; ``castoff_interposed_names`` has the names in its order, separated by spaces.
    """
    functions = [
        f".globl {name}\n.type {name}, @function\n{name}: jmp *.Laddresses+{8 * at}(%rip)\n.size {name}, 8\n"
        for at, name in enumerate(symbols)
    ]
    addresses = f".globl castoff_interposed\ncastoff_interposed:\n.Laddresses: .zero {8 * len(symbols)}\n"
    names = f'.globl castoff_interposed_names\ncastoff_interposed_names: .asciz "{" ".join(symbols)}"\n'
    return "".join(
        [
            ".text\n",
            *functions,
            f".bss\n.balign 8\n{addresses}",
            f".section .rodata\n{names}",
            '.section .note.GNU-stack, "", @progbits\n',
        ]
    )


def _check_exports(path: Path, symbols: Sequence[str]) -> None:
    missing = sorted(set(symbols) - defined_symbols(path))
    if missing:
        raise CompileError(
            f"{path.name} lacks symbols that its topics declare",
            expected="a definition, with default visibility, of each symbol under [overlay] in topic.toml",
            found="none of\n" + "\n".join(f"  {name}" for name in missing),
            next_step="Compare the names with those in the object files (nm), or remove them from topic.toml.",
            symbols=missing,
        )
