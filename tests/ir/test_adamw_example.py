"""examples/adamw_bf16_wide_grads.py: AdamW with bfloat16 weights and float32 gradients follows float32 training."""

import json
from pathlib import Path

import pytest
from marks import fails_on_stock
from other_process import forked

EXAMPLE = Path(__file__).parents[2] / "examples" / "adamw_bf16_wide_grads.py"


def result_of(steps):
    return json.loads(forked(EXAMPLE, "--json", "--steps", steps, "--micro-batches", "48").stdout)


@fails_on_stock
@pytest.mark.default_pin
@pytest.mark.slow
def test_the_loss_curve_stays_close_to_float32s():
    losses = result_of(steps=10)["losses"]
    wide, exact = losses["wide"], losses["float32"]
    assert len(wide) == len(exact) == 10
    assert exact[-1] < 0.8 * exact[0]
    assert all(abs(a - b) <= 5e-3 * b for a, b in zip(wide, exact, strict=True))


@fails_on_stock
def test_the_gradients_are_nearer_to_float32s_than_bfloat16_sums():
    """What is left comes of bfloat16 activations; summing in bfloat16 more than doubles it."""
    distances = result_of(steps=1)["distances"]  # those of the first step
    assert distances["wide"] <= 5e-3
    assert 2 * distances["wide"] <= distances["bfloat16"]
