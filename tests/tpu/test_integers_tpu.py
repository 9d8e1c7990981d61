"""histograms and exact-integers on the TPU compiler: counts and quotients compile."""

import pytest
import torch
from device_data import data


@pytest.mark.parametrize("topology", ("v5e:2x2", "v6e:2x2"))
def test_counts_and_quotients_compile(tpu_hlo, topology):
    x = data(4096).to(torch.int32)
    program = tpu_hlo([x // 3, x.long() // 7, torch.histc(x, 8, 0, 7), torch.histc(x.float(), 8)], topology)
    assert program.estimated_cycles > 0
