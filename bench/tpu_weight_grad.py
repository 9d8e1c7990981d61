"""What a float32 weight gradient costs on a TPU: a step of a 4096³ linear layer, stock beside patched.

The weight is bfloat16 and its gradient is accumulated over micro-batches, in three ways:

stock, bf16 sum   stock wheels as they are: bfloat16 gradients, summed in bfloat16
stock, f32 sum    stock wheels with what people add by hand: a float32 buffer, fed by bfloat16 gradients
patched           ``weight.grad_dtype = torch.float32``: the backward accumulates in float32

All are traced on CPU-XLA, in the environments given, and compiled by the pin's own libtpu; no TPU is
needed. Exit status 1 if the patched step has a convert between its convolution and the accumulation, or
more estimated cycles or temporary bytes than stock's with a float32 sum.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from castoff.core.errors import CastoffError  # noqa: E402 - found by the line above
from castoff.formats.xla_text import parse_hlo  # noqa: E402
from castoff.tpu.client import TpuCompiler  # noqa: E402

PROGRAM = """
import sys
import torch, torch_xla
sys.path.insert(0, sys.argv[1])
from castoff.tpu.trace import program_of

kind, n = sys.argv[2], 4096

def data(dtype):
    return torch.zeros(n, n, dtype=dtype).to("xla")

weight, x, out = data(torch.bfloat16).requires_grad_(), data(torch.bfloat16), data(torch.bfloat16)
if kind != "buffer":
    grad_dtype = torch.float32 if kind == "wide" else torch.bfloat16
    if kind == "wide":
        weight.grad_dtype = grad_dtype
    weight.grad = data(grad_dtype)
    torch_xla.sync()
    torch.nn.functional.linear(x, weight).backward(out)
    total = weight.grad
else:
    buffer = data(torch.float32)
    torch_xla.sync()
    torch.nn.functional.linear(x, weight).backward(out)
    total = buffer.add_(weight.grad)
assert total.dtype == (torch.bfloat16 if kind == "narrow" else torch.float32)
sys.stdout.buffer.write(program_of([total])[0])
"""

TOPOLOGIES = ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"]


def trace(python: Path, kind: str) -> bytes:
    """The step's StableHLO, as one torch_xla makes it."""
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    command = [python, "-c", PROGRAM, ROOT, kind]
    result = subprocess.run(command, env=environment, capture_output=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{python} cannot trace the step:\n{result.stderr.decode()}")
    return result.stdout


def measure(compiler: TpuCompiler, program: bytes, topology: str) -> dict[str, int]:
    """What the compiler says of a step."""
    compiled = compiler.compile(program, topology)
    module = parse_hlo(compiled.hlo)
    (convolution,) = module.find("convolution")
    return {
        "converts between convolution and sum": len(module.converts()),
        "bits of the convolution's result": {"bf16": 16, "f32": 32}[convolution.dtype],
        "estimated cycles": compiled.estimated_cycles,
        "temporary bytes": compiled.memory["temp"],
        "argument bytes": compiled.memory["argument"],
    }


def judge(stock: dict[str, int], patched: dict[str, int]) -> list[str]:
    """What is worse than it has to be."""
    faults = [] if patched["converts between convolution and sum"] == 0 else ["the gradient is rounded"]
    return faults + [
        f"{name}: {patched[name]:,}, stock {stock[name]:,}"
        for name in ("estimated cycles", "temporary bytes")
        if patched[name] > stock[name]
    ]


def main(
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    compiler: Annotated[Path, typer.Option(envvar="CASTOFF_TPU_PYTHON", help="`castoff tpu environment` prints it.")],
    results: Annotated[Path, typer.Option(envvar="CASTOFF_TPU_RESULTS", help="`castoff tpu environment` prints it.")],
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """.venv/bin/python bench/tpu_weight_grad.py --stock STOCK/bin/python --patched PATCHED/bin/python

    Compare a step with float32 weight gradients with stock's bfloat16 ones, on the TPU compiler.
    """
    programs = {
        "stock, bf16 sum": trace(stock, "narrow"),
        "stock, f32 sum": trace(stock, "buffer"),
        "patched": trace(patched, "wide"),
    }
    try:
        with TpuCompiler(compiler, results) as tpu:
            found = {
                topology: {name: measure(tpu, program, topology) for name, program in programs.items()}
                for topology in TOPOLOGIES
            }
    except CastoffError as error:
        raise SystemExit(
            f"{error.summary}: expected {error.expected}, found {error.found}. {error.next_step}"
        ) from error
    faults = {topology: judge(columns["stock, f32 sum"], columns["patched"]) for topology, columns in found.items()}
    if json_output:
        print(json.dumps({"steps": found, "faults": faults}))
    else:
        for topology, columns in found.items():
            print(f"{topology:<38}" + "".join(f"{column:>17}" for column in columns))
            for name in columns["patched"]:
                print(f"  {name:<36}" + "".join(f"{figures[name]:>17,}" for figures in columns.values()))
    worse = [f"{topology}: {fault}" for topology, list_ in faults.items() for fault in list_]
    if worse:
        raise SystemExit("\n".join(worse))


if __name__ == "__main__":
    typer.run(main)
