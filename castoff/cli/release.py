"""release: a folder with the package, wheels and a package index, to be served and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from castoff.cli.boundary import boundary
from castoff.cli.commands import command
from castoff.cli.options import IndexOption, InstallOption, JsonOption, VerboseOption
from castoff.core.console import Console
from castoff.core.places import ROOT
from castoff.release.make import Asked, make_release
from castoff.release.provenance import LOCAL_BUILDER

app = typer.Typer()


@command(app, "release", "castoff release --pin 2.9 --python 3.11")
def release_command(
    pin: Annotated[
        list[str] | None,
        typer.Option(
            help="A pin whose wheels are released. May be given more than once.", show_default="those of the wheels"
        ),
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERSION",
            help="A CPython whose wheels are released. May be given more than once.",
            show_default="those of the wheels",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All pins and all their CPythons.")] = False,
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="DIR", help="A folder of output folders, such as another dist, to take wheels from."
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="Where the output folder, release, goes; and where wheels are.", show_default="dist"),
    ] = ROOT / "dist",
    index: IndexOption = None,
    verify_install: InstallOption = True,
    dirty: Annotated[
        bool, typer.Option("--dirty", help="Also with changes that are not committed; the provenance says so.")
    ] = False,
    builder: Annotated[
        str, typer.Option(metavar="URI", help="Who makes it, for the provenance.", show_default="by hand")
    ] = LOCAL_BUILDER,
    repository: Annotated[
        str | None, typer.Option(metavar="URL", help="The address of this repository, for the provenance.")
    ] = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Make a release: castoff's package and wheels, with a package index that any file server or file:// serves.

    Wheels in the output folders are used if they are of this tree; what is missing is built. Beside the wheels are
    requirements files with hashes, SHA256SUMS, a CycloneDX bill of materials and the provenance (in-toto, SLSA v1).
    It is not signed: .github/workflows/release.yml does that. `castoff verify --release` checks it.
    """
    asked = Asked(
        pins=tuple(pin or ()),
        pythons=tuple(python or ()),
        everything=everything,
        earlier=tuple(path.absolute() for path in earlier or ()),
        indexes=tuple(index or ()),
        out=out.absolute(),
        verify_install=verify_install,
        dirty=dirty,
        builder=builder,
        repository=repository,
    )
    shown = Console(json_lines=json_lines, verbose=verbose)
    with boundary(shown, stopped="stopped; the folder of the release is unchanged") as console:
        make_release(asked, console)
