"""Runs programs in forks of one process that has imported torch_xla, whose import takes seconds.

It is a program itself: each line of its input asks for one run, as JSON; it answers with a line, the wait status.
The runtime of torch_xla starts in the fork, so that each program has the devices that its environment asks for.
Whatever is read while torch or torch_xla is imported (CASTOFF_DISABLE, XLA_FLAGS) cannot be changed by a fork.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch_xla


def run(arguments, environment):
    """What Python does with these arguments, in this process: ``-c CODE …`` or ``SCRIPT …``."""
    os.environ.update(environment)
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        main = sys.modules["__main__"].__dict__
        main.update(__file__=None)
        exec(compile(arguments[1], "<string>", "exec"), main)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def redirect(descriptor, path):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, descriptor)
    os.close(file)


def main():
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            answers.close()
            redirect(0, os.devnull)
            redirect(1, asked["stdout"])
            redirect(2, asked["stderr"])
            return run(asked["arguments"], asked["environment"])
        print(os.waitpid(child, 0)[1], file=answers, flush=True)
    return None


if __name__ == "__main__":
    assert torch_xla is not None
    main()
