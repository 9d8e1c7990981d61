"""Random programs in one process, with every cache on: each gives what it gives on the CPU.

CASTOFF_RANDOM_GRAPHS says how many (1,000 if it is not set). Of more than 2,000 a run has a part, others each day.
"""

import os

import pytest
from random_graphs import Program
from slices import slice_of_day
from tensors import DEVICE

CHUNK = 500
COUNT = int(os.environ.get("CASTOFF_RANDOM_GRAPHS", "1000"))
CHUNKS = slice_of_day(range(0, COUNT, CHUNK), parts=max(1, COUNT // 2000))


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("first", CHUNKS)
def test_random_programs(first):
    seeds = range(first, min(first + CHUNK, COUNT))
    print(f"seeds {seeds.start} to {seeds.stop - 1}")
    wrong = {}
    for seed in seeds:
        program = Program(seed)
        fault = program.fault(DEVICE)
        if fault is not None:
            wrong[seed] = f"{program}\n{fault}"
    assert not wrong, f"{len(wrong)} of {len(seeds)} are wrong: {[*wrong]}. The first:\n{next(iter(wrong.values()))}"


@pytest.mark.passes_on_stock
def test_a_wrong_result_is_seen():
    """What says that a program is right looks at its results."""
    program = Program(0)
    assert program.fault(DEVICE) is None
    program.expected[0] = program.expected[0] + 1
    assert "expected" in program.fault(DEVICE)
