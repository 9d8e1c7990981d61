"""New pins: a pair of upstream releases found in the package index, and every topic tried on it.

Where torch_xla has no release for that torch, the pin is of torch alone.

pins/<name>.toml gets every hash, and each topic.toml the result of the trial. What cannot be found out
is printed as a list of manual work. Existing files are not overwritten, so that the command can be run
again after that work.
"""

from __future__ import annotations

import fnmatch
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from auditwheel.policy import WheelPolicies
from packaging.utils import parse_wheel_filename

from castoff.builder.apply import Fit, try_topics
from castoff.builder.compile import (
    TORCH_LIBRARIES,
    Overlay,
    TorchTree,
    compile_overlay,
    cxx11_abi,
    find_compiler,
    unpack_torch,
)
from castoff.builder.fetch import BaseWheel, fetch_release, fetch_wheels
from castoff.builder.package_index import Release, find_release
from castoff.builder.verify import EXTENSION, calling_libraries, newer_than, policies, verify_overlay
from castoff.core.console import Console
from castoff.core.context import Context, command_context
from castoff.core.errors import CompileError, PinError, VerifyError
from castoff.core.places import ROOT
from castoff.formats.elf import defined_symbols, needed_versions, relocation_slots
from castoff.model.hunks import parts_of, text_of, with_pin, write
from castoff.model.pin import Pin, load_pin, pair_names
from castoff.model.topics import PYTHON_SUFFIXES, OverlayTable, PinOverlayTable, Symbols, Topic, load_topics
from castoff.upstream.newer import best_pins

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""The CPythons to look for: castoff's own files are written for 3.10 and later."""

_EXACT_PLATFORM = re.compile(r"manylinux_2_\d+_x86_64")
_MOST_ROUNDS = 5
_TITLES = {"torch": "PyTorch", "torch_xla": "PyTorch/XLA"}


@dataclass
class Found:
    """The results of trying the topics."""

    states: dict[str, str] = field(default_factory=dict)  # for each topic's full name, its state on the pin
    fits: dict[str, Fit] = field(default_factory=dict)  # how the files and hunks fit
    symbols: dict[str, Symbols] = field(default_factory=dict)  # for each topic with C++, what its overlay part exports
    hand: list[str] = field(default_factory=list)  # what needs manual work

    def cannot(self, topic: Topic, reason: str) -> None:
        """Record that a topic cannot be on the pin."""
        self.states[topic.key] = f"cannot: {reason}"
        self.hand.append(f"{topic.key}: {reason}")


def new_pin(name: str, *, indexes: Sequence[str], console: Console, root: Path = ROOT) -> None:
    """Make a pin, try every topic on it, and print what needs manual work.

    Args:
        name: Its name, such as "2.8".
        indexes: Package indexes to use besides those in pip's configuration.
        root: The tree with pins and patches; both are written to.

    Raises:
        PinError: The package index does not have such a pair of releases.
        CastoffError: The wheels are not available, or do not have the expected form.
    """
    if re.fullmatch(r"\d+\.\d+", name) is None:
        raise PinError(
            f"{name} is not a name of a pin",
            expected="the first two parts of a release, like 2.8",
            found=name,
            next_step="The newest patch releases of it are found in the package index.",
        )
    path = root / "pins" / f"{name}.toml"
    hand: list[str] = []
    with command_context(console) as context:
        if path.is_file():
            console.note(f"{path.name} exists and is not changed")
        else:
            with console.step("look up", f"torch {name}, and torch_xla {name} if there is one, in the package index"):
                text, hand = pin_text(name, _newest_pin(root), indexes, context)
            path.write_text(text, encoding="utf-8")
        pin = load_pin(root / "pins", name)
        topics = load_topics(root / "patches")
        found = _try(pin, topics, indexes, context)
    written = [path.relative_to(root).as_posix()]
    for topic in topics:
        if topic.key in found.states:
            written += write_topic(topic, pin.name, found, root)
    hand += found.hand
    hand.append("docs/pins.md: the table of pins, and the column or row of the pin in other tables")
    hand.append(f"the tests: ./build.sh --target cpu --pin {name}, then ci/test.sh with its wheels")
    _report(pin, topics, found, hand, written=written, console=console)


def _newest_pin(root: Path) -> Pin:
    return load_pin(root / "pins", pair_names(root / "pins")[0])


def pin_text(name: str, model: Pin, indexes: Sequence[str], context: Context) -> tuple[str, list[str]]:
    """Return the text of a pins file, and what needs manual work in it.

    Args:
        model: A pin to take repositories and indexes from.
        indexes: Package indexes to use besides those in pip's configuration.

    Raises:
        PinError: The package index does not have such a pair of releases.
    """
    hand: list[str] = []
    xla = _releases("torch_xla", f"=={name}.*", indexes, context)
    same = f"=={next(iter(xla.values())).version}" if xla else f"=={name}.*"
    torch = _releases("torch", same, indexes, context) or _releases("torch", f"=={name}.*", indexes, context)
    releases = {"torch": torch, "torch_xla": xla} if xla else {"torch": torch}
    pythons = set.intersection(*map(set, releases.values()))
    if not pythons:
        raise _no_release("torch", name)
    python = _python_of(pythons)
    facts = {
        project: _facts(project, fetch_release(own[python], indexes=indexes, context=context), own[python], context)
        for project, own in releases.items()
    }
    runtime = {library: xla[python].pinned(library) for library in ("libtpu", "jax", "jaxlib")} if xla else {}
    if None in runtime.values():
        hand.append(f"[runtime]: torch_xla's metadata pins only {runtime}")
    cpu = _cpu_builds(facts["torch"].version, model, torch, context)
    if not cpu:
        hand.append("torch's CPU builds: their index was not reached or has none; add them as [variants.cpu]")
    tags = " and ".join(fact.tag for fact in facts.values())
    hand.append(f"tags and commits: compare {tags} with upstream's git")
    if xla:
        hand.append("[tpu]: libtpu by hash and the lock file of its compiler (ci/relock.sh), to build for TPUs")
    return _text(name, model, facts, releases, cpu=cpu, runtime=runtime), hand


@dataclass(frozen=True)
class Facts:
    """What a wheel states about its release."""

    version: str
    tag: str
    commit: str
    platform: str
    abi: int | None
    build: str


def _releases(project: str, versions: str, indexes: Sequence[str], context: Context) -> dict[str, Release]:
    """Return the wheels of the newest version, by CPython."""
    found = {python: find_release(project, versions, python, indexes, context) for python in PYTHONS}
    there = {python: release for python, release in found.items() if release is not None}
    newest = max((_parts(release.version) for release in there.values()), default=())
    return {python: release for python, release in there.items() if _parts(release.version) == newest}


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.partition("+")[0].split(".")))


def _no_release(project: str, name: str) -> PinError:
    return PinError(
        f"there is no release {name}",
        expected=f"wheels of torch {name} in the package index; if it has torch_xla {name}, for the same CPython",
        found=f"none of {project} for CPython {', '.join(PYTHONS)}",
        next_step="`pip index versions torch` lists the releases; give another index with --index.",
    )


def _python_of(pythons: set[str]) -> str:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    return running if running in pythons else max(pythons, key=_parts)


def _facts(project: str, wheel: BaseWheel, release: Release, context: Context) -> Facts:
    with zipfile.ZipFile(wheel.path) as archive:
        said = archive.read(f"{project}/version.py").decode()
        names = [f"torch/lib/{name}" for name in TORCH_LIBRARIES] if project == "torch" else []
        names += fnmatch.filter(archive.namelist(), EXTENSION)
        with context.cache.lock("facts"), context.cache.scratch("facts") as scratch:
            archive.extractall(scratch, [name for name in names if name in archive.namelist()])
            libraries = sorted(scratch.rglob("*.so"))
            platform = _platform(release.file, libraries)
            abi = cxx11_abi(scratch / "torch/lib/libc10.so") if project == "torch" else None
    commit = re.search(r"(?m)^(?:git_version|__xla_gitrev__)\s*=\s*'([0-9a-f]{40})'", said)
    if commit is None:
        raise PinError(
            f"{wheel.path.name} does not state the commit that it was built from",
            expected="git_version or __xla_gitrev__ in its version.py",
            found=said,
            next_step="Write the pins file by hand.",
        )
    cuda = re.search(r"(?m)^cuda\b.*=\s*'([\d.]+)'", said)
    version = release.version.partition("+")[0]
    build = f"CUDA {cuda[1]} build, as on PyPI" if cuda else "the build on PyPI"
    return Facts(version, f"v{version}", commit[1], platform, abi, build)


def _platform(file: str, libraries: Sequence[Path]) -> str:
    """Return the platform tag of a wheel; from the needs of its libraries if its name has an old or vague one."""
    for tag in parse_wheel_filename(file)[3]:
        if _EXACT_PLATFORM.fullmatch(tag.platform):
            return tag.platform
    symbols = [symbol for library in libraries for symbol in needed_versions(library)]
    known = sorted(_platforms(policies()), key=lambda name: int(name.split("_")[2]))
    return next(name for name in known if not newer_than(symbols, name))


def _platforms(every: WheelPolicies) -> Iterator[str]:
    return (policy.name for policy in every if _EXACT_PLATFORM.fullmatch(policy.name))


def _cpu_builds(version: str, model: Pin, torch: Mapping[str, Release], context: Context) -> dict[str, Release]:
    """Return the CPU builds of torch, by CPython, if their index can be reached."""
    index = next((variant.index for variant in model.variants.values() if variant.index is not None), None)
    if index is None:
        return {}
    known = {release.sha256 for release in torch.values()}
    found: dict[str, Release] = {}
    for python in torch:
        release = find_release("torch", f"=={version}", python, (), context, only_index=index)
        if release is None:
            break  # one is enough to know that it cannot be reached
        if release.sha256 not in known:
            found[python] = release
    return found


def _text(
    name: str,
    model: Pin,
    facts: Mapping[str, Facts],
    releases: Mapping[str, Mapping[str, Release]],
    *,
    cpu: Mapping[str, Release],
    runtime: Mapping[str, str | None],
) -> str:
    platform = max((fact.platform for fact in facts.values()), key=lambda tag: int(tag.split("_")[2]))
    parts = [
        f"# {' and '.join(_TITLES[project] + ' ' + fact.version for project, fact in facts.items())}.\n"
        f'name = "{name}"\nplatform = "{platform}"\n'
        f"cxx11_abi = {facts['torch'].abi}                     # _GLIBCXX_USE_CXX11_ABI of the wheels' C++\n"
    ]
    for project, fact in facts.items():
        own = f'platform = "{fact.platform}"\n' if fact.platform != platform else ""
        parts.append(
            f'[{project}]\nversion = "{fact.version}"\nrepository = "{model.upstream(project).repository}"\n'
            f'tag = "{fact.tag}"\ncommit = "{fact.commit}"\n{own}'
        )
    if runtime and None not in runtime.values():
        rows = "".join(f'{library} = "{version}"\n' for library, version in runtime.items())
        parts.append(f"# The runtime for this pin on a device.\n[runtime]\n{rows}")
    parts.append("# The builds that upstream published. An index is given if it is not the default one.\n")
    parts[-1] += f'[variants.cuda]\ntitle = "{facts["torch"].build}"\n'
    if cpu:
        variant = next(variant for variant in model.variants.values() if variant.index is not None)
        parts.append(f'[variants.cpu]\ntitle = "{variant.title}"\nindex = "{variant.index}"\n')
    xla = releases.get("torch_xla", {})
    if xla:
        parts.append('[variants.xla]\ntitle = "the one build of torch_xla, as on PyPI"\n')
    parts.append("# The wheels that a build may start from, by variant and CPython.\n")
    for table, wheels in {"torch.cuda": releases["torch"], "torch.cpu": cpu, "torch_xla.xla": xla}.items():
        if wheels:
            rows = "".join(f'"{python}" = "{release.sha256}"\n' for python, release in wheels.items())
            parts.append(f"[wheels.{table}]\n{rows}")
    return "\n".join(parts)


def _try(pin: Pin, topics: Sequence[Topic], indexes: Sequence[str], context: Context) -> Found:
    """Try the topics that do not name a pin yet on its wheels."""
    found = Found()
    python = _python_of(set(pin.pythons))
    with context.console.step("fetch", "its wheels, by hash"):
        bases = fetch_wheels(pin, python, indexes=indexes, context=context)
        torch = unpack_torch(bases["torch"], pin, context.cache)
    with context.console.step("apply", f"{len(topics)} topics"):
        _apply(pin, topics, bases, found, context)
    with context.console.step("compile", "the overlays"):
        _choose_symbols(pin, topics, torch, bases, found, context=context)
        _compile(pin, topics, torch, found, context=context)
    return found


def _apply(pin: Pin, topics: Sequence[Topic], bases: Mapping[str, BaseWheel], found: Found, context: Context) -> None:
    version = pin.torch.version
    with context.cache.lock("new-pin"), context.cache.scratch("new-pin") as scratch:
        order = {topic.key: best_pins(topic, version, whole=False) for topic in topics}
        for project, base in bases.items():
            own = [topic for topic in topics if topic.project == project]
            (scratch / project).mkdir()
            for fit in try_topics(own, order, base.path, scratch / project, context.runner):
                found.fits[fit.topic] = fit
    for topic in topics:
        if pin.name in topic.pins:
            continue
        if topic.project not in pin.projects:
            found.states[topic.key] = f"cannot: {topic.project} has no release for torch {pin.name}"
            continue
        failed = found.fits[topic.key].failed
        if failed:
            where = ", ".join(f"{trial.path} ({trial.outcome.value})" for trial in failed)
            found.cannot(topic, f"does not apply to {pin.name}'s wheel: {where}")
            found.hand += [f"  {trial.path}: {trial.detail}" for trial in failed]
        else:
            _check_required(topic, topics, pin, found)
            nearest = next((one for one in order[topic.key] if topic.hunks(one)), None)
            if found.fits[topic.key].pin != nearest:
                taken = found.fits[topic.key].pin
                found.hand.append(
                    f"{topic.key}: its hunks are those of {taken}; those of {nearest}, nearer, do not fit"
                )


def _check_required(topic: Topic, topics: Sequence[Topic], pin: Pin, found: Found) -> None:
    """Record that a topic applies, unless one that it requires does not."""
    by_key = {one.key: one for one in topics}
    for key in topic.requires:
        state = found.states.get(key) or by_key[key].pins.get(pin.name, "")
        if state.startswith("cannot"):
            found.cannot(topic, f"it depends on {key}")
            return
    found.states[topic.key] = "applies"


def _choose_symbols(
    pin: Pin,
    topics: Sequence[Topic],
    torch: TorchTree,
    bases: Mapping[str, BaseWheel],
    found: Found,
    *,
    context: Context,
) -> None:
    """Choose the functions that each topic interposes: those of the nearest pin whose functions all exist."""
    defined = defined_symbols(torch.lib / "libtorch_cpu.so")
    chosen = [t for t in topics if found.states.get(t.key) == "applies" and t.sources()]
    orders = {topic.key: best_pins(topic, pin.torch.version, whole=False) for topic in chosen}
    sets = {topic.key: [topic.overlay_symbols(one).interpose for one in orders[topic.key]] for topic in chosen}
    called = _called({name for each in sets.values() for names in each for name in names}, torch, bases, context)
    for topic in chosen:
        there = [names for names in sets[topic.key] if set(names) <= defined & called]
        if not there:
            missing = ", ".join(sorted(set(sets[topic.key][0]) - defined)) or "calls of them through slots"
            found.cannot(topic, f"libtorch_cpu of {pin.name} lacks the functions that it interposes: {missing}")
            continue
        newest = max(orders[topic.key], key=_parts)
        found.symbols[topic.key] = Symbols(there[0], topic.overlay_symbols(newest).exports)
    _drop_dependents(topics, pin, found)


def _called(names: set[str], torch: TorchTree, bases: Mapping[str, BaseWheel], context: Context) -> frozenset[str]:
    """Those that a library of the pin calls through a slot that the loader fills."""
    with context.cache.lock("called"), context.cache.scratch("called") as scratch:
        if "torch_xla" in bases:
            with zipfile.ZipFile(bases["torch_xla"].path) as archive:
                archive.extractall(scratch, fnmatch.filter(archive.namelist(), EXTENSION))
        slots = [relocation_slots(caller, names) for caller in calling_libraries(torch, scratch)]
    return frozenset(name for name in names if any(places[name] for places in slots))


def _drop_dependents(topics: Sequence[Topic], pin: Pin, found: Found) -> None:
    for topic in topics:
        if found.states.get(topic.key) == "applies":
            _check_required(topic, topics, pin, found)


def _compile(pin: Pin, topics: Sequence[Topic], torch: TorchTree, found: Found, *, context: Context) -> None:
    """Compile the overlays of the topics that apply so far; those whose C++ does not compile are left out."""
    compiler = find_compiler(context.runner)
    for project in pin.projects:
        for _ in range(_MOST_ROUNDS):
            chosen = [_with(topic, pin, found) for topic in topics if _is_in(topic, pin, found)]
            try:
                overlay = compile_overlay(project, chosen, pin, torch, compiler, context=context)
            except CompileError as error:
                if not _blame(error, topics, found):
                    _give_up(project, error, topics, found)
                _drop_dependents(topics, pin, found)
                continue
            if overlay is not None:
                _verify(overlay, torch, pin, found)
            break


def _is_in(topic: Topic, pin: Pin, found: Found) -> bool:
    return found.states.get(topic.key, topic.pins.get(pin.name)) == "applies"


def _with(topic: Topic, pin: Pin, found: Found) -> Topic:
    overlay = topic.overlay
    if topic.key in found.symbols:
        own = PinOverlayTable(interpose=_own_interpose(topic, found.symbols[topic.key]))
        overlay = OverlayTable.model_validate({**dict(overlay), pin.name: own})
    return topic.model_copy(update={"pins": {**topic.pins, pin.name: "applies"}, "overlay": overlay})


def _own_interpose(topic: Topic, symbols: Symbols) -> tuple[str, ...]:
    """Return the functions that a topic interposes on one pin, besides those that it interposes on every pin."""
    return tuple(name for name in symbols.interpose if name not in topic.overlay.interpose)


def _blame(error: CompileError, topics: Sequence[Topic], found: Found) -> bool:
    """Record each topic that cannot be compiled; return whether there was one."""
    blamed = False
    for topic in topics:
        if found.states.get(topic.key) != "applies":
            continue
        sources = {name: text for name, text in error.sources.items() if name.startswith(f"{topic.key}/")}
        symbols = found.symbols.get(topic.key, Symbols())
        absent = [name for name in (*symbols.interpose, *symbols.exports) if name in error.symbols]
        if sources:
            names = ", ".join(name.removeprefix(f"{topic.key}/") for name in sources)
            found.cannot(topic, f"its C++ does not compile there: {names}")
            found.hand += [f"  {name}: {text}" for name, text in sources.items()]
        elif absent:
            found.cannot(topic, f"compiled there, its C++ does not define {', '.join(absent)}")
        else:
            continue
        found.symbols.pop(topic.key, None)
        blamed = True
    return blamed


def _give_up(project: str, error: CompileError, topics: Sequence[Topic], found: Found) -> None:
    """Record that no topic of a project with C++ can be compiled, if no single one is the cause."""
    for topic in topics:
        if topic.project == project and topic.sources() and found.states.get(topic.key) == "applies":
            found.cannot(topic, f"the overlay does not build: {error.summary}")
            found.symbols.pop(topic.key, None)
    found.hand.append(f"the overlay of {project}: {error.summary}: {error.found}")


def _verify(overlay: Overlay, torch: TorchTree, pin: Pin, found: Found) -> None:
    try:
        verify_overlay(overlay, torch, pin.platform_of(overlay.project))
    except VerifyError as error:
        found.hand.append(f"the overlay of {overlay.project}: {error.summary}: {error.found}")


def write_topic(topic: Topic, pin: str, found: Found, root: Path) -> list[str]:
    """Write the results into a topic; return the files that were written."""
    path = topic.folder / "topic.toml"
    text = path.read_text(encoding="utf-8")
    state = found.states[topic.key]
    text = _with_pin(text, pin, state)
    written = [path]
    if state == "applies":
        own = _own_interpose(topic, found.symbols.get(topic.key, Symbols()))
        if own and pin not in topic.overlay.pins:
            rows = "".join(f'  "{name}",\n' for name in own)
            text = f'{text.rstrip()}\n\n[overlay."{pin}"]\ninterpose = [\n{rows}]\n'
        fit = found.fits[topic.key]
        proven = python_hunks(text_of(topic.hunks(fit.pin))) if fit.pin is not None else b""
        if proven and not topic.hunks(pin):
            folder = topic.folder / "hunks"
            wanted = with_pin(folder, pin, proven)
            written += [folder / name for name in write(folder, wanted) if name in wanted]
    path.write_text(text, encoding="utf-8")
    return [one.relative_to(root).as_posix() for one in written]


def python_hunks(patch: bytes) -> bytes:
    """Return the part of a patch that a wheel can prove: the hunks on Python files."""
    suffixes = tuple(suffix.encode() for suffix in PYTHON_SUFFIXES)
    return b"".join(part for part in parts_of(patch) if part.partition(b"\n")[0].endswith(suffixes))


def _with_pin(text: str, pin: str, state: str) -> str:
    """Return a topic.toml with a pin under [pins], in its place."""
    quoted = state.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    line = f'"{pin}" = "{quoted}"\n'
    head, header, rest = text.partition("[pins]\n")
    if not header:
        raise PinError(
            "a topic.toml has no line [pins]",
            expected="a line [pins], and a line for each pin under it",
            found=text,
            next_step="Write the table in this form.",
        )
    lines = rest.splitlines(keepends=True)
    at = 0
    for number, row in enumerate(lines):
        named = re.match(r'"(\d+\.\d+)"\s*=', row)
        if row.startswith("[") or (named is not None and _parts(named[1]) < _parts(pin)):
            break
        if named is not None:
            at = number + 1
    return head + header + "".join([*lines[:at], line, *lines[at:]])


def _report(
    pin: Pin, topics: Sequence[Topic], found: Found, hand: Sequence[str], *, written: Sequence[str], console: Console
) -> None:
    rows = [
        [
            topic.key,
            (found.fits[topic.key].pin or "none") if found.states.get(topic.key) == "applies" else "",
            found.states.get(topic.key) or f"{topic.pins[pin.name]} (already set)",
        ]
        for topic in topics
    ]
    below = "\n".join(
        ["written:", *(f"  {path}" for path in written), "", "needs manual work:", *(f"  {one}" for one in hand)]
    )
    data: dict[str, object] = {
        "pin": pin.name,
        "torch": pin.torch.version,
        "torch_xla": pin.torch_xla and pin.torch_xla.version,
        "pythons": list(pin.pythons),
        "topics": found.states,
        "written": list(written),
        "hand": list(hand),
    }
    console.table((f"topic on torch {pin.torch.version}", "hunks of", "found"), rows, below, data)
