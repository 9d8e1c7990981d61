"""The charts of docs/training-measured.md, for chart.py: what bench/training.py measured.

training-losses has the loss against steps, and what it has more than float32's; training-errors the errors of gradients
by number of micro-batches, and by depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import pyplot as plt
from shared import training_record

COLORS = {
    "float32": "#6e7781",
    "bfloat16": "#d55e00",
    "masters": "#009e73",
    "buffer": "#cc79a7",
    "wide": "#0072b2",
}
LINES = {"float32": ":", "bfloat16": "-", "masters": (0, (6, 2)), "buffer": (0, (3, 1, 1, 1)), "wide": "-"}
"""How each kind's line is dashed: lines lie on each other where nothing is gained."""


def draw_band(axes: Any, theme: Any, kind: str, at: Sequence[float], bands: Sequence[training_record.Band]) -> None:
    """A line of means in its band."""
    means = [mean for mean, _ in bands]
    color = theme.lines[kind]
    axes.fill_between(at, [m - w for m, w in bands], [m + w for m, w in bands], color=color, alpha=0.2, linewidth=0)
    axes.plot(at, means, color=color, linestyle=LINES[kind], linewidth=1.4)


def draw_losses(axes: Any, theme: Any) -> None:
    """Two charts: losses, and what they have more than float32's."""
    record = training_record.read()
    axes[0].set_title("Loss of text not seen before", loc="left")
    axes[1].set_title("Loss minus that of float32, same seed", loc="left")
    for kind in training_record.NAMES:
        bands = training_record.loss_bands(record, kind)
        draw_band(axes[0], theme, kind, range(1, len(bands) + 1), bands)
        if kind != "float32":
            bands = training_record.difference_bands(record, kind)
            draw_band(axes[1], theme, kind, range(1, len(bands) + 1), bands)
    axes[1].axhline(0, color=theme.lines["float32"], linewidth=1, linestyle=LINES["float32"])
    for each in axes:
        each.set_xlabel("steps of 64 micro-batches; mean of 8 seeds and its 95 % band", fontsize=8)


def draw_gradients(axes: Any, theme: Any) -> None:
    """Three charts of errors: against an exact sum, against a float64 network, and the latter by depth."""
    record = training_record.read()
    numbers = (1, 4, 16, 64)
    for each, against, title in (
        (axes[0], "sum", "Against an exact sum"),
        (axes[1], "network", "Against a float64 network"),
    ):
        each.set_title(title, loc="left")
        each.set_xscale("log", base=2)
        each.set_xticks(numbers, [str(n) for n in numbers])
        each.minorticks_off()
        each.set_xlabel("micro-batches", fontsize=8)
        for kind in record["gradients"]["0"][against]:
            bands = [training_record.error_band(record, against, kind, n) for n in numbers]
            first = sum(mean == 0 for mean, _ in bands)  # one micro-batch has nothing to add up
            draw_band(each, theme, kind, numbers[first:], bands[first:])
    parts = training_record.parts(record)
    axes[2].set_title("The same by depth, 64 micro-batches", loc="left")
    axes[2].set_xticks(range(len(parts)), [name.removeprefix("block ") for name in parts])
    axes[2].set_xlabel("block, from the input to the output", fontsize=8)
    for kind in record["gradients"]["0"]["network"]:
        bands = [training_record.error_band(record, "network", kind, 64, part) for part in parts]
        draw_band(axes[2], theme, kind, range(len(parts)), bands)
    for each in axes:
        each.set_yscale("log")
        each.set_ylim(1e-8, 1e-1)


def legend_of_kinds(figure: Any, theme: Any, names: dict[str, str]) -> None:
    lines = [plt.Line2D([], [], color=theme.lines[kind], linestyle=LINES[kind]) for kind in names]
    figure.legend(lines, names.values(), loc="outside lower center", ncols=2, frameon=False, handlelength=3)


def training_losses(theme: Any) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    draw_losses(axes, theme)
    legend_of_kinds(figure, theme, training_record.NAMES)
    return figure


def training_errors(theme: Any) -> Any:
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
    draw_gradients(axes, theme)
    legend_of_kinds(figure, theme, training_record.GRADIENT_NAMES)
    return figure
