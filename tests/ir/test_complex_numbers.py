"""Complex numbers, and complex128 on its way to the CPU: patches/torch_xla/values."""

import io
import math

import pytest
import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE

c64, c128 = torch.complex64, torch.complex128


def numbers(*shape, dtype=c64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def assert_same(function, *cpu):
    found, expected = function(*(t.to(DEVICE) for t in cpu)), function(*cpu)
    assert found.dtype == expected.dtype
    if found.is_complex():
        parts = torch.view_as_real(found).cpu(), torch.view_as_real(expected.resolve_conj())
        torch.testing.assert_close(*parts, equal_nan=True)
    else:
        torch.testing.assert_close(found.cpu(), expected, equal_nan=True)


def saved(x):
    file = io.BytesIO()
    xm.save({"x": x}, file)
    file.seek(0)
    return torch.load(file)["x"]


def written(x, dtype=c128):
    result = torch.zeros(x.shape, dtype=dtype)
    result.copy_(x)
    return result


def assigned(x):
    result = torch.zeros(2, *x.shape, dtype=c128)
    result[1] = x
    return result[1]


WAYS = {
    "cpu": lambda x: x.cpu(),
    "to, of another dtype": lambda x: x.to("cpu", c64),
    "item": lambda x: torch.tensor([[e.item() for e in row] for row in x], dtype=c128),
    "tolist": lambda x: torch.tensor(x.tolist(), dtype=c128),
    "numpy": lambda x: torch.from_numpy(x.numpy(force=True)),
    "copy_": written,
    "copy_ to complex64": lambda x: written(x, c64),
    "an assignment": assigned,
    "xm.save": saved,
    "conj": lambda x: x.conj().cpu().conj().resolve_conj(),
    "requires_grad": lambda x: x.detach().requires_grad_().cpu().detach(),
    "a cast on the device": lambda x: x.to(c64).to(c128).cpu().to(c64),
}


@fails_on_stock
@pytest.mark.parametrize("way", WAYS)
def test_complex128_keeps_its_imaginary_parts(way):
    parts = torch.arange(8, dtype=torch.float64).view(2, 2, 2).to(DEVICE)
    x = torch.view_as_complex(parts + 1)
    torch_xla.sync()
    found = WAYS[way](x)
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, torch.view_as_complex(parts.cpu() + 1).to(found.dtype))


@fails_on_stock
def test_comparisons_and_operators_of_the_cpu_see_imaginary_parts():
    x = torch.view_as_complex(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64).to(DEVICE))
    assert not torch.equal(x, x.conj_physical())
    assert bool(x[0] - 1)
    values = torch.linalg.eigvals(torch.diag(x))
    torch.testing.assert_close(values.abs().cpu(), torch.tensor([5.0**0.5, 5.0], dtype=torch.float64))


@passes_on_stock
def test_what_is_sent_keeps_its_imaginary_parts():
    x = numbers(3, dtype=c128)
    torch.testing.assert_close(torch.view_as_real(x.to(DEVICE)).cpu(), torch.view_as_real(x))
    torch.testing.assert_close(x.to(DEVICE).to(c64).cpu(), x.to(c64))


MOMENTS = {
    "mean": lambda x: x.mean(),
    "mean of rows": lambda x: x.mean(1, keepdim=True),
    "mean of nothing": lambda x: x[:0].mean(0),
    "mean in complex128": lambda x: x.mean(dtype=c128),
    "var": lambda x: x.var(),
    "var of rows": lambda x: x.var(1, unbiased=False, keepdim=True),
    "std": lambda x: x.std(),
    "std of rows": lambda x: x.std(1),
    "std, biased": lambda x: x.std(unbiased=False),
    "var_mean": lambda x: torch.cat(torch.var_mean(x, 0)),
    "std_mean": lambda x: torch.cat(torch.std_mean(x, 0, keepdim=True)),
    "norm": lambda x: x.norm(),
    "norm of rows": lambda x: x.norm(1, dim=1),
    "linalg.norm": torch.linalg.norm,
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 3, 0, keepdim=True),
    "the largest magnitude": lambda x: torch.linalg.vector_norm(x, float("inf")),
    "norm in complex128": lambda x: torch.linalg.vector_norm(x, dtype=c128),
}


@fails_on_stock
@pytest.mark.parametrize("dtype", (c64, c128), ids=str)
@pytest.mark.parametrize("moment", MOMENTS)
def test_moments_and_norms(moment, dtype):
    assert_same(MOMENTS[moment], numbers(3, 4, dtype=dtype))


@passes_on_stock
def test_the_mean_of_a_real_tensor_as_a_complex_number():
    assert_same(lambda x: x.mean(0, dtype=c64), numbers(3, 4).real.contiguous())


@fails_on_stock
@pytest.mark.parametrize(
    "function", (torch.mean, torch.var, torch.std, torch.linalg.vector_norm), ids=lambda f: f.__name__
)
def test_their_gradients(function):
    def gradient(x):
        leaf = x.requires_grad_()
        return torch.autograd.grad(function(leaf).abs(), leaf)[0]

    assert_same(gradient, numbers(3, 4))


@fails_on_stock
def test_isnan_and_bool():
    nan, one = float("nan"), 1.0
    x = torch.complex(torch.tensor([nan, 1, 0, 0]), torch.tensor([one, nan, 1, 0]))
    assert_same(torch.isnan, x)
    assert_same(lambda x: x[2:].bool(), x)


@fails_on_stock
@pytest.mark.parametrize("dtype", (c64, c128), ids=str)
def test_isinf(dtype):
    values = [complex(1, -math.inf), complex(math.inf, math.nan), complex(math.nan, 0), 2 + 1j]
    assert_same(torch.isinf, torch.tensor(values, dtype=dtype))


@fails_on_stock
@pytest.mark.parametrize("dtype", (c64, c128), ids=str)
@pytest.mark.parametrize("form", ({"dim": 1}, {"dim": (0, 1)}, {"dim": 0, "keepdim": True}), ids=str)
def test_logsumexp(form, dtype):
    """Of real parts for which exp is infinite, too; and of such as are infinite."""

    def program(x):
        leaf = x.requires_grad_()
        found = torch.logsumexp(leaf, **form)
        grad = torch.autograd.grad(found, leaf, torch.full_like(found, 1 - 2j))[0]
        return torch.cat([found.detach().flatten(), grad.flatten()])

    assert_same(program, numbers(3, 4, dtype=dtype) + 1000)
    assert_same(lambda x: x.logsumexp(0), torch.tensor([complex(-math.inf), complex(-math.inf)], dtype=dtype))
    assert_same(lambda x: x.logsumexp(1), torch.tensor([[3 + 9j], [-2 - 5j]], dtype=dtype))


@fails_on_stock
@pytest.mark.parametrize(("beta", "alpha"), ((1, 2 - 1j), (0.5j, 1), (2j, 3)))
def test_addmm_with_complex_factors(beta, alpha):
    def program(*tensors):
        leaves = [x.requires_grad_() for x in tensors]
        found = torch.addmm(*leaves, beta=beta, alpha=alpha)
        grads = torch.autograd.grad(found, leaves, torch.full_like(found, 1 - 2j), allow_unused=True)
        return torch.cat([t.detach().flatten() for t in (found, *grads) if t is not None])

    assert_same(program, numbers(4), numbers(3, 5), numbers(5, 4))


@passes_on_stock
def test_addmm_of_real_matrices_with_a_complex_factor_is_refused():
    for device in ("cpu", DEVICE):
        x = torch.ones(2, 2, device=device)
        with pytest.raises(RuntimeError):
            torch.addmm(x, x, x, alpha=1j)


@fails_on_stock
@pytest.mark.parametrize("dtype", (c64, c128), ids=str)
@pytest.mark.parametrize(
    "function",
    (
        torch.linalg.inv,
        lambda x: torch.linalg.inv_ex(torch.stack([x, x * 2]))[0],
        lambda x: torch.linalg.matrix_power(x, -2),
        torch.linalg.svdvals,
        torch.linalg.pinv,
        lambda x: torch.linalg.slogdet(x)[1],
    ),
    ids=("inv", "inv of a batch", "matrix_power", "svdvals", "pinv", "slogdet"),
)
def test_decompositions(function, dtype):
    assert_same(function, numbers(3, 3, dtype=dtype))


@fails_on_stock
def test_full_of_a_number_has_the_default_dtype():
    assert torch.full((2,), 1 + 2j, device=DEVICE).dtype == c64
    torch.testing.assert_close(torch.full((2,), 1 + 2j, device=DEVICE).cpu(), torch.full((2,), 1 + 2j))
    assert torch.full((2,), 1 + 2j, dtype=c128, device=DEVICE).dtype == c128


@fails_on_stock
def test_kaiser_window():
    for arguments in ((6,), (6, False), (5, True, 3.0), (0,), (1,)):
        found = torch.kaiser_window(*arguments, device=DEVICE)
        assert found.device == DEVICE
        torch.testing.assert_close(found.cpu(), torch.kaiser_window(*arguments))
    window = torch.kaiser_window(5, dtype=torch.float64, device=DEVICE)
    torch.testing.assert_close(window.cpu(), torch.kaiser_window(5, dtype=torch.float64))


#: Of numbers that have no order, and of neural networks: torch's CPU refuses them.
REFUSED = {
    "lt": lambda x: x < 1,
    "ge, a number": lambda x: x >= 1,
    "maximum": torch.maximum,
    "clamp": lambda x: x.clamp(min=0),
    "clamp_max, a tensor": lambda x: torch.clamp_max(x, x),
    "atan2": torch.atan2,
    "cdist": torch.cdist,
    "gelu": F.gelu,
    "glu": F.glu,
    "threshold": lambda x: F.threshold(x, 0, 1),
    "softshrink": F.softshrink,
    "avg_pool2d": lambda x: F.avg_pool2d(x[None], 2),
    "nll_loss": lambda x: F.nll_loss(x, torch.zeros(4, dtype=torch.int64).to(x.device)),
}
REFUSED_BY_XLA = {
    "fmod": lambda x: torch.fmod(x, 2),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "max_unpool2d": lambda x: F.max_unpool2d(x[None], torch.arange(16).reshape(1, 4, 4).to(x.device), 2),
    "grid_sample": lambda x: F.grid_sample(x[None, None, None], x.real.new_zeros(1, 2, 2, 2, 3)),
}


def refuses(function):
    operands = 2 if function in (torch.maximum, torch.atan2, torch.cdist) else 1
    for x in (numbers(4, 4), numbers(4, 4).to(DEVICE)):
        with pytest.raises(RuntimeError, match=r"(?i)complex|expected .*same dtype|only supports"):
            function(*[x] * operands)


@fails_on_stock
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_cpu_refuses(name):
    refuses(REFUSED[name])


@fails_on_stock
@pytest.mark.ends_the_process_on_stock("2.9", "2.8", "2.7", "2.6")
@pytest.mark.parametrize("name", REFUSED_BY_XLA)
def test_what_would_end_the_process(name):
    refuses(REFUSED_BY_XLA[name])


def slopes(function, *operands):
    """Gradients, and gradients of these, of a sum that has no symmetry."""
    leaves = [x.detach().requires_grad_() for x in operands]
    weights = torch.view_as_complex(torch.arange(2.0 * function(*operands).numel()).reshape(-1, 2).cos())
    loss = (function(*leaves).flatten() * weights.to(leaves[0].device)).abs().square().sum()
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    second = torch.autograd.grad(sum((x * x.conj()).real.sum() for x in first), leaves)
    return torch.cat([torch.view_as_real(x.detach().resolve_conj()).flatten() for x in (*first, *second)])


GRADIENTS = {
    "tanh": (torch.tanh, (3, 4)),
    "sigmoid": (torch.sigmoid, (3, 4)),
    "einsum, a product": (lambda a, b: torch.einsum("ij,jk->ik", a, b), (3, 4), (4, 2)),
    "einsum of modes": (lambda a, b: torch.einsum("bim,iom->bom", a, b), (2, 3, 4), (3, 2, 4)),
    "einsum of itself": (lambda a: torch.einsum("ij,kj->ik", a, a), (3, 4)),
    "einsum and conj": (lambda a, b: torch.einsum("ij,jk->ik", a.conj(), b), (3, 4), (4, 2)),
}


@fails_on_stock
@pytest.mark.parametrize(("function", "shapes"), [(f, s) for f, *s in GRADIENTS.values()], ids=GRADIENTS)
def test_gradients_are_conjugated(function, shapes):
    operands = [numbers(*shape) / 2 for shape in shapes]
    found = slopes(function, *(x.to(DEVICE) for x in operands))
    torch.testing.assert_close(found.cpu(), slopes(function, *operands), rtol=1e-3, atol=1e-4)
