"""Objects: C++ sources compiled one by one, with each object in the cache under a hash of its inputs.

The key of an object is a hash of its source, of the topics' headers that it includes, of the flags, the
compiler and the torch wheel. So after an edit only the files that include it are compiled, in every checkout
of castoff. Objects are kept even if another file of the same build fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from castoff.core.cache import Cache, link
from castoff.core.context import Context
from castoff.core.errors import CompileError
from castoff.core.runner import Completed
from castoff.core.tools import tool

_INCLUDE = re.compile(rb'^\s*#.*?\b(?:__has_)?include(?:_next)?\s*\(?\s*([<"])([^>"\n]+)[>"]', re.MULTILINE)
_DIAGNOSTIC = re.compile(r": (?:fatal )?error: |undefined reference to|multiple definition of|: error adding symbols")
_LEADS_TO = re.compile(r"^(In file included from |\s+from )|: In .*:$|: At global scope:$|: in function `")
_ENDS = re.compile(r"^(ninja: |FAILED: |\[\d+/\d+\]|cc1plus: |collect2: |compilation terminated)")
_SHOWN_LINES = 15

# The user's own flags would change the object without changing its key.
_FLAGS = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")


@dataclass(frozen=True)
class Headers:
    """The topics' headers, as the compiler finds them.

    Args:
        names: For each folder with castoff's sources or headers, its name in keys and in the compiled code.
        include: The folders that are searched, in order.
        common: The header that every source begins with, by its name alone (``-include``).
    """

    names: Mapping[Path, str]
    include: Sequence[Path]
    common: Path
    _included: dict[Path, list[Path]] = field(default_factory=dict, compare=False)

    def name(self, path: Path) -> str:
        """Return the name of one of castoff's files, which does not depend on the tree's folder."""
        folder = next(folder for folder in self.names if path.is_relative_to(folder))
        return f"{self.names[folder]}/{path.relative_to(folder).as_posix()}"

    def closure(self, source: Path) -> set[Path]:
        """Return a source and every header of castoff's that it may include, directly or not.

        Conditions of the preprocessor are ignored, so these may be more than are really included.
        """
        seen: set[Path] = set()
        waiting = [source, self.common]
        while waiting:
            path = waiting.pop()
            if path not in seen:
                seen.add(path)
                waiting += self._includes(path)
        return seen

    def _includes(self, path: Path) -> list[Path]:
        if path not in self._included:
            found = []
            for quote, name in _INCLUDE.findall(path.read_bytes()):
                folders = [path.parent, *self.include] if quote == b'"' else self.include
                there = (folder / os.fsdecode(name) for folder in folders)
                found += [header.resolve() for header in there if header.is_file()][:1]
            self._included[path] = found
        return self._included[path]


@dataclass(frozen=True)
class Unit:
    """A source to be compiled."""

    source: Path
    flags: Sequence[str]  # with paths
    headers: Headers
    inputs: Mapping[str, object]  # of the key, besides the files: flags without paths, compiler, torch

    @property
    def name(self) -> str:
        """The name of the source, which does not depend on the tree's folder."""
        return self.headers.name(self.source)

    def key(self) -> str:
        """Return a hash of the object's inputs."""
        files = {self.headers.name(path): content_hash(path) for path in self.headers.closure(self.source)}
        return json_hash({**self.inputs, "source": self.name, "files": files})

    def check(self, depfile: Path, precompiled: Path) -> None:
        """Check that the compiler read no file of castoff's that is not in the key.

        Args:
            depfile: The list of what it read.
            precompiled: The common header as precompiled, which it may have read.

        Raises:
            CompileError: It did.
        """
        words = depfile.read_text(encoding="utf-8").replace("\\\n", " ").partition(": ")[2].split()
        unknown = {Path(word).resolve() for word in words} - self.headers.closure(self.source) - {precompiled.resolve()}
        if unknown:
            raise CompileError(
                f"{self.name} includes files that are not in its key of the cache",
                expected='each file of a topic is included by its name: #include <…> or #include "…"',
                found=", ".join(sorted(map(str, unknown))),
                next_step="Include them in this form.",
            )


@dataclass(frozen=True)
class Library:
    """A shared library to be linked."""

    path: Path
    units: Sequence[Unit]  # in the linker's order
    flags: Sequence[str]  # of the linker
    libraries: Sequence[Path]  # to link with, after the objects


def make_libraries(
    libraries: Sequence[Library], compiler: Path, folder: Path, context: Context, *, precompile: bool
) -> None:
    """Compile what is not in the cache and link, everything in one run of ninja.

    Args:
        folder: An empty folder of the cache, for intermediate files.
        context: Its cache keeps the objects.
        precompile: The common header may be compiled first; GCC's form of it. The objects are the same either way.

    Raises:
        CompileError: A source does not compile, or a library does not link.
    """
    units = {unit.key(): unit for library in libraries for unit in library.units}
    objects = {key: _taken(context.cache, key, folder) for key in units}
    missing = {key: unit for key, unit in units.items() if objects[key] is None}
    made = {key: folder / "patches" / f"{unit.name}.o" for key, unit in missing.items()}
    context.console.note(f"compiling {len(missing)} of {len(units)} C++ files; the cache has the others")
    common = next(iter(units.values())).headers.common
    precompiled = folder / "precompiled" / f"{common.name}.gch"
    by_size = sorted(missing.values(), key=lambda unit: unit.source.stat().st_size)
    users = by_size[:-2] if precompile and len(missing) >= _MANY else []  # the largest are compiled meanwhile
    _write_ninja(
        folder / "build.ninja", libraries, compiler, {**objects, **made}, missing, precompiled=precompiled, users=users
    )
    environment = {key: value for key, value in os.environ.items() if key not in _FLAGS}
    ninja: list[str | Path] = [tool("ninja"), "-C", folder, "-k", "0"]
    completed = context.runner.run(ninja, name="compile", env=environment, check=False)
    compiled = {key: path for key, path in made.items() if path.is_file()}
    for key, path in compiled.items():
        missing[key].check(path.with_suffix(".d"), precompiled)
    for key, path in compiled.items():
        context.cache.keep_file(_place(context.cache, key), path)
    context.cache.trim(context.cache.objects, most=_MOST_OBJECTS)
    if completed.returncode != 0:
        failed = {unit.name: made[key] for key, unit in missing.items() if key not in compiled}
        _fail(completed, [library.path.name for library in libraries if not library.path.is_file()], failed)


_MANY = 8
"""From so many sources on it pays to precompile their common header: 10 s, and then 2 s less for each source."""

_MOST_OBJECTS = 500
"""The number of objects that the cache keeps: those of all pins, for a dozen edits each. About 300 kB each."""


def _place(cache: Cache, key: str) -> Path:
    return cache.objects / f"{key}.o"


def _taken(cache: Cache, key: str, folder: Path) -> Path | None:
    """Take an object from the cache, if it is there, by a link that stays when the cache is trimmed."""
    try:
        os.utime(_place(cache, key))  # used now
        link(_place(cache, key), folder / f"{key}.o")
    except FileNotFoundError:
        return None
    return folder / f"{key}.o"


def _write_ninja(
    path: Path,
    libraries: Sequence[Library],
    compiler: Path,
    objects: Mapping[str, Path | None],
    missing: Mapping[str, Unit],
    *,
    precompiled: Path,
    users: Sequence[Unit],
) -> None:
    """Write the rules; `users` are the units for which the common header is precompiled."""
    rows = [
        f"cxx = {_quoted([compiler])}",
        "rule compile",
        "  command = $cxx $flags -MMD -MF $depfile -c $in -o $out",
        "  description = compile $out",
        "rule precompile",
        "  command = $cxx $flags -x c++-header $in -o $out",
        "  description = precompile $in",
        "rule link",
        "  command = $cxx -shared $flags -o $out $in $libraries",
        "  description = link $out",
    ]
    if users:
        rows.append(f"build {_escaped(precompiled)}: precompile {_escaped(users[0].headers.common)}")
        rows.append(f"  flags = {_quoted(users[0].flags)}")
    for key, unit in missing.items():
        made = objects[key]
        assert made is not None
        row, first = f"build {_escaped(made)}: compile {_escaped(unit.source)}", []
        if unit in users:
            row, first = f"{row} | {_escaped(precompiled)}", [f"-I{precompiled.parent}", "-Winvalid-pch"]
        rows += [row, f"  flags = {_quoted([*first, *unit.flags, '-include', unit.headers.common.name])}"]
        rows.append(f"  depfile = {_quoted([made.with_suffix('.d')])}")
    for library in libraries:
        inputs = [made for unit in library.units if (made := objects[unit.key()]) is not None]
        rows.append(f"build {_escaped(library.path)}: link {' '.join(map(_escaped, inputs))}")
        rows += [f"  flags = {_quoted(library.flags)}", f"  libraries = {_quoted(library.libraries)}"]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def _quoted(words: Sequence[str | Path]) -> str:
    return shlex.join(map(str, words)).replace("$", "$$")


def _escaped(path: Path) -> str:
    return re.sub(r"([$: ])", r"$\1", str(path))


def _fail(completed: Completed, names: Sequence[str], failed: Mapping[str, Path]) -> None:
    raise CompileError(
        f"{' and '.join(names)} cannot be compiled",
        expected="each C++ file of the topics compiles without a warning, and the library links",
        found=first_error(completed.output) or f"exit status {completed.returncode}; it ended with\n{completed.tail}",
        next_step=f"Read the whole log: {completed.log} and correct the topic that it names.",
        sources=_errors_by_source(completed.output, failed),
    )


def _errors_by_source(output: str, failed: Mapping[str, Path]) -> dict[str, str]:
    """Return the first error of each source that ninja could not compile.

    Args:
        output: What ninja wrote: for each failure "FAILED: ", the object, the command and its output.
        failed: For each such source, its object.
    """
    blocks = output.split("\nFAILED: ")[1:]
    errors = {}
    for name, path in failed.items():
        own = next((block for block in blocks if str(path) in block.partition("\n")[0]), "")
        errors[name] = first_error(own) or "see the log"
    return errors


def first_error(output: str) -> str:
    """Return the first error of a compiler or linker in its own words, or "": place, message and line of code."""
    lines = output.splitlines()
    wrong = [number for number, line in enumerate(lines) if _DIAGNOSTIC.search(line)]
    if not wrong:
        return ""
    first = wrong[0]
    begin = first
    while begin > 0 and _LEADS_TO.search(lines[begin - 1]):
        begin -= 1
    end = first + 1
    while end < len(lines) and end - first < _SHOWN_LINES and not _is_next(lines[end]):
        end += 1
    more = [f"({len(wrong) - 1} more in the log)"] if len(wrong) > 1 else []
    return "\n".join([*lines[begin:end], *more])


def _is_next(line: str) -> bool:
    return any(pattern.search(line) for pattern in (_DIAGNOSTIC, _LEADS_TO, _ENDS))


def content_hash(path: Path) -> str:
    """Return the hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def json_hash(inputs: Mapping[str, object]) -> str:
    """Return one hash over plain data."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
