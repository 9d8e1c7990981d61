"""TPU 7x, which the pin's own libtpu does not know, is compiled for by a later one."""

from pathlib import Path

import pytest
import torch
from conftest import made_environment
from test_estimate_tpu import LOOP

from castoff.formats.xla_text import parse_hlo
from castoff.tpu.client import TpuCompiler
from castoff.tpu.trace import program_of

TOPOLOGY = "tpu7x:2x2x1"

SHARDED = """
func.func public @main(%x: tensor<512x512xf32> {mhlo.sharding = "{devices=[1,2]0,1}"}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1]
    : (tensor<512x512xf32>, tensor<f32>) -> tensor<f32>
  return %sum : tensor<f32>
}
"""


@pytest.fixture(scope="module")
def compiler():
    names = made_environment("--topology", TOPOLOGY)
    with TpuCompiler(Path(names["CASTOFF_TPU_PYTHON"]), Path(names["CASTOFF_TPU_RESULTS"])) as compiler:
        yield compiler


@pytest.mark.default_pin
@pytest.mark.slow
def test_what_is_read_of_the_compilers_text_is_there(compiler):
    x = torch.zeros(4, 512, 256, dtype=torch.bfloat16).to("xla")
    w = torch.zeros(4, 256, 512, dtype=torch.bfloat16).to("xla")
    product = compiler.compile(program_of([torch.bmm(x, w, out_dtype=torch.float32)])[0], TOPOLOGY)
    assert parse_hlo(product.hlo).converts() == []
    assert product.memory["output"] == 4 * 512 * 512 * 4
    assert product.estimated_cycles > 0
    assert product.estimate.gaps() == ""
    found = [compiler.compile(LOOP.format(trips=trips).encode(), TOPOLOGY).estimate for trips in (2, 5, 8)]
    assert not any(each.loops for each in found)
    few, more, most = (each.compute for each in found)
    assert most - more == more - few > 0
    assert compiler.devices(TOPOLOGY) == 8
    assert "all-reduce" in compiler.compile(SHARDED.encode(), TOPOLOGY, 2).hlo
