"""Records as JSON of few lines."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from shared import compact_json

RECORD = {"b": {"x": [1, 2], "y": {"z": None}}, "a": {}}


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("sort_keys", [False, True])
def test_it_is_json_of_the_record(depth: int, sort_keys: bool) -> None:
    assert json.loads(compact_json.dumps(RECORD, depth, sort_keys=sort_keys)) == RECORD


def test_what_is_deep_is_on_one_line() -> None:
    text = compact_json.dumps(RECORD, 2, sort_keys=True)
    assert text == '{\n "a": {},\n "b": {\n  "x": [1, 2],\n  "y": {"z": null}\n }\n}\n'
