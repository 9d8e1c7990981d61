"""Fixtures of the tests of torch's topics."""

import pytest
import torch


@pytest.fixture(params=["cpu", "xla"])
def device(request):
    if request.param == "cpu":
        return torch.device("cpu")
    return pytest.importorskip("torch_xla").device()
