"""The options and markers of the tests that need torch.

``--stock`` turns the proof around. In an environment with stock wheels a test marked
``fails_on_stock`` must fail, because one that passes there proves nothing about the patched wheels;
of the others those run that are marked ``passes_on_stock``.

``--device tpu`` runs the same tests on a TPU. Where none is there they are skipped, with the reason.
"""

import contextlib
import importlib.util
import os
from pathlib import Path

import pytest

PCI_DEVICES = Path("/sys/bus/pci/devices")
GOOGLE = "0x1ae0"


def pytest_addoption(parser):
    parser.addoption("--stock", action="store_true", help="the wheels are stock: tests marked fails_on_stock must fail")
    parser.addoption(
        "--device", choices=["cpu", "tpu"], default="cpu", help="where the tests run: CPU-XLA (the default) or a TPU"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "fails_on_stock: shows a difference from stock wheels")
    config.addinivalue_line("markers", "passes_on_stock: shows what is to be as in stock wheels")
    config.no_device = why_no_tpu() if config.getoption("--device") == "tpu" else None
    if config.no_device is None:
        start_device(config.getoption("--device"))


def why_no_tpu():
    """Why the tests cannot run on a TPU; None if they can."""
    if importlib.util.find_spec("libtpu") is None:
        return "no libtpu in this environment (pip install libtpu, of the version that the pin asks for)"
    vendors = [path.read_text().strip() for path in PCI_DEVICES.glob("*/vendor")]
    if GOOGLE not in vendors:
        return f"no TPU in this machine (of {len(vendors)} PCI devices none is Google's)"
    return None


def start_device(device):
    """Start the runtime: the engine counts the devices at its first backward, and XLA's must be there by then."""
    if device == "tpu":
        os.environ["PJRT_DEVICE"] = "TPU"
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    with contextlib.suppress(ImportError):
        import torch_xla

        torch_xla._XLAC._xla_get_devices()
        if device == "tpu":
            # An f32 product on a TPU is a bf16 one unless said otherwise; the tests' numbers are float32's.
            torch_xla.backends.set_mat_mul_precision("highest")


class SkippedModule(pytest.Module):
    """A module of tests that is not even imported: what it needs is not there."""

    def collect(self):
        pytest.skip(self.config.no_device, allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    if parent.config.no_device is not None:
        return SkippedModule.from_parent(parent, path=module_path)
    return None


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
