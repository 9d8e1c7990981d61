"""What each pin's wheels do for a user of that release: a weight's gradient, and a step of a Llama.

For each pin that has wide-weight-grad, from its wheels in dist/: the relative error of a weight's gradient after 64
micro-batches, stock and castoff, and four training steps of a small bfloat16 Llama with wide gradients and the
transformers of that pin's time. --write puts the result into bench/measured/pins.json, whose errors are in the
table of pins in docs/pins.md.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from shared import compact_json
from shared.side_by_side import run

from castoff.core.console import Console as Messages
from castoff.core.pipconfig import current_uv_environment
from castoff.core.runner import Runner

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "bench" / "measured" / "pins.json"
BIN = ROOT / ".venv" / "bin"
TRANSFORMERS = {"2.9": "4.57.1", "2.8": "4.55.4", "2.7": "4.52.4", "2.6": "4.49.0"}
MAX_ERROR = 1e-6


def environment(kind: str, pin: str, folder: Path) -> Path:
    made = subprocess.run(
        [BIN / "castoff", "env", kind, folder, "--pin", pin], check=True, stdout=subprocess.PIPE, text=True
    )
    return Path(made.stdout.strip())


def measure(pin: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=ROOT / "dist") as folder:
        stock, patched = (environment(kind, pin, Path(folder, kind)) for kind in ("stock", "patched"))
        with_packages = ["--constraint", ROOT / "dist" / f"{pin}-cpu" / "constraints.txt"]
        install = [BIN / "uv", "pip", "install", "--quiet", "--python", patched, *with_packages]
        uv = current_uv_environment(Runner(Path(folder, "logs"), Messages()))
        subprocess.run([*install, f"transformers=={TRANSFORMERS[pin]}"], check=True, env=uv)
        program = ROOT / "bench" / "workers" / "wide_gradients.py"
        return {
            "stock": run(stock, program, "accuracy")["bfloat16 gradients"],
            "castoff": run(patched, program, "accuracy")["float32 gradients"],
            "Llama": run(patched, ROOT / "bench" / "workers" / "llama_step.py"),
        }


def problems(pin: str, found: dict[str, Any]) -> list[str]:
    losses, dtypes = found["Llama"]["losses"], found["Llama"]["gradients"]
    said = {
        f"expected an error of at most {MAX_ERROR}, found {found['castoff']}": found["castoff"] > MAX_ERROR,
        f"expected gradients of float32, found {dtypes}": dtypes != ["torch.float32"],
        f"expected a loss that falls, found {losses}": losses[-1] >= losses[0],
    }
    return [f"pin {pin}: {what}" for what, wrong in said.items() if wrong]


def main(
    pins: Annotated[str, typer.Option(help="Pins, with their wheels in dist/.")] = " ".join(TRANSFORMERS),
    write: Annotated[bool, typer.Option("--write", help="Write the numbers into bench/measured/.")] = False,
) -> None:
    """.venv/bin/python bench/pins.py --pins '2.9 2.8'

    A weight's gradient after 64 micro-batches, and training steps of a Llama, on the wheels of each pin.
    """
    found = {pin: measure(pin) for pin in pins.split()}
    table = Table("pin", "stock", "castoff", "transformers", "loss of a Llama")
    for pin, numbers in found.items():
        llama = numbers["Llama"]
        losses = f"{llama['losses'][0]:.2f} → {llama['losses'][-1]:.2f}"
        table.add_row(pin, f"{numbers['stock']:.1e}", f"{numbers['castoff']:.1e}", llama["transformers"], losses)
    Console().print(table)
    wrong = [line for pin, numbers in found.items() for line in problems(pin, numbers)]
    if wrong:
        raise SystemExit("\n".join(wrong))
    if write:
        known = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
        MEASURED.write_text(compact_json.dumps(known | found, depth=1))


if __name__ == "__main__":
    typer.run(main)
