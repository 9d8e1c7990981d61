"""The README's charts, from the numbers in bench/measured/.

    python bench/chart.py --write|--check

Draws docs/images/gains.svg: the error of a weight's gradient (measured by
bench/wide_weight_grad.py), and the casts of a training step of five models and the bytes that they move (by
bench/audit_models.py), with stock wheels, castoff's, and castoff's with what one opts into. Draws
docs/images/layers.svg: the estimated cycles of layers on TPUs, of stock's, and JAX's beside them (by
bench/tpu_models.py). Draws training-losses and training-errors: see training_chart.py. Each file is light, and dark
where its reader prefers that. --check exits with 1 if the files are others. Runs where bench/chart.lock is installed.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from shared import training_chart

mpl.use("svg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
STEPS = {
    "gpt": "GPT, AdamW",
    "llama": "Llama, AdamW",
    "bert": "BERT, AdamW",
    "resnet": "ResNet-50, SGD",
    "decode": "a decoder's token",
}
"""The names of step_replay.json's steps."""
MEASURED = ROOT / "bench" / "measured"
IMAGES = ROOT / "docs" / "images"
COLUMNS = ("stock", "castoff", "opted in")
BESIDE_STOCK = ("castoff", "opted in", "JAX")
MODE = "bf16"


@dataclass(frozen=True)
class Theme:
    """Colours that can be told apart by those who see fewer."""

    text: str
    grid: str
    bars: tuple[str, str, str]  # of COLUMNS
    jax: str
    lines: dict[str, str]  # of the kinds of training


LIGHT = Theme("#1f2328", "#d1d9e0", ("#8c959f", "#0072b2", "#d55e00"), "#009e73", training_chart.COLORS)
DARK = {
    "#1f2328": "#e6edf3",
    "#d1d9e0": "#3d444d",
    "#8c959f": "#848d97",
    "#0072b2": "#56b4e9",
    "#d55e00": "#e69f00",
    "#009e73": "#2bbf94",
    "#6e7781": "#b1bac4",
    "#cc79a7": "#e6a3cb",
}
"""For each colour of LIGHT the one on a dark page."""


def casts(key: str) -> dict[str, list[float]]:
    """Casts, or the KiB that they move, of each model in COLUMNS."""
    rows = json.loads((MEASURED / "casts_of_models.json").read_text())
    unit = 1024 if key == "bytes" else 1
    return {
        name.removesuffix(f" | {MODE}"): [row[column][key] / unit for column in COLUMNS]
        for name, row in rows.items()
        if name.endswith(f" | {MODE}")
    }


def errors() -> list[float]:
    """The error of a weight's gradient in COLUMNS."""
    measured = json.loads((MEASURED / "weight_grad_error.json").read_text())
    return [
        measured["stock"]["bfloat16 gradients"],
        measured["castoff"]["bfloat16 gradients"],
        measured["castoff"]["float32 gradients"],
    ]


def draw_errors(axes: Any, theme: Theme) -> None:
    """A bar a column, on a logarithmic scale."""
    axes.set_title("Weight gradient error", loc="left")
    axes.set_yscale("log")
    for at, (column, error) in enumerate(zip(COLUMNS, errors(), strict=True)):
        axes.bar(at, error, color=theme.bars[at], width=0.75)
        label = axes.text(at, error * 1.25, f"{error:.1e}", ha="center", va="bottom", fontsize=8)
        label.set_gid(f"error/{column}")
    axes.set_ylim(1e-8, 1e-1)
    axes.set_xticks([])
    axes.set_xlabel("a linear layer, 64 micro-batches,\nrelative to float64", fontsize=8)


def draw_casts(axes: Any, theme: Theme, key: str, title: str) -> None:
    """For each model a bar a column."""
    axes.set_title(title, loc="left")
    rows = casts(key)
    for at, (model, values) in enumerate(rows.items()):
        for number, value in enumerate(values):
            place = at + (number - 1) * 0.28
            axes.bar(place, value, color=theme.bars[number], width=0.26)
            label = axes.text(place, value, f" {value:,.0f}", ha="center", va="bottom", rotation=90, fontsize=7)
            label.set_gid(f"{key}/{model}/{COLUMNS[number]}")
    axes.set_xticks(range(len(rows)), [name.replace(", tied", "") for name in rows], fontsize=8)
    axes.margins(y=0.15)


def layers() -> dict[str, dict[str, dict[str, dict[str, int]]]]:
    """The figures of layers on TPUs by generation, layer and column."""
    found: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
    for layer, rows in json.loads((MEASURED / "tpu_models.json").read_text()).items():
        for generation, row in rows.items():
            found.setdefault(generation, {})[layer] = row
    return found


def draw_layers(axes: Any, theme: Theme, generation: str, measured: dict[str, dict[str, dict[str, int]]]) -> None:
    """For each layer a bar for castoff, castoff opted in and JAX; stock is the line at 1."""
    axes.set_title(f"Estimated cycles on {generation}", loc="left")
    axes.axhline(1, color=theme.bars[0], linewidth=2)
    for at, (layer, row) in enumerate(measured.items()):
        for number, (column, color) in enumerate(zip(BESIDE_STOCK, (*theme.bars[1:], theme.jax), strict=True)):
            of_stock = row[column]["cycles"] / row["stock"]["cycles"]
            place = at + (number - 1) * 0.28
            axes.bar(place, of_stock, color=color, width=0.26)
            label = axes.text(place, of_stock, f" {of_stock:.2f}", ha="center", va="bottom", rotation=90, fontsize=7)
            label.set_gid(f"{generation}/{layer}/{column}")
    axes.set_xticks(range(len(measured)), list(measured), fontsize=7)
    axes.margins(y=0.15)


def draw_gains(theme: Theme) -> Any:
    """The chart of errors and casts."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.3), width_ratios=(1, 2, 2), layout="constrained")
    draw_errors(axes[0], theme)
    draw_casts(axes[1], theme, "casts", "Casts in a bfloat16 training step")
    draw_casts(axes[2], theme, "bytes", "KiB that they move")
    legend(figure, theme.bars, ["stock torch_xla", "castoff, by default", "castoff, opted in"])
    return figure


def draw_speed(theme: Theme) -> Any:
    """The chart of layers on TPUs."""
    measured = layers()
    generations = list(measured)
    widths = [1 + len(measured[generation]) for generation in generations]
    figure, axes = plt.subplots(
        1, len(generations), figsize=(10, 3), sharey=True, width_ratios=widths, layout="constrained"
    )
    for place, generation in zip(axes, generations, strict=True):
        draw_layers(place, theme, generation, measured[generation])
    names = ["stock torch_xla = 1", "castoff, by default", "castoff, opted in", "JAX"]
    legend(figure, (*theme.bars, theme.jax), names)
    return figure


def draw_host(theme: Theme) -> Any:
    """The chart of the host's time for a step."""
    rows = json.loads((MEASURED / "step_replay.json").read_text())["steps"]
    columns, colors = ("stock", "castoff", "replayed", "jax"), (*theme.bars, theme.jax)
    figure, axes = plt.subplots(figsize=(10, 2.8), layout="constrained")
    axes.set_title("The host's milliseconds for a step", loc="left")
    axes.set_yscale("log")
    for at, (step, row) in enumerate(rows.items()):
        for number, (column, color) in enumerate(zip(columns, colors, strict=True)):
            place = at + (number - 1.5) * 0.2
            axes.bar(place, row[column], color=color, width=0.19)
            label = axes.text(place, row[column], f"{row[column]:.2g}", ha="center", va="bottom", fontsize=7)
            label.set_gid(f"host/{step}/{column}")
    axes.set_xticks(range(len(rows)), [STEPS[step] for step in rows])
    axes.margins(y=0.15)
    legend(figure, colors, ["stock, traced", "castoff, traced", "castoff, replayed", "jax.jit, as many arrays"])
    return figure


CHARTS: dict[str, Callable[[Theme], Any]] = {
    "gains": draw_gains,
    "layers": draw_speed,
    "host": draw_host,
    "training-losses": training_chart.training_losses,
    "training-errors": training_chart.training_errors,
}


def legend(figure: Any, colors: tuple[str, ...], names: list[str]) -> None:
    bars = [plt.Rectangle((0, 0), 1, 1, color=color) for color in colors]
    figure.legend(bars, names, loc="outside lower center", ncols=len(names), frameon=False)


def dark_style() -> str:
    """The rules that turn a light chart into a dark one."""
    rules = [
        f'[style*="{what}: {light}"]{{{what}:{dark}!important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    ]
    return f"<style>@media (prefers-color-scheme: dark) {{{''.join(rules)}}}</style>"


def draw(chart: Callable[[Theme], Any], theme: Theme = LIGHT) -> str:
    """A chart as SVG, the same bytes each time."""
    settings = {
        "svg.fonttype": "none",  # text stays text: readable by programs, and by our test
        "svg.hashsalt": "castoff",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.titleweight": "bold",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": theme.grid,
        **dict.fromkeys(["text.color", "axes.labelcolor", "xtick.color", "ytick.color"], theme.text),
        "axes.edgecolor": theme.grid,
    }
    with mpl.rc_context(settings):
        figure = chart(theme)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": "bench/chart.py"})
        plt.close(figure)
    text = file.getvalue().replace(" <defs>", f" {dark_style()}\n <defs>", 1)
    return " ".join(text.split()).replace('<g id="axes', '\n<g id="axes') + "\n"  # a line for each part of the chart


def main() -> None:
    """Draw each chart, and write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true")
    action.add_argument("--check", action="store_true")
    options = parser.parse_args()
    for chart, function in CHARTS.items():
        path, text = IMAGES / f"{chart}.svg", draw(function)
        if options.write:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path.name} does not show bench/measured/: run bench/chart.py --write")


if __name__ == "__main__":
    main()
