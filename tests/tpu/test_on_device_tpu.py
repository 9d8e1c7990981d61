"""on-device on the TPU compiler: what its table computes compiles, for the calls that tests/ir makes of it."""

import contextlib
import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from torch.utils._pytree import tree_leaves

sys.path.append(str(Path(__file__).resolve().parents[1] / "ir"))

import test_linalg_on_device as matrices
import test_on_device as others

DEVICE = torch_xla.device()
PARTS = 24


@pytest.fixture(autouse=True)
def with_instructions_of_a_tpu(monkeypatch):
    """Factorizations are XLA's own instructions there, and loops on XLA's CPU."""
    with contextlib.suppress(ImportError):
        monkeypatch.setattr(importlib.import_module("torch_xla._lowerings.linalg"), "LOOPS_ON_CPU", False)


def on_xla(t):
    return t.to(DEVICE)


def normalized(x):
    mean, var = torch.zeros(4, device=DEVICE), torch.ones(4, device=DEVICE)
    return torch.ops.aten._batch_norm_with_update(x, var, mean, mean.clone(), var.clone(), 0.1, 1e-5)[0]


def bags(x, weights):
    offsets = torch.tensor([0, 2], device=DEVICE)
    index = torch.tensor([0, 1, 3, 2], device=DEVICE)
    return F.embedding_bag(index, x[0, 0], offsets, mode="sum", per_sample_weights=weights, max_norm=1.0)


SPECIAL = torch.special
POLYNOMIALS = [getattr(SPECIAL, n) for n in dir(SPECIAL) if "polynomial" in n]
BESSEL = [getattr(SPECIAL, n) for n in dir(SPECIAL) if "bessel" in n]

#: What tests/ir does not call: functions of x [2, 4, 5, 7], v [1, 2, 5, 6, 7] and w [4], which require gradients.
MORE = {
    "pooling of volumes": lambda x, v, w: [
        F.adaptive_avg_pool3d(v, 3),
        F.adaptive_max_pool3d(v, 3),
        F.avg_pool3d(v, 2, divisor_override=3),
        F.max_pool3d(v, 2, stride=1, dilation=2),
    ],
    "fractional pooling": lambda x, v, w: [F.fractional_max_pool2d(x, 2, 2), F.fractional_max_pool3d(v, 2, 2)],
    "interpolation of volumes": lambda x, v, w: [
        F.interpolate(v, scale_factor=1.5),
        F.interpolate(v, scale_factor=1.5, mode="nearest-exact"),
        F.interpolate(x[0], scale_factor=1.5, mode="nearest-exact"),
        F.grid_sample(v, v[:, :1, ..., :3].flatten(0, 1) * 2 - 1, align_corners=False),
    ],
    "normalization": lambda x, v, w: normalized(x),
    "bits": lambda x, v, w: [
        x.detach().view(torch.int32),
        x.detach().view(torch.bfloat16),
        x.detach().bfloat16().flatten(1).view(torch.float32),
    ],
    "bags": lambda x, v, w: bags(x, w),
    "a bag without gradients": lambda x, v, w: F.embedding_bag(on_xla(others.INDEX), x.detach()[0, 0]),
    "a product of batches": lambda x, v, w: torch.addbmm(x[0, 0, :, :5], x[0], x[1].mT),
    "random numbers": lambda x, v, w: [
        x.detach()[0].clone().cauchy_(),
        x.detach()[0].clone().log_normal_(),
        x.detach()[0].clone().geometric_(0.3),
        F.rrelu(x[0], training=True),
        torch.multinomial(x.detach()[0, 0], 3),
        torch.multinomial(x.detach().reshape(4, 70), 20),
        torch.poisson(x.detach()[0] * 20),
        torch.binomial(x.detach()[0] * 40, x.detach()[0]),
        torch._standard_gamma(x[0]),
        torch.distributions.Dirichlet(x[0], validate_args=False).rsample(),
    ],
    "a loss of several labels": lambda x, v, w: F.multilabel_margin_loss(x[0, 0, :2, :3], on_xla(others.INDEX % 3)),
    "numbers in place of tensors": lambda x, v, w: [
        torch.bucketize(0.5, x.detach()[0, 0, 0].sort().values),
        torch.searchsorted(x.detach()[0, 0, 0].sort().values, 0.5),
        torch.isin(x.detach(), 0.5),
        torch.isin(2, on_xla(others.INDEX)),
    ],
    "elements": lambda x, v, w: [
        torch.fmin(x, x.flip(0)),
        torch.isposinf(x.detach()),
        torch.logaddexp2(x, x.flip(0)),
        torch.polar(x.detach(), x.detach()),
        SPECIAL.entr(x),
        SPECIAL.xlog1py(x, x),
        SPECIAL.log_ndtr(x),
        torch.vdot(x[0, 0, 0], x[0, 0, 1]),
        torch.nanmedian(x, 1).values,
        torch.channel_shuffle(x.detach(), 2),
        torch.ops.aten._logcumsumexp(x.detach(), 1),
        torch.sgn(x),
    ],
    "cholesky_inverse": lambda x, v, w: torch.cholesky_inverse(x[0, :, :, :5]),
    "polynomials": lambda x, v, w: [f(x.detach(), on_xla(torch.arange(7))) for f in POLYNOMIALS],
    "Bessel functions": lambda x, v, w: [f(x.detach()) for f in BESSEL],
}


def more(function):
    leaves = [on_xla(others.images(*sizes)).requires_grad_() for sizes in ((2, 4, 5, 7), (1, 2, 5, 6, 7), (4,))]
    found = [t for t in tree_leaves(function(*leaves)) if isinstance(t, torch.Tensor)]
    roots = [t for t in found if t.requires_grad]
    if not roots:
        return found
    grads = torch.autograd.grad(roots, leaves, [torch.ones_like(t) for t in roots], allow_unused=True)
    return [*found, *(g for g in grads if g is not None)]


CALLS = {
    f"{kind}, {name}": call
    for kind, module, x in (("others", others, others.X), ("matrices", matrices, matrices.A))
    for name, call in (
        *(
            (f"{n} with its gradient", lambda f=f, m=module, x=x: m.with_gradient(f, on_xla(x)))
            for n, f in module.PROGRAMS.items()
        ),
        *((n, lambda f=f: f(on_xla)) for n, f in module.RESULTS.items()),
    )
}
CALLS |= {name: (lambda f=f: more(f)) for name, f in MORE.items()}


def results(names):
    return [t for name in names for t in tree_leaves(CALLS[name]()) if isinstance(t, torch.Tensor)]


def in_parts(topology):
    return [pytest.param(part, topology, id=f"{topology.split(':')[0]}-{part}") for part in range(PARTS)]


@pytest.mark.parametrize(
    ("part", "topology"),
    [*in_parts("v5e:2x2"), *(pytest.param(*p.values, id=p.id, marks=pytest.mark.slow) for p in in_parts("v6e:2x2"))],
)
def test_the_table_compiles(tpu_hlo, part, topology):
    assert tpu_hlo(results(list(CALLS)[part::PARTS]), topology).estimated_cycles > 0


def test_each_operator_of_the_table_is_called(monkeypatch):
    table = pytest.importorskip("torch_xla._lowerings.table", reason="stock wheels have no table")
    operator = sys.modules["torch_xla._on_device"]._Operator
    called, call = set(), operator.call

    def noted(self, *arguments, **named):
        called.add(self._name)
        return call(self, *arguments, **named)

    monkeypatch.setattr(operator, "call", noted)
    for name in CALLS:
        results([name])
    assert sorted(set(table.TABLE) - called) == []
