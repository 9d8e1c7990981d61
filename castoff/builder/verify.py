"""Verify: checks of the finished wheels.

Four checks: the wheel's structure, member by member against upstream's; the symbol versions of its
overlay against its platform tag; an installation into a scratch environment; and, in a running
process, which function each interposed symbol resolves to.
"""

from __future__ import annotations

import email.parser
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from castoff.builder.compile import STUBS, Overlay, TorchTree, overlay_name
from castoff.builder.install import (
    Install,
    copy_environment,
    lay_wheel,
    make_environment,
    requirements,
    site_packages,
    upstream_environment,
)
from castoff.builder.repack import PatchedWheel
from castoff.core.context import Context
from castoff.core.errors import CommandError, FetchError, VerifyError
from castoff.core.interpreter import Interpreter
from castoff.core.runner import Runner
from castoff.core.tools import tool
from castoff.formats.elf import VersionedSymbol, defined_symbols, needed_libraries, needed_versions, relocation_slots
from castoff.formats.splice import extents
from castoff.formats.wheels import dist_info, parse_record, record_digest
from castoff.model.pin import Pin

EXTENSION = "_XLAC.*.so"
"""torch_xla's C++, beside its package."""
_CALLERS = ("libtorch_cpu.so", "libtorch_python.so")
"""The libraries whose calls must go to an interposed function, as those of EXTENSION."""

_BLOCK = 1 << 24
_PROBE = Path(__file__).parent / "probe.py"


@dataclass(frozen=True)
class Verified:
    """What was checked."""

    installed: bool  # whether the wheels were installed and imported
    skipped: str  # why not, if not
    interpositions: dict[str, int]  # for each interposed symbol, how many slots of the libraries lead to it


@dataclass(frozen=True)
class _Answer:
    """What the probe found."""

    imported: dict[str, tuple[str, Path]]
    slots: dict[str, dict[str, list[str]]]


def verify_all(
    wheels: Sequence[PatchedWheel],
    overlays: Mapping[str, Overlay],
    torch: TorchTree,
    pin: Pin,
    interpreter: Interpreter,
    *,
    install: bool,
    context: Context,
) -> Verified:
    """Check everything that was built.

    Args:
        overlays: The overlays in them, by project.
        torch: The headers and libraries of upstream's torch.
        interpreter: The CPython to install the wheels with.
        install: Whether to install and import them.

    Raises:
        VerifyError: What is wrong with them.
    """
    for wheel in wheels:
        verify_structure(wheel)
    for overlay in overlays.values():
        verify_overlay(overlay, torch, pin.platform_of(overlay.project))
    if not install:
        context.console.warn("the wheels were not installed and imported: --no-verify-install")
        return Verified(False, "--no-verify-install", {})
    return verify_installed(wheels, overlays.get("torch"), torch, interpreter, context)


def verify_structure(wheel: PatchedWheel) -> None:
    """Check that a wheel is complete and differs from upstream's only in the declared members.

    Raises:
        VerifyError: It is incomplete, or another member differs.
    """
    _check_names(wheel)
    _check_unchanged(wheel)
    with zipfile.ZipFile(wheel.path) as archive:
        names = archive.namelist()
        record = f"{dist_info(names)}/RECORD"
        rows = {row.path: row for row in parse_record(archive.read(record))}
        files = {name for name in names if not name.endswith("/")}
        if files != rows.keys():
            off = ", ".join(sorted(files ^ rows.keys())[:5])
            _fail(wheel, "RECORD lists each member once", f"these are in one but not the other: {off}")
        for name in (*wheel.changed, *wheel.added):
            data = archive.read(name)  # this checks the CRC, too
            if name != record and (rows[name].digest, rows[name].size) != (record_digest(data), str(len(data))):
                _fail(wheel, f"RECORD's hash of {name}: {rows[name].digest}", record_digest(data))


def _check_names(wheel: PatchedWheel) -> None:
    """Check that file name, dist-info folder and METADATA agree, and that the tags are upstream's."""
    try:
        name, version, _, tags = parse_wheel_filename(wheel.path.name)
        base_tags = parse_wheel_filename(wheel.base.path.name)[3]
    except InvalidWheelFilename as error:
        _fail(wheel, "a valid wheel file name", str(error))
    with zipfile.ZipFile(wheel.base.path) as archive:
        base_tag_lines = _tag_lines(archive)
    with zipfile.ZipFile(wheel.path) as archive:
        info = dist_info(archive.namelist())
        metadata = email.parser.BytesParser().parsebytes(archive.read(f"{info}/METADATA"))
        tag_lines = _tag_lines(archive)
        module = archive.read(f"{wheel.project}/version.py").decode()
    said = (canonicalize_name(str(metadata["Name"])), str(metadata["Version"]))
    wanted = (canonicalize_name(wheel.project), wheel.version)
    checks = {
        "the file's name": ((name, str(version)), wanted),
        "METADATA": (said, wanted),
        "the dist-info folder": (info, f"{wheel.project}-{wheel.version}.dist-info"),
        "the tags in the file's name": (sorted(map(str, tags)), sorted(map(str, base_tags))),
        # Not those of the name: upstream renamed some wheels and did not change this file.
        "WHEEL's tags": (tag_lines, base_tag_lines),
        "version.py": (f"__version__ = '{wheel.version}'" in module, True),
    }
    for what, (found, expected) in checks.items():
        if found != expected:
            _fail(wheel, f"{what} says {expected}", str(found))


def _tag_lines(archive: zipfile.ZipFile) -> list[str]:
    data = archive.read(f"{dist_info(archive.namelist())}/WHEEL")
    return sorted(map(str, email.parser.BytesParser().parsebytes(data).get_all("Tag", [])))


def _check_unchanged(wheel: PatchedWheel) -> None:
    """Compare every other member with upstream's, by its compressed bytes."""
    ours = {*wheel.changed, *wheel.added}
    with zipfile.ZipFile(wheel.base.path) as old, zipfile.ZipFile(wheel.path) as new:
        there = set(new.namelist())
        expected = {wheel.renames.get(name, name) for name in old.namelist()} | set(wheel.added)
        if there != expected:
            off = ", ".join(sorted(there ^ expected)[:5])
            _fail(wheel, "upstream's members, and those that the topics add", f"differences: {off}")
        for name, source in wheel.renames.items():
            if source not in ours and old.read(name) != new.read(source):
                _fail(wheel, f"{source} as upstream has it", "something else")
        old_places, new_places = extents(old), extents(new)
        with wheel.base.path.open("rb") as old_file, wheel.path.open("rb") as new_file:
            for name in old.namelist():
                if name in ours or name in wheel.renames:
                    continue
                before, after = old.getinfo(name), new.getinfo(name)
                same = (before.CRC, before.external_attr, before.date_time) == (
                    after.CRC,
                    after.external_attr,
                    after.date_time,
                )
                old_place, new_place = old_places[name], new_places[name]
                left = old_place.end - old_place.start
                same = same and new_place.end - new_place.start == left
                old_file.seek(old_place.start)
                new_file.seek(new_place.start)
                while same and left:
                    block = old_file.read(min(left, _BLOCK))
                    same = bool(block) and block == new_file.read(len(block))
                    left -= len(block)
                if not same:
                    _fail(wheel, f"{name} as upstream has it", "something else")


def verify_overlay(overlay: Overlay, torch: TorchTree, platform: str) -> None:
    """Check the symbols that an overlay needs and exports.

    Args:
        torch: The torch that it was compiled against.
        platform: The platform tag of the wheel.

    Raises:
        VerifyError: It needs more than the tag allows, or exports other symbols than declared.
    """
    shown = defined_symbols(overlay.path)
    if shown != set(overlay.symbols):
        off = "\n".join(f"  {name}" for name in sorted(shown ^ set(overlay.symbols)))
        raise VerifyError(
            f"{overlay.path.name} exports other symbols than its topics declare",
            expected=f"{len(overlay.symbols)} symbols, those under [overlay] in the topics",
            found=f"a difference in\n{off}",
            next_step="Declare them in topic.toml, or hide them.",
        )
    too_new = newer_than(needed_versions(overlay.path), platform)
    if too_new:
        rows = "\n".join(f"  {symbol.name} needs {symbol.version} of {symbol.library}" for symbol in too_new)
        raise VerifyError(
            f"{overlay.path.name} needs a newer system than its wheel says",
            expected=f"no symbol version beyond what {platform} allows (auditwheel's policy)",
            found=rows,
            next_step="Define these symbols in castoff/builder/overlay/compat.{h,cpp}, or avoid them in the topic.",
        )
    known = {*_policy_libraries(platform), *(path.name for path in torch.lib.iterdir())}
    unknown = [name for name in needed_libraries(overlay.path) if name not in known and not name.startswith("ld-linux")]
    if unknown:
        raise VerifyError(
            f"{overlay.path.name} needs libraries that are not in the wheels",
            expected=f"only torch's own and those that {platform} allows",
            found=", ".join(unknown),
            next_step="Do not use them in the topic.",
        )


def newer_than(symbols: Sequence[VersionedSymbol], platform: str) -> list[VersionedSymbol]:
    """Return the symbols that a system with a platform tag may lack.

    Args:
        platform: The platform tag, such as "manylinux_2_28_x86_64".
    """
    policy = policies().get_policy_by_name(platform)
    allowed = {f"{prefix}_{version}" for prefix, versions in policy.symbol_versions.items() for version in versions}
    judged = tuple(f"{prefix}_" for prefix in policy.symbol_versions)
    return [symbol for symbol in symbols if symbol.version.startswith(judged) and symbol.version not in allowed]


def policies() -> WheelPolicies:
    """Return auditwheel's policies of platform tags."""
    return WheelPolicies(libc=Libc.GLIBC, arch=Architecture.x86_64)


def _policy_libraries(platform: str) -> frozenset[str]:
    return frozenset(policies().get_policy_by_name(platform).whitelist)


def verify_installed(
    wheels: Sequence[PatchedWheel],
    overlay: Overlay | None,
    torch: TorchTree,
    interpreter: Interpreter,
    context: Context,
) -> Verified:
    """Install the wheels into a scratch environment and check the running result.

    Args:
        wheels: The wheels of torch and torch_xla.
        overlay: The overlay of torch, if it has one.
        interpreter: The CPython to install them with.

    Raises:
        VerifyError: They do not install or import, or an interposition does not take effect.
    """
    if interpreter.path is None:
        reason = f"no CPython {interpreter.version} on PATH, in pyenv or in uv (give its path with --python)"
        context.console.warn(f"the wheels were not installed and imported: {reason}")
        return Verified(False, reason, {})
    interposed = overlay.interposed if overlay is not None else ()
    with context.cache.lock("verify"), context.cache.scratch("verify") as scratch:
        python = _install(wheels, interpreter, scratch / "venv", context)
        callers = calling_libraries(torch, site_packages(python)) if interposed else []
        slots = {caller.name: relocation_slots(caller, interposed) for caller in callers}
        counts = _checked_counts(interposed, slots)
        answer = _ask_probe(python, [wheel.project for wheel in wheels], slots, scratch, context.runner)
    for wheel in wheels:
        version, path = answer.imported[wheel.project]
        if version != wheel.version or not path.is_relative_to(scratch):
            _fail(wheel, f"import {wheel.project} gives version {wheel.version}", f"{version} from {path}")
    check_slots(answer.slots)
    context.console.note(f"{len(counts)} interposed symbols lead to the overlay; pip check and import succeed")
    return Verified(True, "", counts)


def calling_libraries(torch: TorchTree, site: Path) -> list[Path]:
    """Return the libraries whose calls must go to an interposed function, with the extension if `site` has it."""
    return [*(torch.lib / name for name in _CALLERS), *site.glob(EXTENSION)]


def _checked_counts(interposed: Sequence[str], slots: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[str, int]:
    """Return how many slots of the libraries each symbol has."""
    counts = {symbol: sum(len(places[symbol]) for places in slots.values()) for symbol in interposed}
    for symbol, count in counts.items():
        if count == 0:
            raise VerifyError(
                f"interposing {symbol} has no effect",
                expected=f"{' or '.join((*_CALLERS, EXTENSION))} calls it through a slot that the loader fills",
                found="no such slot",
                next_step="Interpose another function, one that `readelf -rW` lists for these libraries.",
            )
    return counts


def _install(wheels: Sequence[PatchedWheel], interpreter: Interpreter, folder: Path, context: Context) -> Path:
    """Install the wheels and what they require; return the Python."""
    try:
        needed = [line for wheel in wheels for line in requirements(wheel.path)]
        bases = [wheel.base for wheel in wheels]
        upstream = upstream_environment(bases, needed, interpreter, indexes=(), context=context)

        def fill(python: Path, _: Install) -> None:
            copy_environment(upstream, python)
            for wheel in wheels:
                lay_wheel(wheel.path, wheel.base.path, python)

        python = make_environment("verify", [], interpreter, "the wheels", fill=fill, context=context, folder=folder)
        context.runner.run([tool("uv"), "pip", "check", "--python", python], name="check")
    except (CommandError, FetchError) as error:
        raise VerifyError(
            "the wheels cannot be installed",
            expected="uv installs what they require, and `uv pip check` finds no conflict",
            found=error.found,
            next_step=f"{error.next_step}. Without a package index, give --no-verify-install.",
        ) from error
    return python


def check_slots(slots: dict[str, dict[str, list[str]]]) -> None:
    """Check that slots lead to the overlay of torch.

    Args:
        slots: For each calling library and symbol, the libraries that the slots lead to.

    Raises:
        VerifyError: One of them leads elsewhere.
    """
    expected = overlay_name("torch")
    for caller, symbols in slots.items():
        for symbol, libraries in symbols.items():
            wrong = sorted({library for library in libraries if Path(library).name != expected})
            if wrong:
                raise VerifyError(
                    f"{symbol} is not interposed",
                    expected=f"{caller} calls it in {expected}",
                    found=f"it calls it in {', '.join(wrong)}",
                    next_step="Check that nothing else (such as LD_PRELOAD) loads torch's libraries before torch does.",
                )


def _ask_probe(
    python: Path,
    projects: Sequence[str],
    slots: dict[str, dict[str, tuple[int, ...]]],
    scratch: Path,
    runner: Runner,
) -> _Answer:
    question = scratch / "question.json"
    question.write_text(json.dumps({"projects": projects, "slots": slots, "stubs": STUBS}), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("LD_", "PYTHON"))}
    # With this the loader fills the slots at load time and not at the first call.
    environment.update(LD_BIND_NOW="1", PJRT_DEVICE="CPU")
    completed = runner.run([python, "-I", _PROBE, question], name="import", env=environment, cwd=scratch, check=False)
    if completed.returncode != 0:
        raise VerifyError(
            "the installed wheels cannot be imported",
            expected=f"`import {', '.join(projects)}` succeeds",
            found=completed.tail,
            next_step=f"Read the whole log: {completed.log}",
        )
    answer = json.loads(completed.output.splitlines()[-1])
    return _Answer(
        imported={project: (answer[project][0], Path(answer[project][1])) for project in projects},
        slots=answer["slots"],
    )


def _fail(wheel: PatchedWheel, expected: str, found: str) -> NoReturn:
    raise VerifyError(
        f"{wheel.path.name} fails a check",
        expected=expected,
        found=found,
        next_step="Build again; if it fails again, this is a bug in castoff.",
    )
