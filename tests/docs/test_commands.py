"""Every command in the docs is run: here as it stands, or by what commands.toml names. The rest says what it needs.

The commands run in a copy of the tree, beside the programs that the docs speak of: train.py, vit.py, product.py and
test_casts.py.
"""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^ *```(?:bash|sh|shell|console)\n(.*?)^ *```$(?:\n\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
RELEASE = re.compile(r"castoff\.\d+(\.dev0)?")
COMMENT = re.compile(r"\s+# .*")
KINDS = {"run", "by", "needs", "part_of"}
REGISTRY = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))

TRAIN = """
import torch
import torch_xla

model = torch.nn.Linear(8, 4).to("xla")
inputs = torch.ones(2, 8).to("xla")


def step():
    loss = model(inputs).double().sum()  # a cast, and none that rounds what was exact
    loss.backward()
    return loss


if __name__ == "__main__":
    step()
    torch_xla.sync()
"""


def blocks():
    """Each block of commands in the docs: where it is, its commands, and what the next block says they print."""
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            lines = match[1].replace("\\\n", " ").splitlines()
            commands = [" ".join(COMMENT.sub("", text).split()) for text in lines]
            yield f"{path.name}:{line}", [command for command in commands if command], match[2] or ""


def without_release(text):
    """What a command prints, whatever the release is, and the width of the columns that show it."""
    return re.sub(" {2,}", "  ", RELEASE.sub("castoff.N", text))


def entry(command):
    """What the registry says of a command: the name that matches, and the rest."""
    if command in REGISTRY:
        return command, REGISTRY[command]
    return next(((name, said) for name, said in REGISTRY.items() if fnmatch.fnmatchcase(command, name)), (None, None))


def to_run():
    """The blocks with what is run here, each text once, and what they print."""
    scripts = {}
    for place, commands, printed in blocks():
        script = "\n".join(command for command in commands if (entry(command)[1] or {}).get("run"))
        if script and (script not in scripts or printed):
            scripts[script] = pytest.param(script, printed, id=place)
    return list(scripts.values())


def test_each_command_of_the_docs_is_registered():
    unknown = [
        f"{place}: {command}" for place, commands, _ in blocks() for command in commands if not entry(command)[0]
    ]
    assert not unknown, "say in tests/docs/commands.toml what runs these:\n" + "\n".join(unknown)


def test_the_registry_is_true():
    commands = [command for _, commands, _ in blocks() for command in commands]
    used = {entry(command)[0] for command in commands}
    assert len(commands) > 40
    for name, said in REGISTRY.items():
        assert len(said) == 1 and set(said) <= KINDS, name
        assert name in used or "*" in name, f"{name} is in no document"
        if name in used and "by" in said:
            file, text = said["by"]
            assert text in (ROOT / file).read_text(encoding="utf-8"), f"{file} does not run {name}: it lacks {text!r}"


def program(document, part):
    """The one Python program of a document that has this part."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    (found,) = [match[1] for match in PROGRAM.finditer(text) if part in match[1]]
    return textwrap.dedent(found)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A copy of the tree with the programs; the wheels and the tools are the tree's own."""
    folder = tmp_path_factory.mktemp("docs") / "castoff"
    left_out = shutil.ignore_patterns(".git", ".venv", "dist", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, folder, ignore=left_out, symlinks=True)
    for name in (".venv", "dist"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "ENVIRONMENT").symlink_to(sys.prefix)
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    shutil.copy(ROOT / "tests" / "audit" / "vit.py", folder)
    (folder / "product.py").write_text(program("start.md", "torch.mm("), encoding="utf-8")
    test = program("audit.md", "def test_no_hidden_rounding(cast_audit)")
    (folder / "test_casts.py").write_text(f"from train import step\n\n\n{test}", encoding="utf-8")
    return folder


@pytest.mark.parametrize(("script", "printed"), to_run())
def test_commands_of_the_docs(script, printed, place):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "VIRTUAL_ENV"))}
    environment["PATH"] = f"{Path(sys.prefix) / 'bin'}:{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    environment.setdefault("PJRT_DEVICE", "CPU")
    command = ["bash", "-euxo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=place, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert without_release(printed) in without_release(done.stdout)
