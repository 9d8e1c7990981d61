"""Results on XLA beside those of torch on the CPU."""

import torch
import torch_xla
from tensors import DEVICE, bf16, f16

ROUNDING = {bf16: 2**-8, f16: 2**-11}  # of one conversion to the dtype, relative


def check(actual, expected):
    """``actual`` is the float64 ``expected``: exactly, or rounded once to its dtype after sums in float32."""
    torch_xla.sync()  # all that is pending in one compilation
    actual = actual.detach().cpu()
    assert actual.shape == expected.shape
    if not actual.dtype.is_floating_point:
        assert torch.equal(actual.double(), expected)
        return
    scale = expected.abs().max().clamp_min(1.0).item() if expected.numel() else 1.0
    rtol = ROUNDING.get(actual.dtype, 0)
    torch.testing.assert_close(actual.double(), expected.detach(), rtol=rtol, atol=4e-6 * scale)


def gradient(function, x, device):
    """The gradient of a weighted sum of a function's result."""
    leaf = x.to(device).requires_grad_()
    out = function(leaf)
    weight = torch.linspace(0.25, 1.25, out.numel()).view(out.shape).to(out.dtype).to(device)
    (grad,) = torch.autograd.grad(out, leaf, weight)
    return grad


def assert_all_same(found, expected):
    """Tensors on XLA, which are computed in one graph, are those of the CPU."""
    found = torch_xla._XLAC._xla_get_cpu_tensors([f.detach() for f in found])
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e.detach(), equal_nan=True)


def assert_same(functions, *cpu, gradients=False):
    """Results of functions, or of one, and their gradients, are those of torch's CPU kernels."""
    found, expected = [], []
    for function in functions if isinstance(functions, (list, tuple)) else [functions]:
        expected.append(function(*cpu))
        found.append(function(*(t.to(DEVICE) for t in cpu)))
        if gradients:
            expected.append(gradient(function, cpu[0], "cpu"))
            found.append(gradient(function, cpu[0], DEVICE))
    assert_all_same(found, expected)
