"""build and verify: make wheels and check them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from castoff.builder.pipeline import build
from castoff.builder.plan import Request, dry_run
from castoff.builder.recorded import verify_folder
from castoff.cli.boundary import boundary
from castoff.cli.commands import command
from castoff.cli.options import IndexOption, InstallOption, JsonOption, Target, VerboseOption
from castoff.core.console import Console
from castoff.core.places import ROOT
from castoff.inplace.package import build_package
from castoff.model.pin import DEFAULT_PIN, pair_names
from castoff.release.check import check_release, report
from castoff.upstream.commands import compare_upstream_tests

app = typer.Typer()


@command(app, "build", "castoff build --target cpu")
def build_command(
    target: Annotated[Target, typer.Option(help="What the wheels are for.")],
    pin: Annotated[
        list[str] | None,
        typer.Option(
            help="The pair of upstream releases to start from; see pins/. The package may have several.",
            show_default=f"{DEFAULT_PIN}; package: all",
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|PATH",
            help="The CPython that the wheels are for, as a version (3.11) or the path of an interpreter.",
            show_default="the one that runs castoff",
        ),
    ] = None,
    index: IndexOption = None,
    out: Annotated[
        Path,
        typer.Option(help="Where the output folder, such as 2.9-cpu, goes.", show_default="dist in castoff's tree"),
    ] = ROOT / "dist",
    verify_install: InstallOption = True,
    dry_run_only: Annotated[bool, typer.Option("--dry-run", help="Show the plan, and do nothing.")] = False,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Build patched torch and torch_xla wheels from the stock ones.

    The output folder has the two wheels, constraints.txt (so that `pip install -c` does not install stock torch again)
    and manifest.json (what went in). It is replaced in one step, or not at all.

    The package (--target package) is castoff's own command line as one wheel, with the compiled overlays of pins, for
    `castoff install` in environments that have the stock wheels.

    In a container, with docker, podman or buildah: ./build.sh --docker and the same options.
    """
    if pin is not None and len(pin) > 1 and target is not Target.PACKAGE:
        raise typer.BadParameter("only --target package takes several", param_hint="--pin")
    if dry_run_only and target is Target.PACKAGE:
        raise typer.BadParameter("--target package has no plan to show", param_hint="--dry-run")
    request = Request(
        target=target.value,
        pin=pin[0] if pin else DEFAULT_PIN,
        python=python,
        indexes=tuple(index or ()),
        out=out,
        verify_install=verify_install,
    )
    shown = Console(json_lines=json_lines, verbose=verbose)
    with boundary(shown, stopped="stopped; the output folder is unchanged") as console:
        if target is Target.PACKAGE:
            build_package(request, pin or pair_names(ROOT / "pins"), console)
        elif dry_run_only:
            dry_run(request, console)
        else:
            build(request, console)


@command(app, "verify", "castoff verify dist/2.9-cpu")
def verify_command(
    folder: Annotated[Path, typer.Argument(help="A folder that `castoff build` made, such as dist/2.9-cpu.")],
    release: Annotated[
        bool, typer.Option("--release", help="It is one that `castoff release` made: check hashes, index, provenance.")
    ] = False,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The interpreter to install the wheels with.",
            show_default="one of the wheels' version, if there is one",
        ),
    ] = None,
    index: IndexOption = None,
    verify_install: InstallOption = True,
    upstream_tests: Annotated[
        bool,
        typer.Option(
            "--upstream-tests", help="Instead, run upstream's own tests on stock and on these wheels, and compare."
        ),
    ] = False,
    whole: Annotated[bool, typer.Option("--all", help="All of upstream's test suites; takes hours.")] = False,
    environments: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="STOCK PATCHED", help="The Pythons of two environments to use, instead of new ones."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--checkout", help="A checkout of torch to take upstream's tests from.")
    ] = None,
    outcomes: Annotated[
        Path | None, typer.Option(help="A folder where the outcomes on stock wheels are kept for the next run.")
    ] = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Check wheels that were built before.

    They are compared with upstream's member by member, and their libraries with what the platform tag allows. Then
    they are installed and imported, and the interpositions are checked in the running process.

    With --release nothing is installed: every file of a release is compared with its hash, and index, bill of
    materials and provenance with the wheels.
    """
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        if release:
            checked = check_release(folder)
            console.result(report(folder, checked), {"out": str(folder), **asdict(checked)})
            return
        if upstream_tests:
            stock, patched = environments or (None, None)
            compare_upstream_tests(
                folder,
                stock=stock,
                patched=patched,
                source=source,
                known=outcomes,
                whole=whole,
                indexes=tuple(index or ()),
                console=console,
            )
            return
        verify_folder(folder, python=python, indexes=tuple(index or ()), install=verify_install, console=console)
