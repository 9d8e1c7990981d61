"""The README's charts show the measured numbers."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "bench" / "measured"


def layers() -> dict[str, str]:
    """The same of the chart of layers."""
    record = json.loads((MEASURED / "tpu_models.json").read_text())
    return {
        f"{generation}/{layer}/{column}": f"{row[column]['cycles'] / row['stock']['cycles']:.2f}"
        for layer, rows in record.items()
        for generation, row in rows.items()
        for column in ("castoff", "opted in", "JAX")
    }


def shown() -> dict[str, str]:
    """Each label that the measured numbers must give, by its name in the drawing."""
    errors = json.loads((MEASURED / "weight_grad_error.json").read_text())
    labels = {
        "error/stock": f"{errors['stock']['bfloat16 gradients']:.1e}",
        "error/castoff": f"{errors['castoff']['bfloat16 gradients']:.1e}",
        "error/opted in": f"{errors['castoff']['float32 gradients']:.1e}",
    }
    for name, row in json.loads((MEASURED / "casts_of_models.json").read_text()).items():
        model, mode = name.split(" | ")
        if mode == "bf16":
            for column, numbers in row.items():
                labels[f"casts/{model}/{column}"] = f"{numbers['casts']:,}"
                labels[f"bytes/{model}/{column}"] = f"{numbers['bytes'] / 1024:,.0f}"
    return labels


def drawn(name: str) -> dict[str, str]:
    """Each label of a chart by its name in the drawing."""
    tree = ET.parse(ROOT / "docs" / "images" / f"{name}.svg")
    return {
        group.get("id", ""): "".join(group.itertext()).strip()
        for group in tree.iter("{http://www.w3.org/2000/svg}g")
        if "/" in group.get("id", "")
    }


def test_the_charts_show_what_was_measured() -> None:
    assert drawn("gains") == shown()
    assert len(shown()) == 3 + 2 * 5 * 3
    assert drawn("layers") == layers()
    assert layers()


@pytest.mark.parametrize("chart", ["gains", "layers"])
def test_the_readme_has_the_charts(chart: str) -> None:
    assert f"docs/images/{chart}.svg" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_of_pins_has_the_errors_of_each() -> None:
    pins = (ROOT / "docs" / "pins.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (2\.\d)\b[^|]*\|[^|]*\| ([^|]* → [^|]*) \|", pins)
    measured = json.loads((MEASURED / "pins.json").read_text())
    shown = {pin: f"{errors['stock']:.1e} → {errors['castoff']:.1e}" for pin, errors in measured.items()}
    assert {pin: text for pin, text in rows if pin in measured} == shown
    assert all(errors["castoff"] <= 1e-6 < errors["stock"] for errors in measured.values())


def test_the_table_of_topics_has_the_cycles_of_attention() -> None:
    attention = json.loads((MEASURED / "tpu_attention.json").read_text())["v5e:2x2"]["plain, forward and backward"]
    layers = json.loads((MEASURED / "tpu_models.json").read_text())["pre-norm"]
    rows = [attention, *(layers[topology] for topology in ("v5e", "v5p", "v6e"))]
    ratios = [f"{row['castoff']['cycles'] / row['stock']['cycles']:.2f}" for row in rows]
    text = (
        "of stock's cycles {} for attention on v5e (`tpu_attention.py`), for a transformer layer {} on v5e, {} on v5p, "
        "{} on v6e (`tpu_models.py`)"
    )
    assert text.format(*ratios) in (ROOT / "docs" / "topics.md").read_text(encoding="utf-8")
