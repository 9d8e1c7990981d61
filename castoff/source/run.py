"""The build from source: a plan, carried out step by step, and taken up again where it was stopped."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from castoff.build.plan import Request, plan_build
from castoff.core.cache import Cache
from castoff.core.console import Advance, Console
from castoff.core.context import Context
from castoff.core.errors import BuildError, CommandError, MachineError
from castoff.core.pipconfig import current_uv_environment
from castoff.core.places import cache_root
from castoff.core.runner import Runner
from castoff.model.pin import PROJECTS
from castoff.source.plan import Job, Step, make_plan
from castoff.source.preflight import Finding, Machine, check, examine, look, report

_DONE_OF_ALL = re.compile(r"^\[([\d,]+) ?/ ?([\d,]+)\]")


def source_build(request: Request, work: Path | None, console: Console, *, dry_run: bool) -> None:
    """Build the wheels from source, or say how.

    Args:
        request: What the user wants.
        work: The folder of the build; one in the cache if not given. It stays.
        console: Shows how it goes.
        dry_run: Whether to only show the plan and what this machine lacks.

    Raises:
        CastoffError: What went wrong. The next build takes it up again there.
    """
    pin_folder = f"{request.pin}-{request.python or 'default'}".replace("/", "_")
    work = (work or cache_root() / "source" / pin_folder).absolute()
    if dry_run:
        with tempfile.TemporaryDirectory(prefix="castoff-") as logs:
            job, findings = _preflight(request, work, Runner(Path(logs), console), console)
        _show(make_plan(job), findings, job, console)
        return
    runner = Runner(work / "logs", console)
    job, findings = _preflight(request, work, runner, console)
    plan = make_plan(job)
    console.note(report(findings).replace("\n", "\n         "))
    console.note(f"time     {duration(plan, job)}")
    check(findings)
    carry_out(plan, work, Context(Cache(cache_root(), console), runner, console))
    target = f"{job.pin.name}-{job.target}"
    console.result(f"built {job.out / target} from source", {"out": str(job.out / target), "mode": "source"})


def _preflight(request: Request, work: Path, runner: Runner, console: Console) -> tuple[Job, tuple[Finding, ...]]:
    with console.step("preflight", f"pin {request.pin}, target {request.target}, from source"):
        job, machine = _job(request, work, runner)
        return job, examine(machine, job.pin)


def _job(request: Request, work: Path, runner: Runner) -> tuple[Job, Machine]:
    planned = plan_build(request, runner)
    planned.pin.for_source()
    interpreter = planned.interpreter.path
    if interpreter is None:
        raise MachineError(
            f"there is no CPython {planned.interpreter.version} to build with",
            expected=f"CPython {planned.interpreter.version} on PATH, in pyenv or in uv",
            found="none",
            next_step="Install it, with its headers, or give its path with --python.",
        )
    machine = look(planned.pin, interpreter, work, runner)
    job = Job(
        pin=planned.pin,
        version=planned.version,
        target=request.target,
        python=planned.interpreter.version,
        interpreter=interpreter,
        topics=planned.topics,
        work=work,
        out=request.out.absolute(),
        jobs=machine.jobs(),
        launcher=machine.launcher,
        remote_cache=os.environ.get("CASTOFF_REMOTE_CACHE") or None,
    )
    return job, machine


def duration(plan: Sequence[Step], job: Job) -> str:
    """Return how long a plan will take, for a person."""
    jobs = dict(zip(PROJECTS, job.jobs, strict=True))
    hours = {step.name: step.core_hours / jobs[step.name] for step in plan if step.core_hours}
    each = ", ".join(f"{name} {value:.1f} h" for name, value in hours.items())
    return f"about {sum(hours.values()):.0f} h with empty caches ({each}): a guess, from the number of files"


def _show(plan: Sequence[Step], findings: Sequence[Finding], job: Job, console: Console) -> None:
    console.result(
        f"{describe(plan)}\n\n{report(findings)}\ntime     {duration(plan, job)}", as_data(plan, findings, job)
    )


def describe(plan: Sequence[Step]) -> str:
    """Return a plan as text: each step, the files that it writes, the commands that it runs."""
    rows = []
    for number, step in enumerate(plan, start=1):
        rows.append(f"{number}. {step.name}: {step.about}")
        for path, text in step.files:
            rows.append(f"   write {path}")
            rows += [f"   | {line}" for line in text.splitlines()]
        rows += [f"   $ {command.text()}" for command in step.commands]
    return "\n".join(rows)


def as_data(plan: Sequence[Step], findings: Sequence[Finding], job: Job) -> dict[str, object]:
    """Return a plan and the preflight's findings as plain data."""
    return {
        "mode": "source",
        "pin": job.pin.name,
        "target": job.target,
        "python": job.python,
        "steps": [{"name": step.name, "commands": [command.text() for command in step.commands]} for step in plan],
        "preflight": [vars(finding) for finding in findings],
    }


def carry_out(plan: Sequence[Step], work: Path, context: Context) -> None:
    """Carry out the steps that are not done yet.

    A step is done when its key, over itself and all steps before it, is in ``work/done``. One that was
    stopped is begun again: git, ninja and Bazel each go on where they were.

    Args:
        plan: The steps.
        work: The folder of the build.
        context: The means.

    Raises:
        BuildError: A step failed, or another build works there.
    """
    with _alone(work):
        key = ""
        for step in plan:
            key = step.key(key)
            mark = work / "done" / step.name
            with context.console.step(step.name, step.about):
                if mark.is_file() and mark.read_text(encoding="utf-8") == key:
                    context.console.note("done before")
                    continue
                mark.unlink(missing_ok=True)
                _do(step, context)
                mark.parent.mkdir(exist_ok=True)
                mark.write_text(key, encoding="utf-8")


def _alone(work: Path) -> AbstractContextManager[object]:
    work.mkdir(parents=True, exist_ok=True)
    lock = FileLock(work / ".lock")
    try:
        return lock.acquire(blocking=False)
    except Timeout as error:
        raise BuildError(
            "another build works there",
            expected=f"{work} for this build alone",
            found="a build that runs",
            next_step="Wait for it, or name another folder with --work.",
        ) from error


def _do(step: Step, context: Context) -> None:
    environment = current_uv_environment(context.runner)
    for path, text in step.files:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    for number, command in enumerate(step.commands, start=1):
        with context.console.progress(step.name) as advance:
            try:
                context.runner.run(
                    command.words,
                    name=f"{step.name}-{number}",
                    cwd=Path(command.folder),
                    env=command.settings(environment),
                    on_line=partial(_tell, advance),
                )
            except CommandError as error:
                raise BuildError(
                    f"the step {step.name} failed",
                    expected=f"`{command.text()}` succeeds",
                    found=error.found,
                    next_step=f"{error.next_step}. The same command again takes it up there.",
                ) from error


def _tell(advance: Advance, line: str) -> None:
    """Pass on how far ninja or Bazel says that it is."""
    match = _DONE_OF_ALL.match(line)
    if match is not None:
        done, total = (int(number.replace(",", "")) for number in match.groups())
        advance(done, total)
