"""Every command: its help, and what it answers to wrong names, options and paths, and to Ctrl-C."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from castoff.cli.main import CALLED_AS, app, main
from castoff.core import errors
from castoff.core import runner as runner_module
from castoff.core.errors import CastoffError
from castoff.core.places import ROOT
from castoff.model.pin import pin_names
from castoff.model.topics import load_topics

KNOWN_CODES = {
    kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and CastoffError in kind.__bases__
}
ARGUMENTS = {  # the least that each command takes
    "cache prune": [],
    "install": [],
    "uninstall": [],
    "build": ["--target", "cpu", "--out", "out"],
    "verify": ["DIR"],
    "release": ["--pin", "2.9", "--python", "3.11", "--out", "out"],
    "topics": [],
    "lint": [],
    "status": [],
    "env": ["stock"],
    "doctor": [],
    "audit": ["PROGRAM:step", "--python", "PYTHON"],
    "checkout": ["DIR/new"],
    "refresh": ["grad-dtype", "DIR"],
    "stage": ["data-setter", "--onto", "DIR"],
    "pin new": ["2.99"],
    "tpu compile": ["PROGRAM:step", "--python", "PYTHON"],
    "tpu environment": [],
}
# release: it asks git, and refuses a tree with changes before it looks at the rest
# in the tree, with the arguments above
RUNS_NO_PROGRAM = {"cache prune", "install", "release", "topics", "lint", "status", "verify"}


def commands(group: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its path in the tree."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        here = f"{path} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, here)
        else:
            yield here, command


COMMANDS = dict(commands())
PATHS = [
    (name, parameter.name, next((word for word in parameter.opts if word.startswith("--")), None))
    for name, command in COMMANDS.items()
    for parameter in command.params
    if parameter.name != "help"
    and parameter.nargs == 1
    and re.search(r"\bPath\b", str(typing.get_type_hints(command.callback)[parameter.name]))
]


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    offline = {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1", "PIP_CONFIG_FILE": os.devnull, "GIT_ALLOW_PROTOCOL": "file"}
    for name, value in {**offline, "CASTOFF_CACHE": str(tmp_path / "cache"), "COLUMNS": "500"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("text\n")
    for part in (".git", "torch"):
        (tmp_path / "folder" / part).mkdir(parents=True)
    (tmp_path / "folder" / "torch" / "__init__.py").touch()
    (tmp_path / "program.py").write_text("def step(): pass\n")


def arguments_of(name: str) -> list[str]:
    words = {"DIR": "folder", "DIR/new": "folder/new", "PROGRAM:step": "program.py:step", "PYTHON": sys.executable}
    return [words.get(word, word) for word in ARGUMENTS[name]]


def castoff(name: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*name.split(), *arguments], prog_name="castoff")


def says_what_to_do(result: Result) -> None:
    """One of castoff's errors, with all its parts, or typer's for a wrong command line. Never a traceback."""
    assert "Traceback" not in result.output and "bug in castoff" not in result.output, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    if result.exit_code == 2:
        assert "--help" in result.output
        return
    assert result.exit_code in KNOWN_CODES, result.output
    rows = [
        line.split()[0] for line in result.stderr.splitlines() if re.match(r"error|expected|   found|    next", line)
    ]
    assert rows == ["error", "expected", "found", "next"], result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_an_example(name: str) -> None:
    result = castoff(name, "--help")
    assert result.exit_code == 0
    shown = [line.strip() for line in result.output.splitlines() if line.strip()]
    match = re.fullmatch(r"(export \$\()?castoff (.*?)\)?", shown[1])
    assert shown[0].startswith(f"Usage: castoff {name}") and match, shown[:2]
    words = shlex.split(match[2])
    assert words[: len(name.split())] == name.split()
    # The example is one that the command takes.
    COMMANDS[name].make_context(name, words[len(name.split()) :])


def test_groups_too_show_an_example() -> None:
    for path in ([], ["tpu"], ["pin"]):
        shown = [line.strip() for line in castoff(" ".join(path), "--help").output.splitlines() if line.strip()]
        assert shown[1].startswith(" ".join(["castoff", *path])), shown


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option(name: str) -> None:
    result = castoff(name, *arguments_of(name), "--no-such-option")
    assert result.exit_code == 2
    assert "No such option: --no-such-option" in result.output and f"'castoff {name} --help'" in result.output


@pytest.mark.parametrize("pin", ["9.9", "../2.9", ""])
@pytest.mark.parametrize("name", [name for name, one in COMMANDS.items() if any(p.name == "pin" for p in one.params)])
def test_an_unknown_pin(name: str, pin: str) -> None:
    result = castoff(name, *arguments_of(name), "--pin", pin)
    says_what_to_do(result)
    if name == "release" and result.exit_code == errors.ReleaseError.exit_code:
        return  # the tree has changes
    assert result.exit_code == errors.PinError.exit_code
    assert all(known in result.stderr for known in pin_names(ROOT / "pins"))


@pytest.mark.parametrize("target", ["cpu", "package"])
def test_a_pin_that_is_a_path_removes_nothing(target: str, tmp_path: Path) -> None:
    kept = tmp_path / "out" / "2.9-cpu" / "kept"
    kept.parent.mkdir(parents=True)
    kept.touch()
    says_what_to_do(castoff(f"build --target {target} --out out --pin ../2.9"))
    assert kept.is_file()


@pytest.mark.parametrize("command", ["topics nope", "stage nope --onto folder"])
def test_an_unknown_topic(command: str) -> None:
    result = castoff(command)
    says_what_to_do(result)
    assert "nope" in result.stderr and "torch/grad-dtype" in result.stderr


@pytest.mark.parametrize("path", ["no/such/path", "file/below"])
@pytest.mark.parametrize(("name", "parameter", "option"), PATHS)
def test_a_path_that_cannot_be(
    name: str, parameter: str, option: str | None, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def quick(words: tuple[str, ...], **options: Any) -> subprocess.Popen[str]:
        """Without a network uv and pip try for seconds."""
        return start(["false"] if words[0].endswith("uv") or "pip" in words else words, **options)

    monkeypatch.setattr(runner_module.subprocess, "Popen", quick)
    arguments = arguments_of(name)
    if option is not None:
        arguments += [option, path]
    elif name in {"env", "refresh"}:
        arguments[1:] = [path]
    else:
        arguments[:1] = [path]
    says_what_to_do(castoff(name, *arguments))


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in RUNS_NO_PROGRAM])
def test_a_cache_that_cannot_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASTOFF_CACHE", "file/cache")
    result = castoff(name, *arguments_of(name))
    if result.exit_code != 0:
        says_what_to_do(result)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in RUNS_NO_PROGRAM])
def test_ctrl_c_while_a_program_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every command that runs programs: it says that it stopped, and the program is gone."""
    started: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def sleeping(_words: object, **options: Any) -> subprocess.Popen[str]:
        started.append(start(["sleep", "60"], **options))
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        return started[-1]

    monkeypatch.setattr(runner_module.subprocess, "Popen", sleeping)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = castoff(name, *arguments_of(name))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert started, result.output
    assert result.exit_code == errors.INTERRUPTED_EXIT_CODE, result.output
    assert "warning  stopped" in result.stderr and "Traceback" not in result.output
    assert all(process.poll() is not None for process in started)


def test_ctrl_c_while_modules_are_loaded() -> None:
    # What a shell starts in the background ignores the signal, and so do its children, unless they are told otherwise.
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "castoff"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    ) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if b"pydantic" in line:
                run.send_signal(signal.SIGINT)
                break
        rest = run.stderr.read()
    assert run.returncode == errors.INTERRUPTED_EXIT_CODE
    assert b"Traceback" not in rest


def test_build_sh_has_its_own_name_in_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CALLED_AS, "./build.sh")
    monkeypatch.setattr(sys, "argv", ["castoff", "build", "--no-such-option"])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "Try './build.sh --help' for help" in said and "castoff build" not in said
    assert f"{CALLED_AS}=./build.sh exec" in (ROOT / "build.sh").read_text()


def test_a_package_has_no_plan() -> None:
    result = castoff("build --target package --dry-run")
    assert result.exit_code == 2 and "--dry-run" in result.output


def test_topics_in_one_line_each() -> None:
    topics = load_topics(ROOT / "patches")
    lines = castoff("topics").stdout.splitlines()
    assert len(lines) == len(topics)
    for line, topic in zip(lines, topics, strict=True):
        assert line.startswith(f"{topic.key} ") and line.endswith(f"  {topic.title}")
        assert "all pins" in line or all((pin in line) == topic.applies(pin) for pin in topic.pins)


def test_all_about_a_topic() -> None:
    named = [topic for topic in load_topics(ROOT / "patches") if topic.name == "graph-identity"]
    assert len(named) == 2
    text = castoff("topics graph-identity").stdout
    for topic in named:
        assert all(part in text for part in (topic.key, topic.why.strip(), topic.drop_when, *topic.upstream))
    assert castoff("topics torch/graph-identity").stdout.startswith("torch/graph-identity: ")


def test_topics_for_a_program() -> None:
    rows = [json.loads(line) for line in castoff("topics --json").stdout.splitlines()]
    assert [row["name"] for row in rows] == [topic.key for topic in load_topics(ROOT / "patches")]
    assert {"title", "kind", "pins", "requires", "upstream", "drop_when"} <= rows[0].keys()


SCRIPTS = [
    path.relative_to(ROOT)
    for path in sorted((*ROOT.glob("bench/**/*.*"), *ROOT.glob("ci/*.*"), ROOT / "docker" / "train.sh"))
    if (path.suffix == ".py" and '__name__ == "__main__"' in path.read_text())
    or (path.suffix == ".sh" and "# Sourced by" not in path.read_text())
]


@pytest.mark.parametrize("path", SCRIPTS, ids=str)
def test_scripts_show_an_example(path: Path) -> None:
    text = (ROOT / path).read_text()
    if "typer.run(main)" in text:
        text = text.partition("def main(")[2].partition('"""')[2]
        assert text.startswith(f".venv/bin/python {path} ")
    else:
        head = [line.lstrip("# ") for line in text.splitlines()[:15]]
        example = rf"(\./build\.sh .* && )?(\S*python )?\S*{re.escape(path.name)}\b"
        assert any(re.match(example, line) for line in head), head


def test_the_plan_says_that_it_wrote_nothing(tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = castoff("build --target cpu --dry-run --out out")
    assert result.exit_code == 0 and result.stdout.splitlines()[-1] == "nothing was written"
    assert sorted(tmp_path.rglob("*")) == before
