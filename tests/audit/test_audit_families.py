"""The counts of an audit, of models that nobody here wrote, against the converts in the HLO that runs without it."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("families.py")
FAMILIES = (
    *("Llama", "Qwen3", "Gemma3", "GPT-2", "BERT", "T5", "ViT", "Whisper", "Mixtral", "Mamba"),
    *("UNet", "convolutional"),
)


def audited(families, folder):
    environment = {**os.environ, "XLA_SAVE_TENSORS_FILE": str(folder / families[0])}
    command = [sys.executable, PROGRAM, *families]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What families.py finds, in two processes."""
    folder = tmp_path_factory.mktemp("graphs")
    with ThreadPoolExecutor(2) as pool:
        halves = pool.map(lambda families: audited(families, folder), (FAMILIES[::2], FAMILIES[1::2]))
        return {family: result for half in halves for family, result in half.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_all_converts_are_counted_and_accounted_for(found, family):
    result = found[family]
    assert result["audit"] == result["by hand"]
    assert sum(result["by hand"].values()) > 20
    assert result["unaccounted"] == []
    assert set(result["phases"]) <= {"forward", "backward", "gradient clipping", "optimizer"}
    assert len(result["graphs"]) == (2 if family in ("convolutional", "UNet") else 1)
