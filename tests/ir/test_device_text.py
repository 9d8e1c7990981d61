"""The text of a device, which castoff makes without a stream, is torch's."""

import ctypes

import pytest
import torch
import torch_xla
from other_process import forked, fresh

PROGRAM = """
import torch, torch_xla
print(torch_xla._XLAC._get_xla_tensor_debug_info(torch.ones(2, device="xla")))
"""


@pytest.mark.fails_on_stock
def test_what_torch_xla_calls_is_in_front_of_torch():
    name = "_ZNK5torch4lazy13BackendDevice8toString"
    assert any(hasattr(ctypes.CDLL(None), name + end) for end in ("B5cxx11Ev", "Ev"))


@pytest.mark.passes_on_stock
def test_the_device_of_a_tensor():
    info = torch_xla._XLAC._get_xla_tensor_debug_info(torch.ones(2, device="xla"))
    assert "Device: CPU:0\n" in info


@pytest.mark.default_pin
@pytest.mark.parametrize(
    ("run", "options"),
    [(forked, {}), pytest.param(fresh, {"CASTOFF_DISABLE": "device-text"}, marks=pytest.mark.slow)],
    ids=["on", "off"],
)
def test_the_virtual_device(run, options):
    assert "Device: SPMD:0\n" in run("-c", PROGRAM, XLA_USE_SPMD="1", **options).stdout
