"""The programs of the day do what is recorded of them, and nothing worse than on stock wheels."""

import json
import subprocess
import sys
from pathlib import Path

import judge
import pytest
import record
import torch
from slices import slice_of_day

PARTS = 7
CPU = torch.device("cpu")


@pytest.mark.default_pin
def test_programs_of_the_day_do_what_is_recorded():
    names = slice_of_day(record.names(), PARTS)
    runner = Path(__file__).with_name("runner.py")
    done = subprocess.run([sys.executable, runner, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(row["name"] for row in rows) == names
    assert not record.problems(rows, record.read())


def outcome(here, on_cpu):
    def program(result):
        def run(device):
            if isinstance(result, Exception):
                raise result
            return result

        return judge.run(run, CPU)

    return judge.judged(program(here), program(on_cpu)).kind


@pytest.mark.default_pin
@pytest.mark.parametrize(
    ("here", "on_cpu", "kind"),
    [
        (torch.ones(2), torch.ones(2), "right"),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), "right"),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")]), "wrong value"),
        (torch.tensor([1.0, float("inf")]), torch.tensor([1.0, float("-inf")]), "wrong value"),
        (torch.tensor([1.0, 2.01]), torch.tensor([1.0, 2.0]), "wrong value"),
        (torch.tensor([2**53 + 1]), torch.tensor([2**53]), "wrong value"),
        (torch.ones(2).double(), torch.ones(2), "wrong dtype"),
        (torch.ones(2, 1), torch.ones(2), "wrong shape"),
        ([1, 2], [1], "wrong type"),
        (1, True, "wrong type"),
        (1.0, 1.5, "wrong value"),
        ("a", "b", "wrong value"),
        (ValueError("no"), ValueError("no, too"), "right"),
        (ValueError("no"), 1, "raises ValueError"),
        (ValueError("no"), IndexError("no"), "raises ValueError"),
        (1, ValueError("no"), "accepts"),
    ],
)
def test_the_judge(here, on_cpu, kind):
    assert outcome(here, on_cpu) == kind
