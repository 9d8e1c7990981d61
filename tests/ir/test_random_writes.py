"""Random programs that write in place over several steps: each leaves what it leaves on the CPU.

CASTOFF_RANDOM_WRITES says how many (50 a day if it is not set, others each day).
"""

import os

from marks import fails_on_stock, passes_on_stock
from random_writes import fault, program, run
from slices import rotation
from tensors import DEVICE

COUNT = int(os.environ.get("CASTOFF_RANDOM_WRITES", "50"))


@fails_on_stock
def test_programs_of_each_day():
    first = (rotation() or 0) * COUNT
    faults = {}
    for seed in range(first, first + COUNT):
        steps = program(seed, length=12 + seed % 20)
        found = fault(steps, DEVICE)
        if found is not None:
            faults[seed] = f"{steps}\n{found}"
    assert not faults, f"{len(faults)} of {COUNT} are wrong: {[*faults]}. The first:\n{next(iter(faults.values()))}"


@passes_on_stock
def test_a_wrong_result_is_seen(monkeypatch):
    steps = program(0)
    assert fault(steps, DEVICE) is None
    monkeypatch.setitem(run.__globals__["WRITES"], "add_", lambda t: t.add_(1 if t.device.type == "cpu" else 2))
    assert "expected" in fault([("write", "add_", 0, 0)], DEVICE)
