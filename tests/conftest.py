"""The options and markers of the tests that need torch.

``--stock`` turns the proof around. In an environment with stock wheels a test marked
``fails_on_stock`` must fail, because one that passes there proves nothing about the patched wheels;
of the others those run that are marked ``passes_on_stock``. ``--unrecorded`` leaves out those that stock wheels have
been seen to fail, or to pass, as they are now (stock_record.py); ``--record`` writes what it sees.

``fails_on_stock("2.1")`` is for what only that pin's stock wheels do not do: on the others it is ``passes_on_stock``.
``fails_on_stock(until="2.10")`` is for what upstream does itself from that release on: there it is ``passes_on_stock``.

A module whose topic is not part of the pin in this environment is skipped, with the topic's own reason; but one named
``test_*_conformance.py`` states what upstream's own does, and runs where that is. A test marked ``since("2.6", what)``
is skipped where the release is older, as it lacks what the test needs; one marked ``until("2.10", what)`` from that
release on, where upstream's own does otherwise. A test marked
``ends_the_process_on_stock("2.6")`` is not run on that pin's stock wheels: a process that ends proves a difference
too, but takes the other tests with it.

A test marked ``default_pin`` or ``slow`` proves what is the same on every pin, such as a topic's switch: on earlier
pins it runs with ``--whole`` alone. Of the other tests it runs the part of the day (earlier_pins.py).

``--marks-of 2.9`` judges these marks as on that pin: to hold a newer release against what is known of that one.

``--device tpu`` runs the same tests on a TPU. Where none is there they are skipped, with the reason.
"""

import contextlib
import functools
import gc
import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path

import earlier_pins
import pytest
from stock_record import StockRecord

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest's own

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "patches"

PCI_DEVICES = Path("/sys/bus/pci/devices")
GOOGLE = "0x1ae0"


def pytest_addoption(parser):
    parser.addoption("--stock", action="store_true", help="the wheels are stock: tests marked fails_on_stock must fail")
    parser.addoption("--whole", action="store_true", help="also the tests that other pins leave to the default one")
    parser.addoption("--unrecorded", action="store_true", help="with --stock: without what tests/stock.json knows")
    parser.addoption("--record", action="store_true", help="with --stock: write what is seen into tests/stock.json")
    parser.addoption("--marks-of", metavar="PIN", help="judge what tests are marked with as on this pin")
    parser.addoption(
        "--device", choices=["cpu", "tpu"], default="cpu", help="where the tests run: CPU-XLA (the default) or a TPU"
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "fails_on_stock(*pins, until=None): shows a difference from stock wheels (of these pins, or releases)",
    )
    config.addinivalue_line("markers", "passes_on_stock: shows what is to be as in stock wheels")
    config.addinivalue_line("markers", "since(release, what): needs what torch has since that release")
    config.addinivalue_line("markers", "until(release, what): needs what torch has until that release")
    config.addinivalue_line("markers", "default_pin: proves what is the same on every pin")
    config.addinivalue_line("markers", "ends_the_process_on_stock(*pins): not run on stock wheels of these pins")
    config.release = config.getoption("--marks-of") or torch_release()
    config.default_pin = default_pin  # not read where it is not asked for
    config.stock_record = None
    if config.getoption("--stock"):
        do_not_shrink()
        leaves_out, writes = config.getoption("--unrecorded"), config.getoption("--record")
        if leaves_out or writes:
            config.stock_record = StockRecord(config.release, leaves_out=leaves_out, writes=writes)
            config.pluginmanager.register(config.stock_record)
    config.no_device = why_no_tpu() if config.getoption("--device") == "tpu" else None
    if config.no_device is None:
        start_device(config.getoption("--device"))


def do_not_shrink():
    """On stock any failing example will do: looking for the smallest takes most of a test's time."""
    with contextlib.suppress(ImportError):
        import hypothesis

        hypothesis.settings.register_profile("stock", phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
        hypothesis.settings.load_profile("stock")


def torch_release():
    """The release of this environment's torch, such as "2.9"; None without torch."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return ".".join(importlib.metadata.version("torch").split(".")[:2])
    return None


@functools.cache
def topics_of_modules():
    """For each module that a topic.toml names under `tests`, the topics that do, each with its [pins]."""
    found = {}
    for path in sorted(PATCHES.glob("*/*/topic.toml")):
        topic = tomllib.loads(path.read_text(encoding="utf-8"))
        for module in topic.get("tests", ()):
            found.setdefault(Path(module).stem, []).append((topic["name"], topic["pins"]))
    return found


def why_not_in_this_pin(module, release):
    """Why no topic of a module of tests is part of the pin; None if one is, or if the module is of no topic."""
    reasons = []
    for name, pins in topics_of_modules().get(module, ()):
        state = pins.get(release, "applies")
        if state == "applies" or is_of_upstream(module, release):
            return None
        reasons.append(f"{name} on torch {release}: {state}")
    return "; ".join(reasons) or None


def is_of_upstream(module, release):
    """Whether a module of tests states what that release's own torch does."""
    states = [pins.get(release) for _, pins in topics_of_modules().get(module, ())]
    return module.endswith("_conformance") and "upstream" in states


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
        import torch_xla.core.xla_model as xm

        if not hasattr(torch_xla, "sync"):  # torch_xla 2.1 has these functions under their older names only
            torch_xla.device, torch_xla.sync = xm.xla_device, xm.mark_step
        torch_xla._XLAC._xla_get_devices()
        if device == "tpu":
            # An f32 product on a TPU is a bf16 one unless said otherwise; the tests' numbers are float32's.
            torch_xla._XLAC._xla_set_mat_mul_precision("highest")


@pytest.fixture
def tpu():
    """The process traces what it would on a TPU; a test may call the fixture to turn that off and on."""
    from torch_xla import _native_attention  # stock wheels have none

    _native_attention.trace_for_tpu(True)
    yield _native_attention.trace_for_tpu
    _native_attention.trace_for_tpu(False)


@pytest.fixture
def set_matmul_precision():
    """Sets the precision of matrix products, for one test: what ``torch_xla.backends`` calls; 2.6 lacks that."""
    from torch_xla import _XLAC

    tell = getattr(_XLAC, "_xla_get_mat_mul_precision", None)
    outer = "default" if tell is None else tell()
    yield _XLAC._xla_set_mat_mul_precision
    _XLAC._xla_set_mat_mul_precision(outer)


class SkippedModule(pytest.Module):
    """A module of tests that is not even imported: what it needs is not there."""

    def collect(self):
        pytest.skip(self.reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    reason = parent.config.no_device or why_not_in_this_pin(module_path.stem, parent.config.release)
    if reason is None:
        return None
    module = SkippedModule.from_parent(parent, path=module_path)
    module.reason = reason
    return module


def number(release):
    return tuple(map(int, release.split(".")))


def why_not_on_release(item, release):
    """Why a test cannot run on a release of torch; None if it can."""
    for marker in item.iter_markers("since"):
        needed, what = marker.args
        if number(release) < number(needed):
            return f"torch {release} lacks {what}"
    for marker in item.iter_markers("until"):
        gone, what = marker.args
        if number(release) >= number(gone):
            return f"torch {release} has no {what}"
    return None


def default_pin():
    """The pin whose tests are all run."""
    pins = (ROOT / "castoff" / "model" / "pin.py").read_text(encoding="utf-8")
    return re.search(r'^DEFAULT_PIN = "(.*)"$', pins, re.MULTILINE)[1]


def differs_from_stock(item, release):
    """Whether a test shows a difference from the stock wheels of a release; None if it says nothing of them."""
    marker = item.get_closest_marker("fails_on_stock")
    until = marker.kwargs.get("until") if marker is not None else None
    mended = (until is not None and number(release) >= number(until)) or is_of_upstream(item.path.stem, release)
    if marker is not None and not mended and (not marker.args or release in marker.args):
        return True
    return False if marker is not None or item.get_closest_marker("passes_on_stock") else None


def ends_the_process_on_stock(item, release):
    marker = item.get_closest_marker("ends_the_process_on_stock")
    return marker is not None and release in marker.args


def every_case_of(pin):
    """Which modules of tests run every case on an earlier pin, as its own files or the topic's for it have changed."""
    files = earlier_pins.changed_lately()
    if earlier_pins.is_of_pin(pin, files):
        return lambda module: True
    topics = earlier_pins.topics_of_pin(pin, files)
    return lambda module: not topics.isdisjoint(name for name, _ in topics_of_modules().get(module, ()))


def deselect(config, items, left_out):
    left_out = set(left_out)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_modifyitems(config, items):
    release = config.release
    whole = config.getoption("--whole") or config.getoption("--marks-of")
    stock = config.getoption("--stock")
    if release is not None and not whole and number(release) < number(default_pin()):
        every_case = every_case_of(release)
        deselect(config, items, earlier_pins.left_out(items, release, every_case))
    for item in items:
        reason = why_not_on_release(item, config.release)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
    if not stock:
        return
    must_fail = pytest.mark.xfail(strict=True, reason="stock wheels")
    # What is to be as in stock wheels is seen on stock ones, but for what takes long.
    kept = [
        item
        for item in items
        if (differs := differs_from_stock(item, config.release)) is not None
        and (differs or item.get_closest_marker("slow") is None)
    ]
    for item in kept:
        if ends_the_process_on_stock(item, config.release):
            item.add_marker(pytest.mark.skip(reason=f"ends the process on stock {config.release}"))
        elif differs_from_stock(item, config.release):
            item.add_marker(must_fail)
    deselect(config, items, set(items) - set(kept))
    if config.stock_record is not None:
        deselect(config, items, config.stock_record.choose(items, lambda item: differs_from_stock(item, release)))


def pytest_collection_finish():
    gc.freeze()  # what the imports made lives as long as the process: collections need not look at it


def pytest_runtest_setup(item):
    """On stock, let go of the tensors of tests that failed as they must: a sync of all live tensors fails on theirs."""
    if item.config.getoption("--stock") and item.get_closest_marker("xfail") is None:
        gc.collect()
