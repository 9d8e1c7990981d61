"""Runs programs of this folder on the wheels of this environment and prints a line of JSON for each.

    PJRT_DEVICE=CPU ENVIRONMENT/bin/python tests/programs/runner.py [NAME…] [--show]

torch_xla is imported once. Each program runs in a fork of this process, with a limit of time; the runtime of
torch_xla starts in the fork, so that a program has the devices that it asks for.

A program is a function of a module of ``subjects/``, with a docstring. It takes the device and returns tensors,
numbers or dtypes; what it needs besides is in its ``options``. A function with an underscore before its name is none.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from forks import log_of, rows
from options import Options
from record import SUBJECTS, code, names

FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 --xla_cpu_enable_fast_min_max=false"
)
"""Small programs are compiled and run once. Without the last, max drops NaN, on XLA:CPU alone."""
MODULES = (
    "torch",
    "torch_xla",
    "judge",
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch.utils.data",
    "torch_xla.distributed.parallel_loader",
    "torch_xla.distributed.spmd",
)
TRANSFORMERS = ("LlamaForCausalLM", "MixtralForCausalLM", "GPT2LMHeadModel")
"""What programs would import for themselves, in seconds each."""


def load(name: str) -> Any:
    subject, function = name.split("/")
    spec = importlib.util.spec_from_file_location(subject, SUBJECTS / f"{subject}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def outcome(name: str) -> dict[str, Any]:
    """What a program does, in this process."""
    import judge
    import torch
    import torch_xla

    program = load(name)
    options = getattr(program, "options", Options())
    if options.devices > 1:
        import torch_xla.runtime

        os.environ["CPU_NUM_DEVICES"] = str(options.devices)
        torch_xla.runtime.use_spmd()
    if not options.late:
        torch_xla.device()
    found = judge.run(program, torch.device("xla"))
    cpu = judge.run(program, torch.device("cpu"))
    result = judge.judged(found, cpu, options.tolerance)
    for where, ran in (("xla", found), ("cpu", cpu)):
        if ran.error is not None:
            print(f"on {where}:", "".join(traceback.format_exception(ran.error)), file=sys.stderr, flush=True)
    return {"name": name, "kind": result.kind, "detail": result.detail}


def prepare(modules: Iterable[str]) -> None:
    """Import what is needed, ahead of the forks."""
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TORCHINDUCTOR_FX_GRAPH_CACHE="0")
    warnings.simplefilter("ignore")
    for module in modules:
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)  # a pool of threads does not survive a fork


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs, or subjects; all of them by default")
    parser.add_argument("--show", action="store_true", help="print what the programs print")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--logs", type=Path, help="keep what the programs print in this folder")
    options = parser.parse_args()
    given = options.names
    wanted = [name for name in names() if not given or name in given or name.split("/")[0] in given]
    prepare(MODULES)
    if any("import transformers" in code(name) for name in wanted):
        transformers = importlib.import_module("transformers")
        for model in TRANSFORMERS:
            getattr(transformers, model)
    with tempfile.TemporaryDirectory() as folder:
        logs = (options.logs or Path(folder)).resolve()
        logs.mkdir(exist_ok=True, parents=True)
        for row in rows(wanted, outcome, processes=options.processes, logs=logs):
            print(json.dumps(row), flush=True)
            if options.show:
                print(log_of(row["name"], logs).read_text(errors="replace"), file=sys.stderr)


if __name__ == "__main__":
    main()
