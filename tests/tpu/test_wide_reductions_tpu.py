"""wide-reductions on the TPU compiler: float32 sums cost no more estimated cycles than stock's sums."""

import pytest
import torch
import torch.nn.functional as F
from device_data import data

N = 4096
PROGRAMS = {
    "softmax": lambda x: x.softmax(1),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(N, dtype=torch.int64).to(x.device)),
    "layer_norm": lambda x: F.layer_norm(x, (N,)),
    "mean": lambda x: x.mean(1),
    "mean to float32": lambda x: x.mean(1, dtype=torch.float32),
    "cumsum": lambda x: x.cumsum(1),
}
STOCK = {
    "v5e": (977472, 917743, 541191, 439038, 439020, 1257331),
    "v5p": (423736, 408002, 214455, 212540, 212534, 900886),
    "v6e": (634048, 607447, 290563, 380546, 380537, 874355),
}
"""Estimated cycles of the programs on stock wheels, with the compiler of pin 2.9."""


@pytest.mark.passes_on_stock
def test_4096_squared_costs_no_more_cycles_than_stock(tpu_hlo, topology):
    cycles = {name: tpu_hlo(program(data(N, N)), topology).estimated_cycles for name, program in PROGRAMS.items()}
    limits = dict(zip(PROGRAMS, STOCK[topology.split(":")[0]], strict=True))
    assert cycles.keys() == limits.keys()
    assert {name: count for name, count in cycles.items() if not 0 < count <= limits[name]} == {}


@pytest.mark.fails_on_stock
def test_a_mean_takes_half_of_stocks_cycles(tpu_hlo, topology):
    limit = STOCK[topology.split(":")[0]][3]
    assert tpu_hlo(data(N, N).mean(1), topology).estimated_cycles < 0.6 * limit


@pytest.mark.passes_on_stock
@pytest.mark.parametrize("dim", [0, 1])
def test_a_sum_of_bfloat16_is_that_of_float32(tpu_hlo, topology, dim):
    """The same program: what sums of bfloat16 lose on XLA:CPU they do not lose on a TPU."""
    narrow = tpu_hlo(data(N, N).sum(dim), topology)
    wide = tpu_hlo(data(N, N).float().sum(dim).bfloat16(), topology)
    assert narrow.text == wide.text and "reduce[add bf16]" in narrow.text
