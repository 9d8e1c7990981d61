"""torch_xla.amp.wide_grads_report, and the warning of a gradient that was rounded under wide_grads."""

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from marks import fails_on_stock
from other_process import forked
from tensors import DEVICE, bf16, f32, random


def report(module, step):
    from torch_xla.amp import wide_grads_report

    return wide_grads_report(module, step)


def widened(module):
    from torch_xla.amp import wide_grads

    module = module.to(bf16).to(DEVICE)
    wide_grads(module)
    return module


class Narrow(torch.autograd.Function):
    """A product whose backward does not ask which dtype is wanted."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.linear = torch.nn.Linear(8, 8)
        self.convolution = torch.nn.Conv1d(8, 8, 1)
        self.scale = torch.nn.Parameter(torch.ones(8))
        self.position = torch.nn.Parameter(torch.ones(5, 8))
        self.custom = torch.nn.Parameter(torch.randn(8, 8))
        self.unused = torch.nn.Parameter(torch.randn(8))

    def forward(self, ids, with_custom):
        x = self.norm(self.table(ids)) * self.scale + self.position[:3]
        x = self.convolution(self.linear(x).transpose(0, 1)).transpose(0, 1)
        return Narrow.apply(x, self.custom) if with_custom else x * self.custom[0]


IDS = torch.tensor([1, 2, 2])


@fails_on_stock
def test_all_wide():
    network = widened(Network())
    found = report(network, lambda: network(IDS.to(DEVICE), with_custom=False).sum().backward())
    verdicts = {p.name: p.verdict for p in found.parameters}
    assert verdicts == {name: "none" if name == "unused" else "wide" for name, _ in network.named_parameters()}
    assert found.all_wide
    assert found


@fails_on_stock
def test_a_rounded_gradient_has_its_operator_and_line():
    network = widened(Network())
    found = report(network, lambda: network(IDS.to(DEVICE), with_custom=True).sum().backward())
    [rounded] = [p for p in found.parameters if p.verdict == "rounded"]
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "Narrow.apply(x" in text)
    assert rounded.name == "custom"
    assert rounded.operators == ("Narrow",)
    assert rounded.where == (f"{__file__}:{line}",)
    assert not found.all_wide
    table = str(found).splitlines()
    assert f"custom              rounded, then widened  Narrow at {__file__}:{line}" in table
    assert "unused              no gradient" in table
    assert "linear.weight       wide" in table


@fails_on_stock
def test_several_batches_and_the_optimizer():
    """What a step clears at its end had a gradient all the same."""
    module = widened(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step():
        for seed in range(2):
            module(random(3, 8, seed=seed).to(DEVICE)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert report(module, step).all_wide


@fails_on_stock
def test_a_parameter_without_grad_dtype():
    module = torch.nn.Linear(8, 8).to(bf16).to(DEVICE)
    module.weight.grad_dtype = f32
    found = report(module, lambda: module(random(3, 8).to(DEVICE)).sum().backward())
    assert {p.name: p.verdict for p in found.parameters} == {"weight": "wide", "bias": "narrow"}
    assert not found.all_wide


@fails_on_stock
def test_nothing_at_all_is_not_all_wide():
    module = widened(torch.nn.Linear(8, 8))
    assert not report(module, lambda: None).all_wide


@fails_on_stock
def test_compiled():
    module = widened(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)))
    compiled = torch.compile(module, backend="openxla")

    def step():
        compiled(random(3, 8).to(DEVICE)).sum().backward()

    step()
    assert report(module, step).all_wide


# How a weight is used, and the operator that rounds its gradient.
FORMS = {
    "times a number": (lambda w: w * 3, None),
    "transposed": (lambda w: w.t(), None),
    "a part": (lambda w: w[:4], None),
    "expanded": (lambda w: w.expand(2, 8, 8), None),
    "abs": (lambda w: w.abs(), None),
    "rows": (lambda w: w[torch.tensor([1, 1, 0], device=w.device)], None),
    "cast": (lambda w: w.float().to(w.dtype), None),
    "divided": (lambda w: w / 3, None),
    "softplus": (torch.nn.functional.softplus, None),
    "elu": (torch.nn.functional.elu, "Elu"),
    "elu of abs": (lambda w: torch.nn.functional.elu(w.abs()), "Elu"),
    "abs of elu": (lambda w: torch.nn.functional.elu(w).abs(), "Elu"),
}


@fails_on_stock
@pytest.mark.parametrize(("use", "operator"), FORMS.values(), ids=FORMS)
def test_what_is_wide_is_not_called_rounded_and_the_rest_is(use, operator):
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.randn(8, 8))
    widened(module)
    x = random(8, 8).to(DEVICE)
    found = report(module, lambda: (use(module.w) * x[0]).sum().backward())
    assert found.all_wide == (operator is None), str(found)
    assert found.parameters[0].operators == (() if operator is None else (operator,))


@fails_on_stock
def test_no_module():
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module, found Tensor"):
        report(torch.ones(1), lambda: None)


@fails_on_stock
def test_a_rounded_gradient_warns_once(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import warnings\n"
        "import torch, torch_xla\n"
        "torch_xla._XLAC._xla_get_devices()\n"
        "from torch_xla.amp import wide_grads\n"
        "module = torch.nn.Linear(8, 8, dtype=torch.bfloat16).to('xla')\n"
        "wide_grads(module)\n"
        "x = torch.ones(3, 8, dtype=torch.bfloat16, device='xla')\n"
        "class Narrow(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, w):\n"
        "        return w * 2\n"
        "    @staticmethod\n"
        "    def backward(ctx, grad):\n"
        "        return grad.bfloat16() * 2\n"
        "for seen in range(3):\n"
        "    with warnings.catch_warnings(record=True) as found:\n"
        "        warnings.simplefilter('always')\n"
        "        module(x).sum().backward()\n"
        "        if seen:\n"
        "            (x @ Narrow.apply(module.weight)).sum().backward()\n"
        "    print([str(w.message).split('.')[0] for w in found if 'wide_grads' in str(w.message)])\n"
    )
    lines = [line for line in forked(program).stdout.splitlines() if line.startswith("[")]
    assert lines[0] == lines[2] == "[]"
    assert (
        "The gradient of a parameter of shape [8, 8] was made by NarrowBackward in BFloat16 and cast to Float"
        in lines[1]
    )


@fails_on_stock
def test_a_network_that_is_wide_does_not_warn():
    network = widened(Network())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F.mse_loss(network(IDS.to(DEVICE), with_custom=False).float(), torch.zeros(3, 8, device=DEVICE)).backward()
