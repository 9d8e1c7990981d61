"""The last step of a build from source: upstream's wheels, made here, become an output folder.

The C++ of torch's topics is in libtorch_cpu already, if the pin has the hunks for it. What is not, and that of
torch_xla's topics, is compiled against the torch that was just built and added to the wheels, as in an overlay
build.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from castoff.build.apply import Applied
from castoff.build.compile import compile_overlay, find_compiler, unpack_torch
from castoff.build.fetch import BaseWheel, fetch_libtpu, file_sha256
from castoff.build.manifest import Build, constraints, install_text, manifest, tree_revision, write_manifest
from castoff.build.output_folder import workplace
from castoff.build.repack import repack, with_overlay
from castoff.build.verify import verify_installed, verify_overlay, verify_structure
from castoff.core.cache import Cache
from castoff.core.console import Console
from castoff.core.context import Context
from castoff.core.errors import BuildError
from castoff.core.interpreter import find_interpreter
from castoff.core.places import ROOT, cache_root
from castoff.core.runner import Runner
from castoff.model.changelog import release_number
from castoff.model.pin import PROJECTS, Pin, PinnedWheel, load_pin
from castoff.model.topics import load_topics, select
from castoff.source.plan import projects_to_overlay
from castoff.upstream.repository import Repository


@dataclass(frozen=True)
class Made:
    """A wheel that upstream's build left.

    Attributes:
        project: The project.
        path: The file, in the folder ``dist`` of its checkout.
    """

    project: str
    path: Path

    def base(self, python: str) -> BaseWheel:
        """Return it in the form in which builds start from wheels."""
        return BaseWheel(self.path, PinnedWheel(self.project, python, "source", file_sha256(self.path)))

    @property
    def tree(self) -> Path:
        """The checkout that it was made from."""
        return self.path.parents[1]


def assemble(
    pin_name: str,
    target: str,
    python: str,
    *,
    wheels: Sequence[Path],
    out: Path,
    console: Console,
    root: Path = ROOT,
) -> Path:
    """Make an output folder from the wheels of a source build.

    Args:
        pin_name: The pin's name.
        target: What the wheels are for.
        python: The CPython that they are for: its path, or its version.
        wheels: The wheels of torch and of torch_xla, in the folders ``dist`` of their checkouts.
        out: The folder of all output folders.
        console: Shows how it goes.
        root: The tree with pins, patches and the changelog.

    Returns:
        The output folder.

    Raises:
        BuildError: A wheel is not there.
        CastoffError: What else went wrong; the output folder is as it was.
    """
    made = [Made(project, path.absolute()) for project, path in zip(PROJECTS, wheels, strict=True)]
    _check_there(made)
    with workplace(out.absolute(), f"{pin_name}-{target}", console) as place:
        context = Context(Cache(cache_root(), console), Runner(place.logs, console), console)
        pin = _as_built(load_pin(root / "pins", pin_name), made, context.runner)
        interpreter = find_interpreter(python, context.runner)
        version = f"castoff.{release_number(root / 'CHANGELOG.md')}"
        topics = select(load_topics(root / "patches"), pin.name)
        bases = {one.project: one.base(interpreter.version) for one in made}
        overlaid = projects_to_overlay(topics, pin.name)
        with console.step("compile", f"the overlay of {' and of '.join(overlaid)}"):
            torch = unpack_torch(bases["torch"], pin, context.cache)
            # The headers are this build's: an overlay in the cache may be for upstream's.
            torch = replace(torch, variant=f"source {bases['torch'].pinned.sha256}")
            compiler = find_compiler(context.runner)
            compiled = (
                compile_overlay(project, topics, pin, torch, compiler, version=version, context=context)
                for project in overlaid
            )
            overlays = {overlay.project: overlay for overlay in compiled if overlay is not None}
        with console.step("repack", version), context.cache.lock("assemble"), context.cache.scratch("assemble") as work:
            libraries = with_overlay(torch, overlays["torch"], work, context.runner) if "torch" in overlays else {}
            patched = [
                repack(
                    bases[project],
                    f"{pin.upstream(project).version}+{version}",
                    Applied({}, {}, ()),
                    overlay=overlays.get(project),
                    libraries=libraries if project == "torch" else {},
                    folder=place.folder,
                    console=console,
                    requires=pin.upstream(project).requires,
                )
                for project in PROJECTS
            ]
        with console.step("verify", "what was built"):
            for wheel in patched:
                verify_structure(wheel)
            for overlay in overlays.values():
                verify_overlay(overlay, torch, pin.platform_of(overlay.project))
            verified = verify_installed(patched, overlays.get("torch"), torch, interpreter, context)
        libtpu = None
        if target == "tpu":
            libtpu = fetch_libtpu(pin, interpreter.version, indexes=(), context=context)
            shutil.copy2(libtpu.path, place.folder / libtpu.path.name)
        build = Build(
            pin=pin,
            target=target,
            python=interpreter.version,
            version=version,
            revision=tree_revision(root),
            topics=topics,
            overlays=list(overlays.values()),
            wheels=patched,
            libtpu=libtpu,
            verified=verified,
        )
        if libtpu is not None:
            (place.folder / "INSTALL.txt").write_text(install_text(build), encoding="utf-8")
        (place.folder / "constraints.txt").write_text(constraints(build), encoding="utf-8")
        write_manifest(place.folder / "manifest.json", {**manifest(build), "mode": "source"})
    console.result(f"built {place.target} from source", {"out": str(place.target), "mode": "source"})
    return place.target


def _check_there(made: Sequence[Made]) -> None:
    for one in made:
        if not one.path.is_file():
            others = ", ".join(path.name for path in one.path.parent.glob("*.whl")) or "no wheel"
            raise BuildError(
                f"upstream's build left no such wheel of {one.project}",
                expected=str(one.path),
                found=f"{others} in {one.path.parent}",
                next_step="Remove that folder and the folder build beside it, and build again.",
            )


def _as_built(pin: Pin, made: Sequence[Made], runner: Runner) -> Pin:
    """Return a pin whose commits are those of the checkouts: the wheels say those, and the overlay asks for them."""
    torch, torch_xla = (
        replace(pin.upstream(one.project), commit=Repository(one.tree, runner).one("rev-parse", "HEAD")) for one in made
    )
    return replace(pin, torch=torch, torch_xla=torch_xla)
