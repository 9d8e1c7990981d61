"""Programs: values."""

import torch
import torch.nn.functional as F
from options import options

INF = float("inf")


def activations_at_extremes(device):
    """Activations of huge, tiny and infinite numbers, with their gradients."""
    values = [-1e30, -100.0, -3.0, -1e-30, -0.0, 0.0, 1e-30, 3.0, 100.0, 1e30]
    names = ("gelu", "silu", "mish", "softplus", "logsigmoid", "elu", "selu", "hardswish", "hardsigmoid", "tanhshrink")
    results = []
    for name in names:
        x = torch.tensor(values).to(device).requires_grad_()
        y = getattr(F, name)(x)
        y.sum().backward()
        results += [y, x.grad]
    return results


def arange_and_linspace(device):
    """arange with fractions, of integers, downwards, and linspace of integers."""
    return (
        torch.arange(0, 1, 0.1, device=device), torch.arange(5, 0, -2, device=device), torch.arange(3.0, device=device),
        torch.arange(1, 6, 2, dtype=torch.bfloat16, device=device), torch.linspace(0, 1, 5, device=device),
        torch.linspace(0, 10, 4, dtype=torch.int64, device=device), torch.logspace(0, 2, 3, device=device),
        torch.arange(0, 1, 1 / 3, device=device).shape, torch.linspace(1, 1, 1, device=device),
    )  # fmt: skip


def batched_matmul_broadcast(device):
    """Products of broadcast batches, vectors and empty dimensions."""
    a, b, v = torch.randn(2, 1, 3, 4).to(device), torch.randn(5, 4, 2).to(device), torch.randn(4).to(device)
    empty = torch.zeros(3, 0).to(device)
    return a @ b, a @ v, v @ b, v @ v, empty @ empty.t(), torch.addmm(torch.ones(2).to(device), b[0].t(), b[0])


def bitwise_and_shifts(device):
    """Bitwise operations and shifts of negative numbers."""
    a, b = torch.tensor([-8, 7, 255, 0]).to(device), torch.tensor([1, 2, 3, 4]).to(device)
    i = a.to(torch.int32)
    return a & b, a | b, a ^ b, ~a, a << b, a >> b, i >> 1, i << 31, (a > 0) ^ (b > 2), a.bool() | b.bool()


def clamp_of_infinities(device):
    """clamp with one bound, with tensors as bounds, of infinities and NaN."""
    values = [float("-inf"), -3.5, -0.0, 0.0, 2.0, float("inf"), float("nan")]
    x = torch.tensor(values).to(device)
    low = torch.tensor([0.0] * 7).to(device)
    return x.clamp(max=0), x.clamp(min=0), x.clamp(min=low), x.clamp(-1, 1), x.bfloat16().clamp(max=1), x.clamp_min(-2)


def cumulative(device):
    """cumsum, cumprod, cummax with ties, logcumsumexp and diff (pytorch/xla#8675)."""
    x = torch.tensor([1.0, 3.0, 3.0, 2.0]).to(device)
    i = torch.tensor([1, 1, 1]).to(device)
    return x.cumsum(0), x.cumprod(0), x.cummax(0), i.cummax(0), i.cummin(0), x.logcumsumexp(0), x.diff(), i.cumsum(0)


def cumulative_of_nothing(device):
    """cummax of a dimension without elements (pytorch/xla#8610)."""
    return torch.cummax(torch.rand(0).to(device), -1), torch.zeros(2, 0).to(device).cumsum(1)


def einsum_and_tensordot(device):
    """einsum of several operands, with a diagonal, with an ellipsis, tensordot, kron and chain products."""
    a, b, c = torch.randn(3, 4).to(device), torch.randn(4, 5).to(device), torch.randn(2, 3, 3).to(device)
    return (
        torch.einsum("ij,jk->ik", a, b),
        torch.einsum("bii->bi", c),
        torch.einsum("...ij,jk->...ik", c, a),
        torch.einsum("ij,jk,lk->il", a, b, b),
        torch.tensordot(a, b, 1),
        torch.kron(a, b),
        torch.linalg.multi_dot([a, b, b.t()]),
        torch.einsum("bij,bjk->", c, c),
        torch.baddbmm(c, c, c, beta=0.5, alpha=2),
        torch.outer(a[0], b[0]),
    )


def fft_round_trip(device):
    """Fourier transforms, their inverses and a convolution by them."""
    x = torch.randn(2, 16).to(device)
    y = torch.fft.rfft(x)
    k = torch.fft.rfft(torch.randn(16).to(device))
    return (
        y.abs(),
        torch.fft.irfft(y, n=16),
        torch.fft.irfft(y * k, n=16),
        torch.fft.fft2(x).real,
        torch.fft.fftshift(x),
    )


def integer_power_of_minus_one(device):
    """An integer tensor to the power of -1 raises, as on the CPU."""
    return torch.tensor([1, 2, -1]).to(device) ** -1


@options(tolerance=1e-3)
def linear_algebra(device):
    """Decompositions and solutions: Cholesky, QR by its product, singular values, inverse, determinant."""
    a = torch.randn(4, 4)
    s = (a @ a.t() + torch.eye(4) * 4).to(device).requires_grad_()
    low = torch.linalg.cholesky(s)
    q, r = torch.linalg.qr(s)
    loss = torch.linalg.slogdet(s).logabsdet + torch.linalg.solve(s, torch.ones(4, 1).to(device)).sum()
    loss.backward()
    return low, q @ r, torch.linalg.svdvals(s), s.inverse(), torch.linalg.det(s), s.grad, torch.linalg.eigvalsh(s)


def maximum_and_ties(device):
    """Gradients at ties of maximum, max, amax, relu, abs, clamp and sort; NaN in max."""
    results = []
    for call in (
        lambda x: torch.maximum(x, torch.zeros_like(x)).sum(),
        lambda x: x.amax(1).sum(),
        lambda x: x.max(1).values.sum(),
        lambda x: x.max(),
        lambda x: x.relu().sum() + x.abs().sum(),
        lambda x: x.clamp(0, 1).sum(),
        lambda x: x.sort(1, stable=True).values[:, 0].sum(),
        lambda x: x.median(1).values.sum(),
    ):
        x = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, -1.0]]).to(device).requires_grad_()
        call(x).backward()
        results.append(x.grad)
    nan = torch.tensor([1.0, float("nan"), 2.0]).to(device)
    return results, nan.max(), nan.argmax(), nan.amin(), nan.max(0).indices


def nan_to_num(device):
    """nan_to_num in three dtypes, isfinite, isinf and signbit."""
    values = [float("-inf"), -1.0, -0.0, float("inf"), float("nan")]
    results = []
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.tensor(values, dtype=kind).to(device)
        results += [x.nan_to_num(), x.nan_to_num(1.0, 2.0, -2.0), x.isfinite(), x.isinf(), x.signbit(), x.sign()]
    return results


def norms_at_zero(device):
    """Gradients of norms, sqrt and normalize at zero."""
    results = []
    for call in (
        lambda x: x.norm(),
        lambda x: x.norm(dim=1).sum(),
        lambda x: F.normalize(x, dim=1).sum(),
        lambda x: torch.linalg.vector_norm(x, ord=1),
        lambda x: torch.linalg.vector_norm(x, ord=float("inf")),
        lambda x: (x.square().sum() + 1e-12).sqrt(),
    ):
        x = torch.zeros(2, 3).to(device).requires_grad_()
        y = call(x)
        y.backward()
        results += [y, x.grad]
    return results


def powers(device):
    """Powers: integers, negative bases, zero, and gradients at zero."""
    x = torch.tensor([-2.0, 0.0, 2.0]).to(device).requires_grad_()
    (x**2 + x**3 + x.abs() ** 1.5).sum().backward()
    i = torch.tensor([-2, -1, 1, 3]).to(device)
    return (
        x.grad,
        i**2,
        i**0,
        2 ** i.abs(),
        x.detach() ** 0.5,
        x.detach() ** -1,
        i.float().pow(i.float()),
        i.pow(i.abs()),
    )


def reductions_of_nothing(device):
    """Sums, products, means, any, all and max of tensors without elements."""
    x = torch.zeros(0, 3).to(device)
    results = [x.sum(), x.prod(), x.mean(), x.sum(0), x.mean(0), x.any(), x.all(), x.sum(1), x.var(), x.cumsum(0)]
    try:
        x.max(0)
    except (IndexError, RuntimeError):
        results.append("refused")
    return results, x.t() @ x, x @ x.t(), torch.cat([x, torch.ones(1, 3).to(device)])


def remainders(device):
    """Remainders and floor division of signs, infinities and zero."""
    a = torch.tensor([5.5, -5.5, 5.5, -5.5, 0.0, 1.0, INF]).to(device)
    b = torch.tensor([2.0, 2.0, -2.0, INF, 3.0, 0.0, 2.0]).to(device)
    i, j = torch.tensor([7, -7, 7, -7]).to(device), torch.tensor([3, 3, -3, -3]).to(device)
    return a % b, a.fmod(b), a // b, i % j, i // j, i.fmod(j), torch.div(i, j, rounding_mode="trunc"), i / j


def rounding(device):
    """round to even and to decimals, floor, frac and casts of halves."""
    x = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e10]).to(device)
    return x.round(), x.floor(), x.ceil(), x.frac(), (x / 3).round(decimals=2), x.bfloat16().round(), x.double().round()


def signed_zeros(device):
    """Minus zero: rounding, floor division, products, maximum and its sign."""
    x = torch.tensor([-0.0, 0.0, -0.3, 0.3]).to(device)
    results = [
        x.round(),
        x.ceil(),
        x.trunc(),
        x // 5,
        x * -1,
        torch.div(x, 5, rounding_mode="floor"),
        -x,
        x.neg().abs(),
    ]
    return [torch.signbit(y) for y in results], [1 / y for y in results[:2]]


def softmax_of_empty_rows(device):
    """softmax and logsumexp of rows that are all -inf, and of infinities."""
    x = torch.tensor([[-INF, -INF], [0.0, -INF], [INF, 0.0], [1e4, -1e4]]).to(device)
    return x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1), x.bfloat16().softmax(-1), x.softmax(-1).nan_to_num(0.0)


def special_functions(device):
    """Special functions: erf and its inverse, gamma, digamma, expm1, log1p, sinc, xlogy and Bessel."""
    x = torch.tensor([-0.9, -1e-5, 0.0, 1e-5, 0.5, 0.99]).to(device)
    y = x + 1.5
    return (
        x.erf(),
        x.erfinv(),
        x.erfc(),
        y.lgamma(),
        y.digamma(),
        x.expm1(),
        x.log1p(),
        torch.sinc(x),
        torch.xlogy(x.abs(), y),
        torch.special.i0(y),
        torch.special.entr(y),
        x.logit(eps=1e-3),
        x.atanh(),
        torch.hypot(x, y),
        torch.atan2(x, y),
    )


def variance_and_std(device):
    """Variance with corrections, of one element, and of bfloat16."""
    x = torch.randn(4, 5).to(device).requires_grad_()
    y = x.var(1) + x.std(1, correction=0) + x.var(1, unbiased=False)
    y.sum().backward()
    return y, x.grad, x[:, :1].var(1), torch.var_mean(x, 0), x.detach().bfloat16().std()


def where_gradients(device):
    """Gradients through where with an infinite branch that is not taken."""
    x = torch.tensor([0.0, 1.0, 4.0]).to(device).requires_grad_()
    safe = torch.where(x > 0, x, torch.ones_like(x))
    y = torch.where(x > 0, safe.log(), torch.zeros_like(x))
    y.sum().backward()
    z = torch.tensor([0.0, 1.0]).to(device).requires_grad_()
    torch.where(z > 0, z.log(), 0.0).sum().backward()
    return y, x.grad, z.grad
