"""histc and bincount on the device: patches/torch_xla/histograms."""

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import fails_on_stock
from tensors import DEVICE
from torch_xla.debug import metrics

INF, NAN = float("inf"), float("nan")
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def fetched(tensors):
    return torch_xla._XLAC._xla_get_cpu_tensors(list(tensors))


@fails_on_stock
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_counts_of_integers(dtype):
    """As numpy's, and so torch's kernel for CUDA: the CPU has none of integers."""
    x = torch.randint(0, 100, (40, 7), generator=torch.Generator().manual_seed(0))
    wide = torch.tensor([2**31 - 1, -(2**31), 2**30, 0]) if dtype in (torch.int64, torch.int32) else x[0]
    cases = [(x, 100, 0, 99), (x, 8, 0, 7), (x, 7, 10, 90), (x, 3, 0, 100), (x, 5, 0, 0), (wide, 64, 0, 0)]
    found = fetched([torch.histc(t.to(dtype).to(DEVICE), b, low, high) for t, b, low, high in cases])
    for counts, (t, bins, *given) in zip(found, cases, strict=True):
        low, high = given if given[0] < given[1] else (int(t.min()), int(t.max()))
        expected = [0] * bins
        for number in t.flatten().tolist():
            if low <= number <= high:
                expected[min((number - low) * bins // (high - low), bins - 1)] += 1
        assert counts.dtype == dtype
        assert counts.tolist() == torch.tensor(expected).to(dtype).tolist()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_counts_of_floats(dtype):
    """As the CPU's; of bfloat16 and float16 as float32's, where the CPU rounds each step to a bin."""
    x = (torch.randn(50, 4, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    edges = torch.linspace(-2, 3, 11).to(dtype)
    special = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1.0, 2.0], dtype=dtype)
    same = torch.full((4,), 2.5, dtype=dtype)
    cases = [(x, 10, -2, 2), (x, 7, 0, 0), (edges, 10, -2, 3), (special, 4, 0, 2), (same, 3, 0, 0), (x[:0], 3, 0, 0)]
    cases += [(x[0, 0], 2, -9, 9), (x.t(), 100, 0.1, 0.7), (edges, 3, 0, 1)]
    found = fetched([torch.histc(t.to(DEVICE), b, low, high) for t, b, low, high in cases])
    for counts, (t, bins, low, high) in zip(found, cases, strict=True):
        expected = torch.histc(t if dtype == torch.float64 else t.float(), bins, low, high)
        assert counts.dtype == dtype
        assert torch.equal(counts, expected.to(dtype)), (bins, low, high)


@fails_on_stock
def test_tokens_of_experts():
    """As transformers counts them for its grouped products."""
    experts = torch.randint(0, 8, (64,), generator=torch.Generator().manual_seed(2))
    (counts,) = fetched([torch.histc(experts.int().to(DEVICE), bins=8, min=0, max=7)])
    assert counts.tolist() == torch.bincount(experts, minlength=8).tolist()


def test_bincount():
    x = torch.tensor([1, 2, 2, 5])
    cases = [(x, None, 0), (x, None, 9), (x.to(torch.uint8), None, 0), (x, torch.tensor([0.5, 1, 2, 4]), 0), (x, x, 7)]
    for t, weights, least in cases:
        on_xla = None if weights is None else weights.to(DEVICE)
        found = torch.bincount(t.to(DEVICE), on_xla, minlength=least)
        expected = torch.bincount(t, weights, minlength=least)
        assert found.dtype == expected.dtype
        assert torch.equal(found.cpu(), expected)
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([1, -2]).to(DEVICE))


@fails_on_stock
@pytest.mark.since("2.6", "tracing for a TPU")
@pytest.mark.parametrize("bins", [9, 5000])
def test_many_numbers_are_counted_on_a_tpu(tpu, bins):
    x = torch.arange(10000) ** 2 % bins
    weights = x % 4 + 0.5
    for on_cpu in (None, weights, weights.double(), x):
        on_xla = None if on_cpu is None else on_cpu.to(DEVICE)
        found, expected = torch.bincount(x.to(DEVICE), on_xla), torch.bincount(x, on_cpu)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.cpu(), expected)
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(x.to(DEVICE) - 1)


@fails_on_stock
@pytest.mark.since("2.6", "metrics.executed_fallback_ops")
def test_nothing_leaves_the_device():
    metrics.clear_counters()
    x = torch.tensor([1, 2, 2]).to(DEVICE)
    fetched([torch.histc(x.float(), 3), torch.bincount(x), torch.bincount(x, x)])
    assert not metrics.executed_fallback_ops()


@fails_on_stock
def test_refused():
    x = torch.ones(3).to(DEVICE)
    for arguments, text in (((0,), "at least one bin"), ((2, 3, 1), "max must be larger"), ((2, 0, INF), "not finite")):
        with pytest.raises(RuntimeError, match=text):
            torch.histc(x, *arguments)


@fails_on_stock
def test_integers_are_counted_as_integers_by_one_scatter():
    x = torch.tensor([0, 1, 1], dtype=torch.int32).to(DEVICE)
    text = ir(torch.histc(x, bins=2, min=0, max=1))
    assert text.count("aten::scatter_add(") == 1 and "f32[" not in text
