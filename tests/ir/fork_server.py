"""Runs programs in forks of one process that has imported the modules that it is given, which takes seconds.

It is a program itself: each line of its input asks for one run, as JSON; it answers with a line, the wait status.
The runtime of torch_xla starts in the fork, so that each program has the devices that its environment asks for.
Whatever is read while these modules are imported (CASTOFF_DISABLE, XLA_FLAGS) cannot be changed by a fork.
"""

import gc
import importlib
import json
import os
import runpy
import sys
from pathlib import Path


def switch_off():
    """Let torch_xla, when it is imported, see which of its topics are switched off now."""
    castoff = sys.modules.get("torch._castoff")  # stock wheels have none
    if castoff is not None and "torch_xla" not in sys.modules:
        castoff.disabled_topics.cache_clear()
        late = castoff.disabled_topics() - {*castoff.OTHERS}.difference(castoff.TOPICS)
        assert not late, f"torch reads {late} of CASTOFF_DISABLE when it is imported"


def run(arguments, environment):
    """What Python does with these arguments, in this process: ``-c CODE …``, ``-m MODULE …`` or ``SCRIPT …``."""
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    switch_off()
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        main = sys.modules["__main__"].__dict__
        main.pop("__file__", None)
        exec(compile(arguments[1], "<string>", "exec"), main)
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
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
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # a child need not look at what the imports made, as it ends, either
    main()
