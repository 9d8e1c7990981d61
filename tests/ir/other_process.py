"""Programs of the tests that need a process of their own: another environment, another device, another library."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def completed(*arguments, **environment):
    """Run Python with these arguments, and these variables besides this process's own. It has to exit with 0."""
    path = [environment.pop("PYTHONPATH"), str(HERE)] if "PYTHONPATH" in environment else [str(HERE)]
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    return result


def run(*arguments, **environment):
    """The same; return all that it printed."""
    result = completed(*arguments, **environment)
    return result.stdout + result.stderr


def run_tests(module, *options, **environment):
    """Run the tests of a module in a process of its own, where all have to pass; return what pytest printed."""
    return run("-m", "pytest", "-q", "-p", "no:cacheprovider", *options, module, **environment)


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
