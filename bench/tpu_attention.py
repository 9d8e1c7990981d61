"""What attention of bfloat16 tensors costs on a TPU: stock, castoff, and castoff with narrow weights.

Forward and backward of 4 × 8 heads of 1024 × 64, for several forms of the call, of one also the forward alone; of 16
causal heads of 128 and 2,048 or 4,096 tokens, which castoff computes in slices; and those of one pre-norm transformer
layer (batch 4, 1024 tokens, width 1024, 16 heads, exact GELU). Traced on CPU-XLA and compiled by the pin's own libtpu;
no TPU is needed. --write puts what is found into bench/measured/tpu_attention.json.
What takes more than stock is named at the end; exit status 1 if that is so with narrow weights.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from shared import compact_json

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from castoff.core.errors import CastoffError  # noqa: E402 - found by the line above
from castoff.tpu.client import TpuCompiler  # noqa: E402
from castoff.tpu.trace import FOR_TPU  # noqa: E402

MEASURED = ROOT / "bench" / "measured" / "tpu_attention.json"
PROGRAM = """
import contextlib, sys
from pathlib import Path
import torch, torch_xla
from torch import nn
from torch.nn import functional as F
sys.path.insert(0, sys.argv[1])
from castoff.tpu.trace import program_of

folder, opted_in = Path(sys.argv[2]), sys.argv[3] == "opted in"

def data(*sizes, dtype=torch.bfloat16):
    return torch.zeros(sizes, dtype=dtype).to("xla")

def write(name, tensors):
    (folder / name).write_bytes(program_of(tensors)[0])

class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        heads = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

B, H, T, D = 4, 8, 1024, 64
mask = data(B, 1, T, T, dtype=torch.bool)
forms = {"plain": {}, "causal": {"is_causal": True}, "bool mask": {"attn_mask": mask}, "dropout": {"dropout_p": 0.1}}
forms["grouped"] = {"enable_gqa": True}
native_mul = contextlib.nullcontext()
if opted_in:
    from torch_xla import experimental
    experimental.narrow_attention(True)
    native_mul = experimental.native_mul_context()
for name, options in forms.items():
    keys = 2 if name == "grouped" else H
    leaves = [data(B, heads, T, D).requires_grad_() for heads in (H, keys, keys)]
    grad = data(B, H, T, D)
    torch_xla.sync()
    result = F.scaled_dot_product_attention(*leaves, **options)
    if name == "plain":
        write(name + ", forward", [result])
    result.backward(grad)
    write(name + ", forward and backward", [result, *(t.grad for t in leaves)])
for tokens in (2048, 4096):
    leaves = [data(1, 16, tokens, 128).requires_grad_() for _ in range(3)]
    grad = data(1, 16, tokens, 128)
    torch_xla.sync()
    result = F.scaled_dot_product_attention(*leaves, is_causal=True)
    result.backward(grad)
    write(f"causal, {tokens} tokens, forward and backward", [result, *(t.grad for t in leaves)])
with native_mul:
    layer, x, grad = Layer(1024, 16).bfloat16().to("xla"), data(B, T, 1024).requires_grad_(), data(B, T, 1024)
    torch_xla.sync()
    result = layer(x)
    result.backward(grad)
    write("layer, forward and backward", [result, x.grad, *(p.grad for p in layer.parameters())])
"""

TOPOLOGIES = ["v5e:2x2", "v6e:2x2"]


def trace(python: Path, column: str, folder: Path) -> dict[str, bytes]:
    """Each program's StableHLO, as one torch_xla makes it."""
    folder.mkdir()
    environment = {**os.environ, "PJRT_DEVICE": "CPU", **FOR_TPU}
    command = [python, "-c", PROGRAM, ROOT, folder, column]
    result = subprocess.run(command, env=environment, capture_output=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{python} cannot trace attention:\n{result.stderr.decode()}")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def main(
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    compiler: Annotated[Path, typer.Option(envvar="CASTOFF_TPU_PYTHON", help="`castoff tpu environment` prints it.")],
    results: Annotated[Path, typer.Option(envvar="CASTOFF_TPU_RESULTS", help="`castoff tpu environment` prints it.")],
    write: Annotated[bool, typer.Option("--write", help="Write bench/measured/tpu_attention.json.")] = False,
) -> None:
    """.venv/bin/python bench/tpu_attention.py --stock STOCK/bin/python --patched PATCHED/bin/python

    Compare attention with stock's, on the TPU compiler.
    """
    columns = {"stock": stock, "castoff": patched, "opted in": patched}
    found: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        programs = {
            column: trace(python, column, Path(temporary) / column.replace(" ", "-"))
            for column, python in columns.items()
        }
    try:
        with TpuCompiler(compiler, results) as tpu:
            for topology in TOPOLOGIES:
                for name in sorted(programs["stock"]):
                    for column in columns:
                        compiled = tpu.compile(programs[column][name], topology)
                        figures = {"cycles": compiled.estimated_cycles, "temporary bytes": compiled.memory["temp"]}
                        found.setdefault(topology, {}).setdefault(name, {})[column] = figures
                        print(f"{topology:<10}{name:<46}{column:<10}", *map("{:>14,}".format, figures.values()))
    except CastoffError as error:
        raise SystemExit(
            f"{error.summary}: expected {error.expected}, found {error.found}. {error.next_step}"
        ) from error
    if write:
        MEASURED.write_text(compact_json.dumps(found, depth=2), encoding="utf-8")
    worse = {
        (topology, name, column, unit): f"{figures[unit]:,}, stock {row['stock'][unit]:,}"
        for topology, rows in found.items()
        for name, row in rows.items()
        for column, figures in row.items()
        for unit in figures
        if figures[unit] > row["stock"][unit] * 1.001
    }
    for what, numbers in worse.items():
        print("more than stock:", ", ".join(what), numbers)
    if any(column == "opted in" for _, _, column, _ in worse):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
