"""Programs of the tests that need a process of their own: another environment, another device, another library."""

import functools
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
#: Where programs find the modules of the tests, and what those import.
FOLDERS = [str(HERE), str(HERE.parent)]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(FOLDERS)}


#: Most of what torch_xla imports of torch; both take seconds.
OF_TORCH = ("torch", "torch._inductor.compile_fx", "torch.export")


@functools.cache
def fork_server(python, modules):
    command = [python, HERE / "fork_server.py", *modules]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)


def forked(*arguments, python=sys.executable, modules=("torch_xla",), **environment):
    """Run Python with these arguments in a fork of a process that has imported torch_xla. It has to exit with 0.

    For programs that neither look at the import nor change what it reads, such as CASTOFF_DISABLE or XLA_FLAGS.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder, name)) for name in ("stdout", "stderr")}
        asked = {"arguments": [*map(str, arguments)], "environment": environment, **files}
        server = fork_server(python, modules)
        print(json.dumps(asked), file=server.stdin, flush=True)
        status = os.waitstatus_to_exitcode(int(server.stdout.readline()))
        texts = (Path(path).read_text(encoding="utf-8") for path in files.values())
        return successful(subprocess.CompletedProcess(arguments, status, *texts))


def completed(*arguments, **environment):
    """The same in a process that imports torch_xla itself, having imported torch.

    A topic of torch, which CASTOFF_DISABLE switches off when torch is imported, needs `fresh`.
    """
    return forked(*arguments, modules=OF_TORCH, **environment)


def fresh(*arguments, **environment):
    """The same in a process that has imported nothing."""
    return successful(
        subprocess.run(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(FOLDERS), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
    )


def successful(result):
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    return result


def run(*arguments, **environment):
    """The same as `completed`; return all that it printed."""
    result = completed(*arguments, **environment)
    return result.stdout + result.stderr


def run_tests(module, *options, **environment):
    """Run the tests of a module in a process of its own, where all have to pass; return what pytest printed."""
    return run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, module, **environment)


def run_with_another_xlac(directory, old, new, *program, **environment):
    """The same with a copy of torch_xla's library in which one string of bytes is another, of the same length."""
    library = Path(importlib.import_module("_XLAC").__file__)
    copy = directory / library.name
    shutil.copy(library, copy)
    contents = bytearray(copy.read_bytes())
    at = contents.find(old)
    assert at >= 0 and len(old) == len(new)
    while at >= 0:
        contents[at : at + len(old)] = new
        at = contents.find(old, at + len(new))
    copy.write_bytes(contents)
    return run(*program, PYTHONPATH=str(directory), **environment)


def build_id():
    """The build id of torch_xla's library."""
    library = Path(importlib.import_module("_XLAC").__file__)
    notes = subprocess.run(["readelf", "-n", library], capture_output=True, text=True, check=True).stdout
    return bytes.fromhex(notes.split("Build ID:")[1].split()[0])
