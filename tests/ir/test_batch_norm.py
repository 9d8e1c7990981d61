"""The running variance and the backward in evaluation mode: patches/torch_xla/batch-norm."""

import os

os.environ.setdefault("PJRT_DEVICE", "CPU")

import pytest
import torch
import torch_xla
from expecttest import assert_expected_inline
from ir_text import ir

DEVICE = torch_xla.device()
bf16, f32 = torch.bfloat16, torch.float32

fails_on_stock = pytest.mark.fails_on_stock
passes_on_stock = pytest.mark.passes_on_stock
nn = torch.nn


def data(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3 + 1


LAYERS = {
    "1d": (lambda: nn.BatchNorm1d(4), (8, 4)),
    "1d of sequences": (lambda: nn.BatchNorm1d(4), (3, 4, 5)),
    "2d": (lambda: nn.BatchNorm2d(4), (2, 4, 3, 3)),
    "3d": (lambda: nn.BatchNorm3d(4), (2, 4, 2, 2, 2)),
    "no parameters": (lambda: nn.BatchNorm2d(4, affine=False), (2, 4, 3, 3)),
    "cumulative": (lambda: nn.BatchNorm2d(4, momentum=None), (2, 4, 3, 3)),
    "instance": (lambda: nn.InstanceNorm2d(4, track_running_stats=True), (2, 4, 3, 3)),
}


def trained(make, shape, device, steps=3):
    layer = make().to(device)
    for step in range(steps):
        out = layer((data(*shape) * (step + 1)).to(device))
    return out.detach().cpu(), layer.running_mean.cpu(), layer.running_var.cpu()


@fails_on_stock
@pytest.mark.parametrize("name", LAYERS)
def test_running_variance(name):
    for found, expected in zip(trained(*LAYERS[name], DEVICE), trained(*LAYERS[name], "cpu"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@fails_on_stock
def test_running_variance_in_bfloat16_with_float32_statistics():
    layers = [nn.BatchNorm2d(4).to(device) for device in (DEVICE, "cpu")]
    for layer in layers:
        layer(data(2, 4, 3, 3).to(bf16).to(layer.weight.device))
    torch.testing.assert_close(layers[0].running_var.cpu(), layers[1].running_var, rtol=1e-2, atol=1e-2)


def gradients(layer, x, device):
    layer = layer.to(device).eval()
    leaf = x.to(device).requires_grad_()
    layer(leaf).square().sum().backward()
    return [leaf.grad.cpu(), *(p.grad.cpu() for p in layer.parameters())]


@fails_on_stock
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("instance",)])
def test_backward_in_evaluation_mode(name):
    make, shape = LAYERS[name]

    def layer():
        made = make()
        with torch.no_grad():
            made.running_mean.copy_(torch.linspace(-1, 1, 4))
            made.running_var.copy_(torch.linspace(0.5, 2, 4))
            if made.affine:
                made.weight.copy_(torch.linspace(0.5, 1.5, 4))
        return made

    for found, expected in zip(
        gradients(layer(), data(*shape), DEVICE), gradients(layer(), data(*shape), "cpu"), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@fails_on_stock
def test_frozen_statistics_of_a_network_that_trains():
    def grads(device):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        net[1].eval()
        net = net.to(device)
        net(data(2, 3, 6, 6).to(device)).sum().backward()
        return [p.grad.cpu() for p in net.parameters()]

    for found, expected in zip(grads(DEVICE), grads("cpu"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@passes_on_stock
def test_evaluation_and_no_statistics_are_as_in_stock():
    layer = nn.BatchNorm2d(4).to(DEVICE).eval()
    x = data(2, 4, 3, 3).to(DEVICE)
    torch_xla.sync()
    assert_expected_inline(
        ir(layer(x), nn.functional.batch_norm(x, None, None, training=True)),
        """\
""",
    )
