"""The command line. Errors become output here and nowhere else."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from castoff import doctor
from castoff.audit import program as audit_program
from castoff.audit import show as audit_show
from castoff.build import ROOT, Request, build, dry_run, verify_folder
from castoff.console import Console
from castoff.context import means
from castoff.drift import show_drift
from castoff.errors import INTERNAL_EXIT_CODE, INTERRUPTED_EXIT_CODE, CastoffError, storage_error
from castoff.interpreter import active_python
from castoff.lint import lint_topics
from castoff.maintain import compare_upstream_tests, make_checkout, refresh_topic, update_checkout
from castoff.new_pin import new_pin
from castoff.pin import load_pin
from castoff.source.assemble import assemble
from castoff.source.run import source_build
from castoff.stage import stage
from castoff.status import read_status
from castoff.topics import load_topics
from castoff.tpu import program as tpu_program
from castoff.tpu.environment import compiler_environment, results

app = typer.Typer(
    name="castoff",
    help="Patched PyTorch and PyTorch/XLA wheels in which dtypes mean what they say.\n\n"
    "Start with `castoff build --target cpu`: the wheels are then in dist/2.9-cpu/.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)


tpu = typer.Typer(help="The TPU compiler, on a machine without a TPU.", no_args_is_help=True)
app.add_typer(tpu, name="tpu")

pin_app = typer.Typer(help="The pins: pairs of upstream releases to start from.", no_args_is_help=True)
app.add_typer(pin_app, name="pin")


class Target(StrEnum):
    """What wheels can be built for."""

    CPU = "cpu"
    TPU = "tpu"


class Mode(StrEnum):
    """How wheels can be built."""

    OVERLAY = "overlay"
    SOURCE = "source"


class Wheels(StrEnum):
    """Whose wheels a program can be compared under."""

    STOCK = "stock"


class Project(StrEnum):
    """What can be checked out."""

    TORCH = "torch"
    TORCH_XLA = "torch_xla"


VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show each command that is run.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON object a line, for programs.")]
IndexOption = Annotated[
    list[str] | None,
    typer.Option(
        "--index",
        metavar="URL",
        help="A package index to look at besides those that pip is configured with. May be given more than once. "
        "Wherever a wheel comes from, it is accepted by its hash only.",
    ),
]
InstallOption = Annotated[
    bool,
    typer.Option(
        "--verify-install/--no-verify-install",
        help="Install the wheels into a scratch environment, import them, and look where each interposed symbol "
        "leads. That needs a Python of the right version, and torch's dependencies from a package index.",
    ),
]


ProgramPythonOption = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="The Python of the environment to run it in.", show_default="the active one"),
]
CallsOption = Annotated[
    int,
    typer.Option(
        min=1, help="How often to call the function; the last call counts. The first may make optimizer state."
    ),
]
PinOption = Annotated[str, typer.Option(help="The pair of upstream releases; see pins/.")]


@app.command("build")
def build_command(
    target: Annotated[Target, typer.Option(help="What the wheels are for.")],
    pin: Annotated[str, typer.Option(help="The pair of upstream releases to start from; see pins/.")] = "2.9",
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
    mode: Annotated[
        Mode,
        typer.Option(
            help="overlay: from the stock wheels, in a minute. source: from upstream's sources, with upstream's own "
            "build, in hours; docs/source-build.md."
        ),
    ] = Mode.OVERLAY,
    work: Annotated[
        Path | None,
        typer.Option(help="Where a build from source works.", show_default="in the cache"),
    ] = None,
    verify_install: InstallOption = True,
    dry_run_only: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Build patched torch and torch_xla wheels, from the stock ones or from source.

    The output folder has the two wheels, constraints.txt (so that `pip install -c` cannot bring stock torch back)
    and manifest.json (what went in). It appears whole, or stays as it was.

    In a container, with docker, podman or buildah: ./build.sh --docker and the same options.
    """
    if mode is Mode.SOURCE and (index or not verify_install):
        raise typer.BadParameter("--index and --no-verify-install are for --mode overlay")
    if mode is Mode.OVERLAY and work is not None:
        raise typer.BadParameter("--work is for --mode source")
    request = Request(
        target=target.value,
        pin=pin,
        python=python,
        indexes=tuple(index or ()),
        out=out,
        verify_install=verify_install,
    )
    with _boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        if mode is Mode.SOURCE:
            source_build(request, work, console, dry_run=dry_run_only)
        elif dry_run_only:
            dry_run(request, console)
        else:
            build(request, console)


@app.command("verify")
def verify_command(
    folder: Annotated[Path, typer.Argument(help="A folder that `castoff build` made, such as dist/2.9-cpu.")],
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The interpreter to try the wheels with.",
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
    whole: Annotated[bool, typer.Option("--all", help="All of upstream's tests that are known; takes hours.")] = False,
    environments: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="STOCK PATCHED", help="The Pythons of two environments, so that none have to be made."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--checkout", help="A checkout of torch to take upstream's tests from.")
    ] = None,
    outcomes: Annotated[
        Path | None, typer.Option(help="A folder that keeps the outcomes on stock wheels for the next time.")
    ] = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Check wheels that were built before.

    They are compared with upstream's member by member, their libraries with what the platform tag allows, and
    unless told otherwise they are installed, imported, and looked at while running.
    """
    with _boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
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


@app.command("topics")
def topics_command(json_lines: JsonOption = False) -> None:
    """List the topics: every reason to differ from upstream, and the pins it applies to."""
    with _boundary(Console(json_lines=json_lines)) as console:
        for topic in load_topics(ROOT / "patches"):
            pins = ", ".join(f"{pin}: {state}" for pin, state in topic.pins.items())
            data: dict[str, object] = {
                "name": topic.key,
                "title": topic.title,
                "kind": topic.kind,
                "pins": topic.pins,
                "requires": list(topic.requires),
                "upstream": list(topic.upstream),
                "drop_when": topic.drop_when,
            }
            console.result(f"{topic.key:<32} {topic.title}\n{'':<32} {topic.kind}; {pins}", data)


@app.command("lint")
def lint_command(json_lines: JsonOption = False) -> None:
    """Check what every topic owes: its reason with a link, all pins, small hunks, tests that fail on stock.

    Exit status 1 if one owes something.
    """
    with _boundary(Console(json_lines=json_lines)) as console:
        findings = lint_topics(ROOT)
        for finding in findings:
            rows = (("expected", finding.expected), ("found", finding.found), ("next", finding.next_step))
            text = "".join(f"\n  {name:<8} {value}" for name, value in rows)
            console.result(f"{finding.topic}{text}", dict(asdict(finding)))
        if not findings:
            console.result("every topic is well", {"findings": 0})
    if findings:
        raise typer.Exit(1)


@app.command("status")
def status_command(json_lines: JsonOption = False) -> None:
    """Show which topic applies to which pin, is upstream there already, or cannot be there, and why."""
    with _boundary(Console(json_lines=json_lines)) as console:
        status = read_status(ROOT)
        below = "\n".join(f"({number}) {reason}" for number, reason in enumerate(status.reasons(), start=1))
        console.table(["topic", *status.pins], status.rows(), below, status.as_dict())


@app.command("drift")
def drift_command(
    against: Annotated[
        str,
        typer.Option(
            metavar="DIR|RELEASE|REF",
            help="The newer upstream: the folder of a checkout, a release such as 2.13 (its wheels are taken from the "
            "package index), or a branch, tag or commit of upstream's repository (fetched with git).",
        ),
    ],
    topic: Annotated[
        list[str] | None, typer.Option(help="Look at this topic only. May be given more than once.")
    ] = None,
    project: Annotated[Project, typer.Option(help="Whose branch, tag or commit it is.")] = Project.TORCH,
    python: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The Python of an environment with stock wheels of that release and pytest, so that none is made.",
        ),
    ] = None,
    tests: Annotated[
        bool, typer.Option("--tests/--no-tests", help="Run the topics' tests on stock wheels of that release.")
    ] = True,
    index: IndexOption = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Hold the topics against a newer upstream: which still apply, and which are upstream already.

    Files and hunks are laid on the newer tree without fuzz. What is upstream already is found by behaviour: the
    topic's own tests run on stock wheels of that release, and those that fail on our pins' stock wheels but
    pass there show what has arrived. A wheel has no C++ sources: give a checkout to try hunks on those.

    Exit status 1 if a topic that is not all upstream no longer applies.
    """
    with _boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        well = show_drift(
            against,
            project=project.value,
            names=tuple(topic or ()),
            python=python,
            tests=tests,
            indexes=tuple(index or ()),
            console=console,
        )
    if not well:
        raise typer.Exit(1)


@app.command("doctor")
def doctor_command(
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The Python of the environment to look at.", show_default="the active one"),
    ] = None,
    require_tpu: Annotated[bool, typer.Option("--require-tpu", help="Count a missing TPU as a fault.")] = False,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Look whether an environment with the wheels is well: versions, ABI, topics, interpositions, libtpu, TPU.

    Exit status 1 if something is amiss. On a host that has the wheels only: `python -m castoff_doctor`.
    """
    with _boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        with means(console) as context:
            well, findings = doctor.examine(ROOT, python or active_python(), require_tpu, context)
        verdict = "all is well" if well else "something is amiss"
        data: dict[str, object] = {"well": well, "findings": [asdict(finding) for finding in findings]}
        console.result(f"{doctor.report(findings)}\n{verdict}", data)
    if not well:
        raise typer.Exit(1)


@app.command("audit")
def audit_command(
    program: Annotated[str, typer.Argument(metavar="PROGRAM.py:FUNCTION", help="The function that is one step.")],
    meta: Annotated[
        bool,
        typer.Option("--meta", help="Without any device or memory: run it with torch's default device set to meta."),
    ] = False,
    max_casts: Annotated[
        int | None, typer.Option(min=0, help="Exit with 1 if the step has more casts between float dtypes.")
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Exit with 1 if it has a cast of this kind: exact-widening, lossy-narrowing, exact-round-trip or "
            "lossy-round-trip. May be given more than once.",
        ),
    ] = None,
    compare: Annotated[Wheels | None, typer.Option(help="Also audit it under stock wheels, and show both.")] = None,
    stock_python: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The Python of an environment with stock wheels, for --compare stock.",
            show_default="one that is made for it, once",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option("--tpu", metavar="TOPOLOGY", help="Also ask the TPU compiler what it keeps of each: v5e:2x2."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with everything to this file.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the whole report, IR included, as JSON to this file.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show conversions from and to integers, too. They are never counted.")
    ] = False,
    python: ProgramPythonOption = None,
    calls: CallsOption = 2,
    pin: PinOption = "2.9",
    index: IndexOption = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """List every cast of a step: where it comes from, why it is there, what it costs, what removes it.

    The function is called without arguments, on CPU-XLA. Each dtype conversion of its forward, backward and
    optimizer is listed with its line and module, and traced to the IR.

    Exit status 1 if --max-casts or --forbid is not kept to.
    """
    if meta and (html or compare or stock_python or topology):
        raise typer.BadParameter("--meta has no graph: it goes with --report, --max-casts and --forbid")
    with _boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        request = audit_program.parse_request(program, calls, python, topology)
        audit_program.check_kinds(forbid or ())
        with means(console) as context:
            if meta:
                found = audit_program.meta_program(request, context)
                faults = audit_show.show_meta(program, found, max_casts, forbid or (), file=report, console=console)
            else:
                reports = audit_program.audit_program(
                    request,
                    load_pin(ROOT / "pins", pin),
                    compare_stock=compare is not None,
                    stock_python=stock_python,
                    indexes=tuple(index or ()),
                    context=context,
                )
                faults = audit_show.show(
                    program,
                    reports,
                    max_casts,
                    forbid or (),
                    files=audit_show.Files(html, report),
                    everything=everything,
                    console=console,
                )
    if faults:
        raise typer.Exit(1)


@tpu.command("compile")
def tpu_compile_command(
    program: Annotated[str, typer.Argument(metavar="PROGRAM.py:FUNCTION", help="The function that is one step.")],
    topology: Annotated[
        str, typer.Option(help="The TPUs: a generation (v4, v5e, v5p, v6e) and the chips along each axis.")
    ] = "v5e:2x2",
    compare: Annotated[
        Wheels | None, typer.Option(help="Also run the function under stock wheels, and show both.")
    ] = None,
    python: ProgramPythonOption = None,
    calls: CallsOption = 2,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of XLA or libtpu. May be given more than once."),
    ] = None,
    pin: PinOption = "2.9",
    index: IndexOption = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Compile a step function for TPUs, without one.

    The function is called without arguments, on CPU-XLA; what it computes goes to the TPU compiler. Casts in
    the program, converts in the TPU's optimised HLO, memory on each device and estimated cycles are printed.
    Under SPMD the program sees as many devices as the topology has.
    """
    with _boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        request = tpu_program.parse_request(program, topology, calls, option or ())
        with means(console) as context:
            steps = tpu_program.compile_program(
                request,
                load_pin(ROOT / "pins", pin),
                python,
                compare_stock=compare is not None,
                indexes=tuple(index or ()),
                context=context,
            )
        data: dict[str, object] = {name: step.as_dict() for name, step in steps.items()}
        console.result(tpu_program.report(steps), {"topology": topology, **data})


@tpu.command("environment")
def tpu_environment_command(
    pin: PinOption = "2.9", verbose: VerboseOption = False, json_lines: JsonOption = False
) -> None:
    """Make the TPU compiler's environment, if it is not there, and print its Python and the folder of results.

    Tests that are to compile for TPUs take the two from CASTOFF_TPU_PYTHON and CASTOFF_TPU_RESULTS.
    """
    with _boundary(Console(json_lines=json_lines, verbose=verbose)) as console, means(console) as context:
        python = compiler_environment(load_pin(ROOT / "pins", pin), context)
        folder = results(context.cache)
        text = f"CASTOFF_TPU_PYTHON={python}\nCASTOFF_TPU_RESULTS={folder}"
        console.result(text, {"python": str(python), "results": str(folder)})


@pin_app.command("new")
def pin_new_command(
    name: Annotated[str, typer.Argument(metavar="MAJOR.MINOR", help="The releases, such as 2.8: the newest of each.")],
    index: IndexOption = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Add a pin: look up the releases in the package index, try every topic on them, write down what was found.

    pins/MAJOR.MINOR.toml gets every hash, the commits that the wheels say, the platform, the C++ ABI and what goes
    with them on a device; each topic.toml, whether the topic applies, with its hunks and symbols. What could not be
    found out is printed as a list. Files that are there are not overwritten: mend what needs a hand, remove what
    topic.toml says of the pin, and give the command again.
    """
    with _boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        new_pin(name, indexes=tuple(index or ()), console=console)


@app.command("checkout")
def checkout_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where it goes: empty, or not there yet.")],
    pin: Annotated[str, typer.Option(help="The pair of upstream releases; see pins/.")] = "2.9",
    project: Annotated[Project, typer.Option(help="Which of the two.")] = Project.TORCH,
    update: Annotated[
        bool, typer.Option("--update", help="If it is there already, bring it up to date with the topics.")
    ] = False,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Put upstream's tree into a folder, as a git repository with a commit for each topic on top."""
    with _boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        make = update_checkout if update else make_checkout
        make(pin, project.value, folder, console)


@app.command("assemble", hidden=True)
def assemble_command(
    torch: Annotated[Path, typer.Argument(help="The wheel of torch, in the folder dist of its checkout.")],
    torch_xla: Annotated[Path, typer.Argument(help="That of torch_xla.")],
    pin: PinOption,
    target: Annotated[Target, typer.Option(help="What the wheels are for.")],
    python: Annotated[str, typer.Option(metavar="PATH", help="The CPython that the wheels are for.")],
    out: Annotated[Path, typer.Option(help="Where the output folder goes.")],
    json_lines: JsonOption = False,
) -> None:
    """Make an output folder from the wheels that upstream's builds left: the last step of a build from source."""
    with _boundary(Console(json_lines=json_lines)) as console:
        assemble(pin, target.value, python, wheels=(torch, torch_xla), out=out, console=console)


@app.command("stage")
def stage_command(
    topic: Annotated[str, typer.Argument(help="The topic to carry upstream, such as grad-dtype.")],
    onto: Annotated[
        str,
        typer.Option(
            metavar="DIR|REF",
            help="Upstream's tree: the folder of a checkout (castoff's own commits in it are passed over), or a "
            "branch, tag or commit of upstream's repository, which is fetched into the output folder.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Where the patches and the pull request's text go.", show_default="staged/TOPIC")
    ] = Path("staged"),
    branch: Annotated[
        str | None, typer.Option(help="The name of the branch, made in the checkout.", show_default="the topic's name")
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The Python of an environment that has the topic, to run the staged tests with.",
            show_default="one with the wheels of that release in dist/",
        ),
    ] = None,
    stock: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="That of one with stock wheels: the staged tests must fail there.", show_default="none"
        ),
    ] = None,
    compile_cpp: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile the staged C++ against that release's headers.")
    ] = True,
    push: Annotated[
        str | None, typer.Option(metavar="REMOTE", help="Push the branch to this remote. Without it nothing is pushed.")
    ] = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Make of a topic what upstream would merge: a branch, patches, and the text of a pull request.

    The topic's files and hunks, and those of the topics that it requires, become a commit each in upstream's
    style, without a word of castoff: formatted and linted by upstream's own settings, compiled, and with its
    tests in upstream's own form. What fails is not staged. The text has the tests' real output.
    """
    with _boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        stage(
            topic,
            onto=onto,
            out=out / topic.rpartition("/")[2] if out == Path("staged") else out,
            branch=branch,
            python=python,
            stock=stock,
            compile_cpp=compile_cpp,
            push=push,
            console=console,
        )


@app.command("refresh")
def refresh_command(
    topic: Annotated[str, typer.Argument(help="The topic that the edits belong to, such as grad-dtype.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The edited checkout.")],
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Write an edited checkout back into a topic: new files to files/, the rest to hunks/."""
    with _boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        refresh_topic(topic, folder, console)


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _terminate)
    app(prog_name="castoff")


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """Let a polite kill clean up like Ctrl-C does."""
    raise KeyboardInterrupt


@contextmanager
def _boundary(console: Console) -> Iterator[Console]:
    """Turn every error into output and an exit code."""
    try:
        yield console
    except CastoffError as error:
        console.error(error)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        console.warn("stopped; the output folder is as it was")
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
    except BrokenPipeError:
        # Whoever read the output has enough of it (head); Python must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(128 + signal.SIGPIPE) from None
    except OSError as error:
        known = storage_error(error)
        if known is None:
            _report_bug()
        console.error(known)
        raise typer.Exit(known.exit_code) from None
    except Exception:  # noqa: BLE001 - whatever is left is our own bug, and shown as one
        _report_bug()


def _report_bug() -> NoReturn:
    traceback.print_exc()
    print("This is a bug in castoff: please report it with the lines above.", file=sys.stderr)
    raise typer.Exit(INTERNAL_EXIT_CODE)
