"""Audits of steps that torch.compile, torch_xla.compile and scan run, against the HLO that runs without an audit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("forms.py")
FILE = PROGRAM.name
COMPILED = "OptimizedModule._orig_mod"
ROUNDED = [["forward", "f32 bf16", "explicit", FILE, ""], ["forward", "bf16 f32", "explicit", FILE, ""]]
CASTS = {
    "torch.compile": ROUNDED,
    "torch.compile, a training step": [*ROUNDED, ["backward", "f32 bf16", "explicit", FILE, ""]],
    "torch.compile, autocast": [["forward", "f32 bf16", "autocast", FILE, COMPILED]] * 2,
    "torch_xla.compile": ROUNDED,
    "scan": [*[["forward", "f32 bf16", "explicit", FILE, ""]] * 2, ["forward", "bf16 f32", "explicit", FILE, ""]],
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What forms.py finds."""
    environment = {**os.environ, "XLA_SAVE_TENSORS_FILE": str(tmp_path_factory.mktemp("graphs") / "saved")}
    done = subprocess.run([sys.executable, PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.passes_on_stock
@pytest.mark.parametrize("form", CASTS)
class TestForms:
    def test_the_counts_are_those_of_the_hlo(self, found, form):
        assert found[form]["audit"] == found[form]["by hand"]
        assert sum(found[form]["by hand"].values()) == len(CASTS[form])

    def test_each_is_known(self, found, form):
        assert found[form]["casts"] == CASTS[form]

    def test_the_graph(self, found, form):
        where = ["sync", FILE] if form == "torch_xla.compile" else ["end of the step", ""]
        assert found[form]["graphs"] == [where]
