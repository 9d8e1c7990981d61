"""The options and markers of the tests that need torch.

``--stock`` turns the proof around. In an environment with stock wheels a test marked
``fails_on_stock`` must fail, because one that passes there proves nothing about the patched wheels;
of the others those run that are marked ``passes_on_stock``.
"""

import contextlib
import os

import pytest

# The engine counts the devices at its first backward: XLA's have to be there by then.
os.environ.setdefault("PJRT_DEVICE", "CPU")
with contextlib.suppress(ImportError):
    import torch_xla

    torch_xla._XLAC._xla_get_devices()


def pytest_addoption(parser):
    parser.addoption("--stock", action="store_true", help="the wheels are stock: tests marked fails_on_stock must fail")


def pytest_configure(config):
    config.addinivalue_line("markers", "fails_on_stock: shows a difference from stock wheels")
    config.addinivalue_line("markers", "passes_on_stock: shows what is to be as in stock wheels")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--stock"):
        return
    must_fail = pytest.mark.xfail(strict=True, reason="stock wheels")
    kept = [i for i in items if i.get_closest_marker("fails_on_stock") or i.get_closest_marker("passes_on_stock")]
    for item in kept:
        if item.get_closest_marker("fails_on_stock"):
            item.add_marker(must_fail)
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
