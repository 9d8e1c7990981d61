"""The running variance and the backward in evaluation mode: patches/torch_xla/batch-norm."""

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import ends_the_process_on_stock, fails_on_stock, passes_on_stock
from tensors import DEVICE, bf16, f32, f64

nn = torch.nn


def data(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3 + 1


LAYERS = {
    "1d": (lambda: nn.BatchNorm1d(4), (8, 4)),
    "1d, two numbers": (lambda: nn.BatchNorm1d(4), (2, 4)),
    "1d of sequences": (lambda: nn.BatchNorm1d(4), (3, 4, 5)),
    "2d": (lambda: nn.BatchNorm2d(4), (2, 4, 3, 3)),
    "3d": (lambda: nn.BatchNorm3d(4), (2, 4, 2, 2, 2)),
    "no parameters": (lambda: nn.BatchNorm2d(4, affine=False), (2, 4, 3, 3)),
    "cumulative": (lambda: nn.BatchNorm2d(4, momentum=None), (2, 4, 3, 3)),
    "instance": (lambda: nn.InstanceNorm2d(4, track_running_stats=True), (2, 4, 3, 3)),
    "instance with parameters": (
        lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True, momentum=0.5),
        (2, 4, 5),
    ),
}


def trained(make, shape, device, dtype=f32, steps=3, compiled=False):
    """The last result and the statistics after some steps."""
    layer = make().to(device)
    run = torch.compile(layer, backend="openxla") if compiled else layer
    for step in range(steps):
        out = run((data(*shape) * (step + 1)).to(dtype).to(device))
    return out.detach().cpu(), layer.running_mean.cpu(), layer.running_var.cpu()


def assert_close(found, expected, tolerance=1e-4):
    for f, e in zip(found, expected, strict=True):
        assert f.dtype == e.dtype
        torch.testing.assert_close(f, e, rtol=tolerance, atol=tolerance)


@fails_on_stock
@pytest.mark.parametrize("name", LAYERS)
def test_running_variance(name):
    assert_close(trained(*LAYERS[name], DEVICE), trained(*LAYERS[name], "cpu"))


@fails_on_stock
def test_running_variance_in_bfloat16_with_float32_statistics():
    make, shape = LAYERS["1d, two numbers"]
    assert_close(trained(make, shape, DEVICE, bf16), trained(make, shape, "cpu", bf16), 2e-2)


@fails_on_stock
def test_running_variance_in_bfloat16():
    make, shape = lambda: nn.BatchNorm1d(4).bfloat16(), (2, 4)
    assert_close(trained(make, shape, DEVICE, bf16), trained(make, shape, "cpu", bf16), 2e-2)


@fails_on_stock
def test_running_variance_in_a_compiled_step():
    make, shape = LAYERS["2d"]
    assert_close(trained(make, shape, DEVICE, compiled=True), trained(make, shape, "cpu"))


@fails_on_stock
def test_running_variance_under_autocast():
    def variance(device):
        layer = nn.BatchNorm1d(4).to(device)
        with torch.autocast("xla", dtype=bf16):
            layer(data(2, 4).to(device))
        return [layer.running_var.cpu()]

    assert_close(variance(DEVICE), variance("cpu"))


def rows(device):
    """The statistics of two layers, one of which has seen a batch."""
    means, variances = torch.zeros(2, 4).to(device), torch.ones(2, 4).to(device)
    other = means.view(-1)[:2]
    nn.functional.batch_norm(data(8, 4).to(device), means[0], variances[0], training=True)
    return means.cpu(), variances.cpu(), other.cpu()


def from_meta(device):
    layer = nn.BatchNorm1d(4, device="meta").to_empty(device=device)
    layer.reset_parameters()
    before = layer.state_dict()
    layer(data(8, 4).to(device))
    return before["running_mean"].cpu(), *(layer.state_dict()[name].cpu() for name in ("running_mean", "running_var"))


@fails_on_stock
@pytest.mark.parametrize("statistics", (rows, from_meta))
def test_statistics_that_are_views(statistics):
    assert_close(statistics(DEVICE), statistics("cpu"))


@fails_on_stock
def test_ir_of_the_running_variance():
    layer = nn.BatchNorm1d(4).to(DEVICE)
    x = data(8, 4).to(DEVICE)
    torch_xla.sync()
    layer(x)
    ir(layer.running_var).expect("""\
%0 = f32[] xla::device_data()
%1 = f32[] xla::device_data()
%2 = f32[4] xla::device_data()
%3 = f32[4] xla::device_data()
%4 = f32[4] xla::device_data()
%5 = f32[4] xla::device_data()
%6 = f32[8,4] xla::device_data()
%7 = (f32[8,4], f32[4], f32[4], f32[4]) aten::native_batch_norm(%6, %5, %4, %3, %2)
%8 = f32[4] xla::moving_average(%7.2, %2)
%9 = f32[4] aten::sub(%8, %2, %1)
%10 = f32[4] aten::add(%8, %9, %0)
return %10
""")


# ---- evaluation mode


def with_statistics(make, dtype=f32):
    layer = make()
    with torch.no_grad():
        layer.running_mean.copy_(torch.linspace(-1, 1, 4))
        layer.running_var.copy_(torch.linspace(0.5, 2, 4))
        if layer.affine:
            layer.weight.copy_(torch.linspace(0.5, 1.5, 4))
    return layer.to(dtype).eval()


def gradients(layer, x, device, compiled=False):
    layer = layer.to(device)
    leaf = x.to(device).requires_grad_()
    run = torch.compile(layer, backend="openxla") if compiled else layer
    run(leaf).square().sum().backward()
    return [leaf.grad.cpu(), *(p.grad.cpu() for p in layer.parameters())]


@ends_the_process_on_stock("2.6")
@fails_on_stock
@pytest.mark.parametrize("name", LAYERS)
def test_backward_in_evaluation_mode(name):
    make, shape = LAYERS[name]
    found, expected = (gradients(with_statistics(make), data(*shape), device) for device in (DEVICE, "cpu"))
    assert_close(found, expected)


@ends_the_process_on_stock("2.6")
@fails_on_stock
@pytest.mark.parametrize(("parameters", "of"), ((f32, bf16), (bf16, bf16), (f64, f64)), ids=str)
def test_dtypes_of_the_backward_in_evaluation_mode(parameters, of):
    make, shape = LAYERS["2d"]
    found, expected = (
        gradients(with_statistics(make, parameters), data(*shape).to(of), device) for device in (DEVICE, "cpu")
    )
    assert_close(found, expected, 3e-2 if of is bf16 else 1e-6)


@ends_the_process_on_stock("2.6")
@fails_on_stock
def test_backward_of_a_compiled_layer_in_evaluation_mode():
    make, shape = LAYERS["2d"]
    found = gradients(with_statistics(make), data(*shape), DEVICE, compiled=True)
    assert_close(found, gradients(with_statistics(make), data(*shape), "cpu"))


@ends_the_process_on_stock("2.6")
@fails_on_stock
def test_frozen_statistics_of_a_network_that_trains():
    def grads(device):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        net[1].eval()
        net = net.to(device)
        net(data(2, 3, 6, 6).to(device)).sum().backward()
        return [p.grad.cpu() for p in net.parameters()]

    assert_close(grads(DEVICE), grads("cpu"))


@passes_on_stock
def test_evaluation_and_no_statistics_are_as_in_stock():
    layer = nn.BatchNorm2d(4).to(DEVICE).eval()
    x = data(2, 4, 3, 3).to(DEVICE).requires_grad_()
    torch_xla.sync()
    out = nn.functional.batch_norm(x, None, None, training=True)
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    text = ir(layer(x), out, grad)
    assert text.count(" aten::native_batch_norm(") == 2 and text.count(" aten::native_batch_norm_backward(") == 1
    assert "xla::moving_average" not in text and "aten::rsqrt" not in text
