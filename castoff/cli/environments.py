"""doctor and audit: examine an environment, and a program in it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from castoff.audit import program as audit_program
from castoff.audit import show as audit_show
from castoff.audit.accumulations import NARROW_ACCUMULATION
from castoff.audit.departures import LEAVES_DEVICE
from castoff.builder import doctor
from castoff.builder.environments import ABOUT, Environments, Kind, program_python
from castoff.cli.boundary import boundary
from castoff.cli.commands import command
from castoff.cli.options import (
    CallsOption,
    IndexOption,
    JsonOption,
    PinOption,
    ProgramPythonOption,
    VerboseOption,
    Wheels,
)
from castoff.core.console import Console
from castoff.core.context import command_context
from castoff.core.places import ROOT
from castoff.model.pin import DEFAULT_PIN, load_pin

app = typer.Typer()


_KINDS = "".join(f"\n\n{kind.value}: {about}." for kind, about in ABOUT.items())


@command(app, "env", "castoff env patched", more=_KINDS)
def env_command(
    kind: Annotated[Kind, typer.Argument(help="What is in it.")],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Where to make it.", show_default="castoff's cache, which keeps it"),
    ] = None,
    pin: PinOption = DEFAULT_PIN,
    dist: Annotated[
        Path | None,
        typer.Option(help="The folder with the patched wheels.", show_default="dist/PIN-cpu; tpu: dist/PIN-tpu"),
    ] = None,
    index: IndexOption = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Make an environment in seconds, or take it from the cache, and print its Python."""
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        with command_context(console) as context:
            environments = Environments(context, tuple(index or ()))
            python = environments.make(kind, load_pin(ROOT / "pins", pin), folder=folder, dist=dist)
        console.result(str(python), {"python": str(python)})


@command(app, "doctor", "castoff doctor --python ENVIRONMENT/bin/python")
def doctor_command(
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The Python of the environment to look at.",
            show_default="the active one, or one with the wheels in dist",
        ),
    ] = None,
    pin: PinOption = DEFAULT_PIN,
    require_tpu: Annotated[bool, typer.Option("--require-tpu", help="Count a missing TPU as a fault.")] = False,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Examine an environment with the wheels: versions, ABI, topics, interpositions, libtpu, TPU.

    Exit status 1 if there are problems. On a host that has the wheels only: `python -m castoff_doctor`.
    """
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        with command_context(console) as context:
            here = program_python(python, load_pin(ROOT / "pins", pin), context)
            well, findings = doctor.examine(ROOT, here, require_tpu, context)
        verdict = "no problems found" if well else "problems found"
        data: dict[str, object] = {"well": well, "findings": [asdict(finding) for finding in findings]}
        console.result(f"{doctor.report(findings)}\n{verdict}", data)
    if not well:
        raise typer.Exit(1)


@command(app, "audit", "castoff audit train.py:step --compare stock")
def audit_command(
    program: Annotated[str, typer.Argument(metavar="PROGRAM.py:FUNCTION", help="The function that is one step.")],
    meta: Annotated[
        bool,
        typer.Option("--meta", help="Run it on the meta device, without any device or memory."),
    ] = False,
    max_casts: Annotated[
        int | None, typer.Option(min=0, help="Exit with 1 if the step has more casts between float dtypes.")
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Exit with 1 if it has one of this kind: exact-widening, lossy-narrowing, exact-round-trip, "
            "lossy-round-trip, or, which are no casts, narrow-accumulation and leaves-device. May be given more than "
            "once.",
        ),
    ] = None,
    compare: Annotated[Wheels | None, typer.Option(help="Also audit it under stock wheels, and show both.")] = None,
    stock_python: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The Python of an environment with stock wheels, for --compare stock.",
            show_default="one that castoff makes",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option("--tpu", metavar="TOPOLOGY", help="Also count how many of them the TPU compiler keeps: v5e:2x2."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with everything to this file.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the whole report, IR included, as JSON to this file.")
    ] = None,
    write_lock: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the casts by module and reason to this lock file, for --check-lock."),
    ] = None,
    check_lock: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Exit with 1 if the casts are not those of this lock file; show the change."),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also show conversions from and to integers, and narrow accumulations."),
    ] = False,
    try_settings: Annotated[
        bool | None,
        typer.Option(
            "--try/--no-try",
            help="Audit it again with each setting that removes casts, to see how many.",
            show_default="with --html",
        ),
    ] = None,
    python: ProgramPythonOption = None,
    calls: CallsOption = 2,
    pin: PinOption = DEFAULT_PIN,
    index: IndexOption = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """List every cast of a step: its origin, its reason, its cost, and what removes it.

    The function is called without arguments, on CPU-XLA. Each dtype conversion of its forward, backward and
    optimizer is listed with its line and module, and traced to the IR.

    Exit status 1 if --max-casts, --forbid or --check-lock is violated.
    """
    if meta and (html or compare or stock_python or topology or try_settings):
        raise typer.BadParameter("--meta has no graph: it goes with --report, --max-casts, --forbid and locks")
    for kind in (NARROW_ACCUMULATION, LEAVES_DEVICE) if meta else ():
        if kind in (forbid or ()):
            raise typer.BadParameter(f"--meta has no graph, in which {kind} would be seen")
    shown = Console(json_lines=json_lines, verbose=verbose)
    with boundary(shown, stopped="stopped; the audit is not finished, and no file was written") as console:
        request = audit_program.parse_request(program, calls, python, topology)
        audit_program.check_kinds(forbid or ())
        audit_program.check_lock_file(check_lock)
        audit_program.check_files(html, report, write_lock)
        files = audit_show.Files(html, report, write_lock)
        chosen = load_pin(ROOT / "pins", pin)
        with command_context(console) as context:
            if meta:
                found = audit_program.meta_program(request, chosen, context)
                faults = audit_show.show_meta(
                    program, found, max_casts, forbid or (), lock=check_lock, files=files, console=console
                )
            else:
                reports = audit_program.audit_program(
                    request,
                    chosen,
                    compare_stock=compare is not None,
                    stock_python=stock_python,
                    indexes=tuple(index or ()),
                    context=context,
                )
                trying = html is not None if try_settings is None else try_settings
                trials = audit_program.try_settings(request, reports["here"], chosen, context) if trying else []
                faults = audit_show.show(
                    program,
                    reports,
                    max_casts,
                    forbid or (),
                    lock=check_lock,
                    files=files,
                    everything=everything,
                    trials=trials,
                    console=console,
                )
    if faults:
        raise typer.Exit(1)
