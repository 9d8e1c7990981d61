"""Audits a function of a program: run with the Python of the user's environment.

``python worker.py KIND shapes|values PROGRAM.py FUNCTION CALLS REPORT.json`` calls it and writes the report to
REPORT.json. KIND is ``xla``; ``stablehlo``, for a report that has StableHLO for the TPU compiler too; or ``meta``, on
the meta device. With ``shapes`` XLA computes nothing (``castoff.tpu.placeholders``). The program's output is not
redirected. If the program or the environment is wrong, the last line of standard output is JSON with the reason.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path


def main() -> int:
    """Run the script."""
    kind, data, program, function, calls, report = sys.argv[1:]
    if sys.path[0] == str(Path(__file__).parent):
        del sys.path[0]
    sys.path.insert(0, str(Path(program).parent))
    # Packages of the user's environment, for an environment with torch and torch_xla only; and castoff itself.
    more = [path for path in os.environ.get("CASTOFF_MORE_PACKAGES", "").split(os.pathsep) if path]
    sys.path += [*more, str(Path(__file__).parents[2])]
    from castoff.audit.partitions import dump_to
    from castoff.tpu.trace import fault, needs_values, problem_of

    sys.argv = [program]  # what the program reads
    if data == "values":  # a program that shards its tensors is never run by shapes alone
        dump_to(Path(report).parent / "xla")
    problem = _problem_of_text(program, function)  # before torch is imported, which takes seconds
    if problem is not None:
        return fault(*problem)
    needed = "torch" if kind == "meta" else "torch_xla"
    try:
        importlib.import_module(needed)
    except ImportError as error:
        return fault(f"{needed} can be imported", str(error), "Give an environment that has it with --python.")
    try:
        found = _on_meta(program, function) if kind == "meta" else _on_xla(program, function, int(calls), kind, data)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's program raises
        if kind != "meta" and data == "shapes" and _needs_values(error):
            return needs_values(error)
        where = "on the CPU" if kind != "meta" else "with torch's default device set to meta"
        return fault(f"{function}() of {program} runs", problem_of(error), f"Correct it; it runs {where}.")
    Path(report).write_text(json.dumps(found), encoding="utf-8")
    return 0


def _on_xla(program: str, function: str, calls: int, kind: str, data: str) -> dict[str, object]:
    from castoff.audit import audit
    from castoff.audit.settings import put_in_force
    from castoff.tpu.placeholders import nothing_computed

    with nothing_computed() if data == "shapes" else nullcontext():
        step = _step_of(program, function)
        put_in_force()
        return audit(step, calls=calls, stablehlo=kind == "stablehlo").as_dict()


def _needs_values(error: BaseException) -> bool:
    from castoff.tpu import placeholders  # needs torch_xla

    return placeholders.needs_values(error)


def _on_meta(program: str, function: str) -> dict[str, object]:
    from castoff.audit.meta import audit_meta

    return audit_meta(lambda: _step_of(program, function))


def _step_of(program: str, name: str) -> Callable[[], object]:
    """Run a program and return a function of it.

    Raises:
        TypeError: It takes arguments.
        Exception: Any exception of the program.
    """
    from castoff.tpu.trace import function_of

    step = function_of(program, name)
    try:
        signature = inspect.signature(step)
    except ValueError:  # it has none, such as some functions written in C
        return step
    try:
        signature.bind()
    except TypeError as error:
        raise TypeError(f"{name}{signature}: {error}; {_NO_ARGUMENTS}") from None
    return step


_NO_ARGUMENTS = "a step is called without arguments"


def _problem_of_text(program: str, function: str) -> tuple[str, str, str] | None:
    """Return what is wrong with the text of a program, or None: what was expected and found, and what to do."""
    try:
        tree = ast.parse(Path(program).read_bytes(), program)
    except (SyntaxError, ValueError) as error:
        return f"{program} is Python", "".join(traceback.format_exception_only(error)).strip(), "Correct it."
    names = _names(tree)
    if function not in names and "*" not in names:
        known = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
        found = f"no function {function!r}; it has: {', '.join(known) or 'none'}"
        return f"a function {function}() in {program}", found, "Give one as program.py:function."
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    if defined and not defined[-1].decorator_list and (needs := _needed(defined[-1].args)):
        found = f"{Path(program).name}:{defined[-1].lineno}: {function}({ast.unparse(defined[-1].args)})"
        wrap = f"def audited(): return {function}({', '.join(needs)})"
        return _NO_ARGUMENTS, found, f"Give a function that calls it, such as: {wrap}"
    return None


def _names(tree: ast.Module) -> set[str]:
    """Return every name that a program may bind; "*" if it binds names that its text does not have."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
    return names | {"*"} if names & {"globals", "exec", "setattr", "vars"} else names


def _needed(arguments: ast.arguments) -> list[str]:
    """Return the arguments of a function that have no default, as in a call."""
    positional = [*arguments.posonlyargs, *arguments.args]
    needed = [arg.arg for arg in positional[: len(positional) - len(arguments.defaults)]]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return needed + [f"{arg.arg}={arg.arg}" for arg, default in named if default is None]


if __name__ == "__main__":
    sys.exit(main())
