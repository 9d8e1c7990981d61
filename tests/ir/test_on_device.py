"""Operators that stay on the device: patches/torch_xla/on-device.

Tests marked ``fails_on_stock`` state what the topic is for: on stock wheels these operators are handed to the CPU.
"""

import importlib
import math

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from ir_text import ir
from lowered import on_the_cpu, on_the_device, with_gradient
from marks import fails_on_stock, passes_on_stock
from other_process import completed, forked
from tensors import DEVICE
from torch_xla.debug import metrics
from torch_xla.debug.metrics import metric_data


def images(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


X = images(2, 4, 5, 7)
ROW = X[0, 0, :, 0]
INDEX = torch.tensor([[2, 0, 1], [1, 1, 3]])
LABELS = torch.tensor([[1, 2, 3], [2, 2, 4], [3, 1, 1], [4, 2, 1], [5, 5, 5]])
LEAST = torch.full((1, 2, 4, 4), -torch.inf)  # and a row and a window with the least finite number, and others
LEAST[0, 0, 0, 1:3], LEAST[0, 1, :2] = torch.finfo(torch.float32).min, torch.arange(4.0)
SPECIAL = torch.tensor([0.0, -0.0, 1.5, -2.5, float("inf"), -float("inf"), float("nan"), 3e-30, 1e30])

#: As 0 / 0 is on a CPU; 3, 1, 2 and 2 follow.
SIGNED_NAN = torch.tensor([-1, 0x4040, 0x3F80, 0x4000, 0x4000], dtype=torch.int16).view(torch.bfloat16)

#: Images of which two have NaN and infinities, at a corner too.
NOT_FINITE = X.clone()
NOT_FINITE[0, 1, 2, 3], NOT_FINITE[1, 0, 3, 2], NOT_FINITE[1, 0, 0, 0] = float("nan"), float("inf"), -float("inf")

INTERPOLATED = {
    "bicubic": {"size": (9, 11), "mode": "bicubic"},
    "bicubic, aligned": {"size": (5, 9), "mode": "bicubic", "align_corners": True},
    "bicubic, smaller": {"size": (4, 3), "mode": "bicubic"},
    "bicubic, antialiased": {"size": (4, 9), "mode": "bicubic", "antialias": True},
    "bilinear, antialiased": {"size": (5, 3), "mode": "bilinear", "antialias": True},
}

HASHED = [SPECIAL, X.bfloat16(), INDEX.to(torch.int8), INDEX - 3, INDEX > 1, torch.tensor([1e-42, 2.0])]

#: Functions, and operands of which one is on the CPU.
CPU_OPERANDS = {
    "bucketize": (torch.bucketize, X, torch.tensor([0.1, 0.4, 0.9])),
    "searchsorted": (torch.searchsorted, torch.tensor([0.1, 0.4, 0.9]), X),
    "isin": (torch.isin, torch.arange(4), torch.tensor([1, 3])),
    "grid_sample": (lambda x, y: F.grid_sample(x, y, align_corners=True), X, X.view(2, -1)[:, :40].view(2, 4, 5, 2)),
    "logaddexp": (torch.logaddexp, X, X.flip(0)),
    "fmax": (torch.fmax, X, X.flip(0)),
    "copysign": (torch.copysign, X, X.flip(0) - 0.5),
    "addmv": (lambda m, v: torch.addmv(torch.ones(5).to(m.device), m, v), X[0, 0], X[0, 0, 0]),
    "index_reduce": (
        lambda x, i: torch.ones(4, 5).to(x.device).index_reduce(0, i.to(x.device), x, "amax"),
        X[0, :, :, 0],
        torch.tensor([0, 2, 2, 1]),
    ),
    "multi_margin_loss": (F.multi_margin_loss, X[0, :, 0], torch.tensor([0, 3, 1, 2])),
}


def mask_of(x):
    return x.detach() > 0.5


def written(x, index, value):
    x = x.clone()
    x[index] = value
    return x


def segments(x, reduce, *, initial=None, **bounds):
    bounds = {name: torch.tensor(value).to(x.device) for name, value in bounds.items()}
    return torch.segment_reduce(
        x.mT.reshape(8, 7, 5), reduce, axis=1, unsafe="offsets" in bounds, initial=initial, **bounds
    )


ROWS = torch.tensor([True, False])
PAIRS = torch.cartesian_prod(SPECIAL, SPECIAL)

#: Functions of a tensor of floats; their gradients are compared as well.
PROGRAMS = {
    "bilinear": lambda x: F.interpolate(x, size=(9, 4), mode="bilinear"),
    "bilinear, aligned": lambda x: F.interpolate(x, size=(9, 4), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"),
    "bicubic, smaller": lambda x: F.interpolate(x, size=(4, 3), mode="bicubic", align_corners=True),
    "nearest": lambda x: F.interpolate(x, scale_factor=1.7),
    "nearest, exact": lambda x: F.interpolate(x, size=(3, 11), mode="nearest-exact"),
    "linear": lambda x: F.interpolate(x[0], size=10, mode="linear"),
    "nearest, 1-d": lambda x: F.interpolate(x[0], size=10),
    "trilinear": lambda x: F.interpolate(x[None], size=(3, 8, 5), mode="trilinear"),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
    "dilated max_pool2d": lambda x: F.max_pool2d(x, 2, stride=1, padding=1, dilation=2),
    "divisor of avg_pool2d": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "unfold": lambda x: F.unfold(x, (2, 3), dilation=2, padding=1, stride=2),
    "fold": lambda x: F.fold(x[0].reshape(-1)[:96].reshape(1, 8, 12), (4, 5), 2),
    "Tensor.unfold": lambda x: x.unfold(3, 3, 2),
    "grid_sample": lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1) * 2.4 - 1.2, align_corners=False),
    "grid_sample, reflected": lambda x: F.grid_sample(
        x, x[:, :2].permute(0, 2, 3, 1) * 2.4 - 1.2, padding_mode="reflection", align_corners=True
    ),
    "huber_loss": lambda x: F.huber_loss(x, x.flip(0) * 3, delta=0.3),
    "glu": lambda x: F.glu(x, 1),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x[0, :, :, 0], torch.tensor([0, 3, 1, 2]).to(x.device)),
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(0)),
    "logcumsumexp": lambda x: x.logcumsumexp(3),
    "exp2": torch.exp2,
    "sinc": torch.sinc,
    "hypot": lambda x: torch.hypot(x, x.flip(0)),
    "nansum": lambda x: x.nansum(1),
    "cross": lambda x: torch.linalg.cross(x[..., :3], x[..., 2:5]),
    "addmv": lambda x: torch.addmv(x[0, 0, 0, :5], x[0, 0], x[0, 0, 0], alpha=2),
    "renorm": lambda x: x.renorm(2, 1, 0.7),
    "median": lambda x: x.median(3).values,
    "nanmedian": lambda x: x.nanmedian(),
    "scatter_reduce": lambda x: x[0, 0, :2, :5].scatter_reduce(
        1, INDEX.to(x.device), x[1, 1, :2, :3], "mean", include_self=False
    ),
    "index_reduce": lambda x: x[0].index_reduce(2, INDEX[0].to(x.device), x[1, ..., :3], "amax"),
    "embedding_bag": lambda x: F.embedding_bag(INDEX.to(x.device), x[0, 0], mode="mean"),
    "lgamma": lambda x: torch.lgamma(x * 9 - 4.5),
    "polygamma": lambda x: torch.polygamma(2, x * 5 + 0.2),
    "ndtri": torch.special.ndtri,
    "erfcx": lambda x: torch.special.erfcx(x * 9 - 2),
    "i0": lambda x: torch.special.i0(x * 12),
    "i1e": lambda x: torch.special.i1e(x * 12),
    "weight_norm": lambda x: torch._weight_norm(x[0] - 0.3, x[0, :, :1, :1] + 1, 0),
    "weight_norm, last": lambda x: torch._weight_norm(x[0] - 0.3, x[0, :1, :1] + 1, 2),
    "fake_quantize_per_tensor": lambda x: torch.fake_quantize_per_tensor_affine(x * 9 - 1, 0.1, 3, 0, 60),
    "fake_quantize_per_tensor, tensors": lambda x: torch.fake_quantize_per_tensor_affine(
        x * 9 - 1, torch.tensor(0.1).to(x.device), torch.tensor(3, dtype=torch.int32).to(x.device), 0, 60
    ),
    "fake_quantize_per_channel": lambda x: torch.fake_quantize_per_channel_affine(
        x * 9 - 1, (ROW + 0.1).to(x.device), torch.arange(5, dtype=torch.int32).to(x.device), 2, 0, 20
    ),
    "igamma": lambda x: torch.igamma(x.detach().flip(0) * 40, x * 40 + 0.1),
    "igammac": lambda x: torch.igammac(x.detach().flip(0) * 3, x * 4 + 0.1),
    "sums of segments": lambda x: segments(x, "sum", lengths=[[1, 0, 4, 2]] * 8),
    "means of segments": lambda x: segments(x, "mean", offsets=[[0, 2, 5]] * 8, initial=2.0),
    "products of segments": lambda x: segments((x * 3).floor(), "prod", lengths=[[1, 2, 4]] * 8),
    "the largest of segments": lambda x: segments((x * 3).floor(), "max", lengths=[[1, 0, 4, 2]] * 8),
    "rfft": lambda x: torch.fft.rfft(x).abs(),
    "fft2": lambda x: torch.fft.fft2(x, norm="ortho").real,
    "bilinear, antialiased": lambda x: F.interpolate(x, size=(3, 9), mode="bilinear", antialias=True),
    "bicubic, antialiased": lambda x: F.interpolate(x, scale_factor=0.6, mode="bicubic", antialias=True),
    "ctc_loss": lambda x: F.ctc_loss(
        x[0].log_softmax(2), LABELS.to(x.device), [4, 3, 2, 1, 4], [3, 2, 2, 0, 1], reduction="none", zero_infinity=True
    ),
    "ctc_loss, one target after the other": lambda x: F.ctc_loss(
        x[0].log_softmax(2), LABELS.reshape(-1)[:7].to(x.device), [4] * 5, [2, 1, 0, 3, 1], blank=6, reduction="sum"
    ),
    "ctc_loss, lengths on the device": lambda x: F.ctc_loss(
        x[0].log_softmax(2), LABELS.to(x.device), *torch.tensor([[4, 4, 4, 4, 4], [3, 2, 1, 2, 1]]).to(x.device)
    ),
    "cdist": lambda x: torch.cdist(x[0, 0], x[1, 1], p=1.5),
    "cdist, by the largest": lambda x: torch.cdist(x[0], x[1, :1], p=float("inf")),
    "pdist": lambda x: F.pdist(x[0, 0], p=3),
    "addmm": lambda x: torch.addmm(x[0, 0, :, :5], x[0, 0], x[0, 1].mT, beta=0.5, alpha=3),
    "masked_scatter": lambda x: x[0].masked_scatter(mask_of(x[0]), x[1]),
    "index_fill": lambda x: x[0].index_fill(1, INDEX[0].to(x.device), x[1, 1, 1, 1]),
    "a write by a mask": lambda x: written(x, mask_of(x), 0.5),
    "a write by a mask, of a number": lambda x: written(x * 2, mask_of(x), torch.tensor(0.5).to(x.device)),
    "combinations": lambda x: torch.combinations(x[0, 0, 0], 3),
    "cov": lambda x: torch.cov(x[0, 0]),
    "cov, weighted": lambda x: torch.cov(
        x[0, 0], correction=2, fweights=torch.arange(1, 8).to(x.device), aweights=x[1, 0, 0].detach()
    ),
    "corrcoef": lambda x: torch.corrcoef(x[0, 0]),
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x), n=9),
}

#: Functions of which the results are compared. Their tensors are moved by ``at``.
RESULTS = {
    "searchsorted": lambda at: torch.searchsorted(at(X[0, 0].sort().values), at(X[1, 0])),
    "searchsorted, long": lambda at: torch.searchsorted(at(torch.arange(3000.0)), at(X[0, 0] * 4000), right=True),
    "repeat_interleave": lambda at: torch.repeat_interleave(
        at(X[0, 0]), at(torch.tensor([1, 0, 3, 0, 2])), 0, output_size=6
    ),
    "bucketize": lambda at: torch.bucketize(at(SPECIAL), at(torch.tensor([-1.0, 0.0, 1.5]))),
    "isin": lambda at: torch.isin(at(torch.arange(9)), at(INDEX)),
    "isin, many": lambda at: torch.isin(at(torch.arange(99)), at(torch.arange(50, 400, 3))),
    "mode": lambda at: at(INDEX).mode(),
    "median of NaN": lambda at: at(SPECIAL).median(),
    "places of zeros of either sign": lambda at: [
        function(at(torch.tensor(row)), 0)
        for function in (torch.median, torch.nanmedian, torch.mode)
        for row in ([3.0, 0.0, -0.0, 2.0], [0.0, 0.0, -0.0], [5.0, -0.0, 0.0, 0.0, -0.0, -3.0])
    ],
    "nanmedian of NaN with a sign": lambda at: [
        at(SIGNED_NAN.to(dtype)).nanmedian(0) for dtype in (torch.float32, torch.bfloat16)
    ],
    "aminmax": lambda at: at(X).aminmax(dim=2),
    "maxima of minus infinity": lambda at: (
        *at(LEAST).aminmax(dim=-1),
        *(-at(LEAST)).aminmax(),
        *F.adaptive_max_pool2d(at(LEAST), 2, return_indices=True),
        *F.max_pool2d(at(LEAST), 2, stride=1, padding=1, dilation=2, return_indices=True),
    ),
    "cumprod of int64": lambda at: at(INDEX + 1).cumprod(1),
    "cummin": lambda at: at(INDEX).cummin(1),
    "dilated pooling of integers": lambda at: F.max_pool2d(
        at(INDEX.repeat(3, 2)[None, None] - 3), 2, stride=1, padding=1, dilation=2, return_indices=True
    ),
    "cummin of many": lambda at: at(INDEX.repeat(1, 9)).cummin(1),
    "cummin of NaN": lambda at: at(SPECIAL).cummin(0),
    "mode of many": lambda at: at(INDEX.repeat(1, 9)).mode().values,
    "gcd": lambda at: torch.gcd(at(INDEX * 12), at(INDEX.flip(0) * 18)),
    "lcm": lambda at: torch.lcm(at(INDEX * 12), at(INDEX.flip(0) * 18)),
    "lcm of int8": lambda at: torch.lcm(at((INDEX + 99).to(torch.int8)), at((INDEX + 6).to(torch.int8))),
    "gradient of logit at its ends": lambda at: tuple(
        torch.ops.aten.logit_backward(at(torch.ones_like(SPECIAL)), at(SPECIAL), eps) for eps in (None, 0.2)
    ),
    "fmax": lambda at: torch.fmax(at(SPECIAL), at(SPECIAL.flip(0))),
    "copysign": lambda at: torch.copysign(at(SPECIAL.flip(0)), at(SPECIAL)),
    "signbit": lambda at: at(SPECIAL[:6]).signbit(),
    "what is the same for all integers": lambda at: (at(INDEX).isposinf(), at(INDEX.bool()).signbit()),
    "scatter_reduce of booleans": lambda at: tuple(
        at(ROWS.repeat(2)).scatter_reduce(0, at(INDEX[0]), at(INDEX[0] > 1), r, include_self=False)
        for r in ("amin", "amax")
    ),
    "heaviside": lambda at: torch.heaviside(at(SPECIAL), at(SPECIAL.flip(0))),
    "frexp": lambda at: at(torch.tensor([1.0, -6.5, 1e30, 0.0])).frexp(),
    "nextafter": lambda at: torch.nextafter(at(torch.tensor([1.0, -2.0])), at(torch.tensor([2.0, 0.0]))),
    "nextafter of bfloat16": lambda at: [
        torch.nextafter(at(SPECIAL.bfloat16()), at(SPECIAL.flip(0).to(dtype)))
        for dtype in (torch.bfloat16, torch.float32)
    ],
    "round": lambda at: torch.round(at(X), decimals=2),
    "exp2 of special values": lambda at: at(SPECIAL).exp2(),
    "logaddexp of special values": lambda at: torch.logaddexp(at(SPECIAL), at(SPECIAL.flip(0))),
    "hypot of special values": lambda at: torch.hypot(at(SPECIAL), at(SPECIAL.flip(0))),
    "angle": lambda at: at(SPECIAL[[0, 2, 3, 4, 6]]).angle(),
    "nonzero_static": lambda at: torch.nonzero_static(at(INDEX), size=4),
    "ifft of three dimensions": lambda at: torch.fft.ifftn(torch.complex(at(X), at(X)), dim=(1, 2, 3)),
    "weight_norm of bfloat16": lambda at: torch._weight_norm_interface(
        at(X[0].bfloat16()), at(X[0, :, :1, :1].bfloat16()), 0
    ),
    "weight_norm of zeros": lambda at: torch._weight_norm_interface(at(torch.zeros(2, 3)), at(torch.ones(2, 1)), 0),
    "fake quantization of special values": lambda at: torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(
        at(SPECIAL[[0, 1, 2, 3, 6, 7]]), 0.1, 3, 0, 25
    ),
    "fake quantization of bfloat16": lambda at: torch.ops.aten.fake_quantize_per_channel_affine_cachemask(
        at(X[0].bfloat16() * 9), at(ROW + 0.1), at(torch.arange(5, dtype=torch.int32)), 1, -9, 20
    ),
    "fake quantization of no number and of one": lambda at: (
        torch.fake_quantize_per_tensor_affine(at(X[:0]), 0.1, 3, 0, 25),
        torch.fake_quantize_per_tensor_affine(at(torch.tensor(1.26)), 0.1, 3, 0, 25),
    ),
    "fake quantization that is off": lambda at: (
        torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
            at(X), at(torch.tensor([0.1])), at(torch.tensor([3])), at(torch.zeros(1, dtype=torch.int64)), 0, 5
        )
    ),
    "gamma functions of three and more": lambda at: (
        at(torch.linspace(3, 9, 500)).lgamma(),
        at(torch.linspace(3, 9, 500)).digamma(),
    ),
    "gamma functions at special values": lambda at: (at(SPECIAL).lgamma(), at(SPECIAL).digamma()),
    "Bessel functions": lambda at: (torch.special.bessel_j0(at(X * 9)), torch.special.bessel_y1(at(X * 9))),
    "modified Bessel functions": lambda at: torch.special.scaled_modified_bessel_k1(at(X * 9)),
    "Hermite polynomials": lambda at: torch.special.hermite_polynomial_he(at(X), at(torch.arange(7))),
    "Chebyshev polynomials": lambda at: torch.special.chebyshev_polynomial_u(at(X), at(torch.arange(-1, 6))),
    "aminmax of nothing": lambda at: at(X[:, :0]).aminmax(dim=0),
    "norm of order 0": lambda at: torch.norm(at(SPECIAL).reshape(3, 3), 0, dim=1),
    "addmm of integers": lambda at: torch.addmm(at(INDEX[:, :2]), at(INDEX), at(INDEX.mT), beta=2, alpha=3),
    "addmm without the addend": lambda at: torch.addmm(at(SPECIAL[:3]), at(X[0, 0]), at(X[0, 1].mT[:, :3]), beta=0),
    "conjugates": lambda at: torch.fft.ihfft2(at(X)),
    "antialiased, aligned": lambda at: torch.ops.aten._upsample_bilinear2d_aa(at(X), [3, 9], True, None, None),
    "a write by a mask of rows": lambda at: written(at(X), at(ROWS), at(X[1])),
    "a write by a mask of columns": lambda at: written(at(X), (slice(None), at(ROWS.repeat(2))), at(X[:, :1])),
    "a write where nothing is": lambda at: written(at(X), at(X > 9), 1.0),
    "an added write": lambda at: at(X).index_put((at(X[..., 0] > 0.5),), at(X[0, 0, 0]), accumulate=True),
    "a write to a view": lambda at: written(at(X)[1:, :, ::2], at(X[1:, :, ::2] > 0.5), -1.0),
    "incomplete gamma functions at special values": lambda at: (
        torch.igamma(*at(PAIRS).unbind(1)),
        torch.igammac(*at(PAIRS.abs()).unbind(1)),
        torch.igamma(at(X.double() * 90), at(X.double().flip(0) * 90)),
    ),
    "zeta": lambda at: torch.special.zeta(at(X * 9), at(X.flip(0) * 30)),
    "zeta of integers and negative numbers": lambda at: torch.special.zeta(
        at(torch.tensor([[1], [2], [3], [7], [2.5]])),
        at(torch.tensor([-2.0, -1.5, -0.25, 0.0, 1.0, 2.0, float("nan")])),
    ),
    "cummax": lambda at: (*at(SPECIAL).cummax(0), *at(INDEX).cummax(-1), *at(INDEX > 1).cummax(0)),
    "airy_ai": lambda at: torch.special.airy_ai(at(torch.cat([X.reshape(-1) * 20 - 10, SPECIAL]))),
    "histogram": lambda at: torch.histogram(at(X), 7, weight=at(X.flip(0)), density=True),
    "histogram of numbers on edges": lambda at: torch.histogram(at(INDEX.float()), 6, range=(0.0, 3.0)),
    "histogram of bins": lambda at: torch.histogram(at(SPECIAL), at(torch.tensor([-1.0, 0.0, 1.5, 1e31]))),
    "histogramdd": lambda at: torch.histogramdd(at(X), [2, 1, 3, 2, 1, 1, 2], density=True),
    "histogramdd of bins": lambda at: torch.histogramdd(
        at(X[..., :2]), [at(torch.tensor([0, 0.3, 0.9])), at(torch.tensor([0.1, 0.5, 0.6, 1]))], weight=at(X[..., 0])
    ),
    "segments with NaN": lambda at: tuple(
        segments(at(SPECIAL.repeat(2, 4, 1)[..., [1, 2, 6, 3, 0, 5, 4]].repeat(1, 5, 1)), r, lengths=[[2, 3, 0, 2]] * 8)
        for r in ("sum", "mean", "prod", "max", "min")
    ),
    "combinations, repeated": lambda at: torch.combinations(at(INDEX[0]), with_replacement=True),
    "combinations of too few": lambda at: torch.combinations(at(X[0, 0, 0, :3]), 4),
    "cov of integers": lambda at: torch.cov(at(INDEX), correction=0),
    "evenly spaced numbers": lambda at: [
        function(start, end, steps, dtype=dtype, device=at(X).device)
        for function in (torch.linspace, torch.logspace)
        for start, end in ((at(torch.tensor(-1.5)), 3.25), (1, at(torch.tensor(4))), (at(X[0, 0, 0, 0]), at(X.max())))
        for steps in (0, 1, 7)
        for dtype in (None, torch.float64, torch.int32)
    ],
    "places in a triangle": lambda at: (
        torch.tril_indices(4, 3, device=at(X).device),
        torch.triu_indices(4, 6, -1, dtype=torch.int32, device=at(X).device),
    ),
    "powers of numbers": lambda at: torch.logspace(-1, 2, 5, 3.0, device=at(X).device),
    "empty": lambda at: F.unfold(at(X[:0]), 2),
    "0-d": lambda at: at(torch.tensor(2.5)).median(0),
}

if hasattr(torch, "hash_tensor"):  # since 2.9
    RESULTS |= {
        "hash_tensor": lambda at: tuple(torch.hash_tensor(at(x)).to(torch.int64) for x in HASHED),
        "hash_tensor of dimensions": lambda at: (
            torch.hash_tensor(at(X), dim=(0, 2)).to(torch.int64),
            torch.hash_tensor(at(X), dim=1, keepdim=True).to(torch.int64),
            torch.hash_tensor(at(X[0, 0, 0, 0])).to(torch.int64),
        ),
    }


@fails_on_stock
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients_are_those_of_the_cpu(name):
    expected = with_gradient(PROGRAMS[name], X)
    found = on_the_device(lambda: with_gradient(PROGRAMS[name], X.to(DEVICE)))
    torch.testing.assert_close(on_the_cpu(found), list(expected), rtol=1e-4, atol=1e-5)


@fails_on_stock
@pytest.mark.parametrize("name", INTERPOLATED)
def test_what_is_not_finite_reaches_what_is_made_of_it(name):
    """Also where its weight is 0, and nothing else; very large numbers stay what they are."""

    def run(device, x):
        x = x.to(device).requires_grad_()
        y = F.interpolate(x, **INTERPOLATED[name])
        grad = F.interpolate(NOT_FINITE, y.shape[2:]).to(device)  # a gradient that is not finite either
        return y.detach(), torch.autograd.grad(y, x, grad)[0]

    for x in (NOT_FINITE, X - 2e38 * (X > 0.98), X.double()):
        found = on_the_device(lambda x=x: run(DEVICE, x))
        torch.testing.assert_close(on_the_cpu(found), list(run("cpu", x)), equal_nan=True, rtol=1e-4, atol=1e-5)


def marked(name):
    """A polynomial's degrees are a loop that is traced."""
    is_polynomial = name.endswith("polynomials")
    return pytest.param(name, marks=pytest.mark.since("2.7", "loops on XLA:CPU")) if is_polynomial else name


@fails_on_stock
@pytest.mark.parametrize("name", [marked(name) for name in RESULTS])
def test_results_are_those_of_the_cpu(name):
    found = on_the_device(lambda: RESULTS[name](lambda t: t.to(DEVICE)))
    torch.testing.assert_close(on_the_cpu(found), on_the_cpu(RESULTS[name](lambda t: t)), equal_nan=True)


def test_the_number_next_to_one_of_float16():
    x, towards = SPECIAL.half(), SPECIAL.flip(0).half()
    found = torch.nextafter(x.to(DEVICE), towards.to(DEVICE)).cpu()
    torch.testing.assert_close(found, torch.nextafter(x, towards), rtol=0, atol=0, equal_nan=True)


@fails_on_stock
def test_what_later_releases_lower_is_on_the_device():
    x, by = torch.tensor([5, 100, -100, 127], dtype=torch.int32), torch.tensor([1, 3, 2, 7], dtype=torch.int32)

    def results(x, by):
        conjugate = torch.ops.aten._conj_copy(torch.complex(x.float(), by.float()))
        shifts = (x << by, x >> by, x >> 1, torch.bitwise_left_shift(x, by), torch.bitwise_right_shift(x, by))
        return *shifts, (x.to(torch.uint8) >> 2), torch.isneginf(x / 0.0), torch.view_as_real_copy(conjugate)

    found = on_the_device(lambda: results(x.to(DEVICE), by.to(DEVICE)))
    torch.testing.assert_close(on_the_cpu(found), list(results(x, by)))


@fails_on_stock
@pytest.mark.parametrize("name", ["bilinear", "grid_sample", "huber_loss", "logcumsumexp", "adaptive_avg_pool2d"])
def test_bfloat16_is_computed_in_float32_and_rounded_once(name):
    narrow = X.bfloat16()
    found = on_the_device(lambda: PROGRAMS[name](narrow.to(DEVICE)))
    wide = PROGRAMS[name](narrow.to(DEVICE).float() if name != "grid_sample" else narrow.to(DEVICE))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found.cpu(), wide.bfloat16().cpu())


@fails_on_stock
def test_a_sample_without_replacement_is_drawn_on_the_device():
    weights = torch.tensor([0.0, 1.0, 2.0, 0.0, 3.0]).repeat(500, 1)
    drawn = on_the_device(lambda: torch.multinomial(weights.to(DEVICE), 3)).cpu()
    assert torch.equal(drawn.sort().values, torch.tensor([1, 2, 4]).repeat(500, 1))
    first = torch.bincount(drawn[:, 0], minlength=5) / 500
    torch.testing.assert_close(first, weights[0] / 6, atol=0.1, rtol=0)


@fails_on_stock
@pytest.mark.parametrize("samples", [2, 12])
def test_what_is_left_is_sampled_by_its_weights(samples):
    """The second of a sample whose first is almost certain; 2 and 12 are drawn in different ways."""
    torch.manual_seed(2)
    weights = torch.cat([torch.arange(4.0), torch.tensor([1e7]), torch.arange(10.0)])
    drawn = on_the_device(lambda: torch.multinomial(weights.expand(4000, 15).to(DEVICE), samples)).cpu()
    assert weights[drawn].gt(0).all() and all(row.unique().numel() == samples for row in drawn[:100])
    second = torch.bincount(drawn[drawn[:, 0] == 4][:, 1], minlength=15) / 4000
    expected = torch.where(weights < 10, weights, 0) / 51
    torch.testing.assert_close(second, expected, atol=0.03, rtol=0)


@fails_on_stock
def test_ctc_losses_of_several_lengths():
    x, targets = images(6, 2, 5).log_softmax(2), torch.tensor([1, 2, 1, 3, 2])
    for lengths in [3, 2], [2, 3], [3, 0]:
        numbers = [[6, 5], lengths] if sum(lengths) == 5 else [[4, 6], lengths]

        def run(device, numbers=numbers):
            return F.ctc_loss(x.to(device), targets[: sum(numbers[1])].to(device), *numbers, reduction="none")

        torch.testing.assert_close(on_the_device(lambda run=run: run(DEVICE)).cpu(), run("cpu"))


@fails_on_stock
def test_other_lengths_of_a_ctc_loss_are_not_compiled_again():
    x, targets = images(6, 2, 5).log_softmax(2).to(DEVICE), torch.tensor([1, 2, 1, 3, 2]).to(DEVICE)

    def compiled(steps, lengths):
        on_the_device(lambda: F.ctc_loss(x, targets, steps, lengths).cpu())
        return metric_data("CompileTime") is not None

    torch_xla.sync()
    assert compiled([5, 6], [3, 2]) and not compiled([6, 4], [2, 3])


@fails_on_stock
def test_a_target_without_an_alignment_costs_infinity():
    def run(x):
        loss = F.ctc_loss(x, torch.tensor([[1, 1], [1, 2]]).to(x.device), [2, 2], [2, 2], reduction="none")
        return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]

    x = images(3, 2, 4).log_softmax(2)
    found = on_the_device(lambda: run(x.to(DEVICE).requires_grad_()))
    torch.testing.assert_close(on_the_cpu(found), list(run(x.clone().requires_grad_())), equal_nan=True)


@pytest.fixture
def many_are_drawn(monkeypatch):
    """Also on CPU-XLA, where a sampler of many numbers is torch's."""
    monkeypatch.setattr(importlib.import_module("torch_xla._lowerings.drawing"), "MOST_ON_CPU", 10**6)


@pytest.mark.since("2.7", "tensors that stand for others, of which a graph is made once")
@fails_on_stock
def test_a_distributions_numbers_are_operands_of_its_graph():
    x = torch.zeros(4, device=DEVICE)

    def drawn(sigma):
        torch_xla.sync()
        return ir(x.clone().cauchy_(0.0, sigma))

    assert "xla::cauchy(" in drawn(0.5)
    assert drawn(0.7) == drawn(0.5)


@passes_on_stock
def test_many_numbers_are_drawn_by_torch_on_cpu_xla():
    rates = torch.full((1000,), 3.0, device=DEVICE)
    metrics.clear_all()
    drawn = [torch.poisson(rates), rates.clone().log_normal_()]
    assert sorted(metrics.executed_fallback_ops()) == ["aten::log_normal_", "aten::poisson"]
    assert all(x.device == DEVICE and x.unique().numel() > 5 for x in drawn)


@fails_on_stock
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_a_key_are_uniform_and_independent(dtype):
    torch_xla.manual_seed(1)
    drawing = importlib.import_module("torch_xla._lowerings.drawing")
    like = torch.zeros(300, 200, dtype=dtype, device=DEVICE)
    numbers = drawing.several(drawing.key(like), like, 3).cpu().double()
    assert numbers.shape == (3, 300, 200) and numbers.min() > 0 and numbers.max() < 1
    shares = torch.histc(numbers, 100, 0, 1) / numbers.numel()
    torch.testing.assert_close(shares, torch.full_like(shares, 0.01), atol=1.2e-3, rtol=0)
    shifted = [numbers.roll(1, dim) for dim in (0, 1, 2)]
    of_bits = torch.corrcoef(torch.stack([numbers, *shifted, (numbers * 2**12) % 1, (numbers * 2**20) % 1]).flatten(1))
    torch.testing.assert_close(of_bits, torch.eye(6, dtype=torch.float64), atol=0.015, rtol=0)


#: Draws of [4000], and what lies below the quarters of their distribution.
DRAWS = {
    "cauchy": (lambda x: x.cauchy_(1, 2), (-1.0, 1.0, 3.0)),
    "log_normal": (lambda x: x.log_normal_(0, 1), (0.5094, 1.0, 1.963)),
    "rrelu": (lambda x: F.rrelu(x - 1, 0.2, 0.6, training=True), (-0.5, -0.4, -0.3)),
}


@fails_on_stock
@pytest.mark.parametrize("name", DRAWS)
def test_numbers_are_drawn_on_the_device(name, many_are_drawn):
    draw, quarters = DRAWS[name]
    torch_xla.manual_seed(3)
    drawn = on_the_device(lambda: draw(torch.zeros(4000, device=DEVICE)))
    assert drawn.unique().numel() > 3900
    below = [(drawn < quarter).float().mean().item() for quarter in quarters]
    torch.testing.assert_close(torch.tensor(below), torch.tensor([0.25, 0.5, 0.75]), atol=0.04, rtol=0)


@fails_on_stock
def test_geometric_numbers_are_drawn_on_the_device(many_are_drawn):
    drawn = on_the_device(lambda: torch.zeros(4000, device=DEVICE, dtype=torch.int64).geometric_(0.5)).cpu()
    counts = torch.bincount(drawn)[:4] / 4000
    torch.testing.assert_close(counts, torch.tensor([0, 0.5, 0.25, 0.125]), atol=0.04, rtol=0)


#: Samplers of a distribution, that are called with 20,000 times what the distribution is of.
SAMPLERS = {
    "poisson, few": (torch.poisson, [2.5]),
    "poisson, many": (torch.poisson, [31.0]),
    "binomial, few": (torch.binomial, [9.0, 0.3]),
    "binomial, many": (torch.binomial, [90.0, 0.7]),
    "gamma, small": (torch._standard_gamma, [0.4]),
    "gamma": (torch._standard_gamma, [7.0]),
    "dirichlet": (lambda x: torch._sample_dirichlet(x.reshape(-1, 4))[:, 0], [0.5]),
}


def sample(name, device, dtype=torch.float32):
    function, numbers = SAMPLERS[name]
    return function(*(torch.full((20000,), n, dtype=dtype, device=device) for n in numbers))


def share_below(drawn, points):
    return torch.searchsorted(drawn.double().sort().values, points, right=True) / drawn.numel()


@fails_on_stock
@pytest.mark.parametrize("name", SAMPLERS)
def test_samples_have_the_distribution_of_the_cpus(name, many_are_drawn):
    torch.manual_seed(5)
    expected = sample(name, "cpu").double()
    found = on_the_device(lambda: sample(name, DEVICE)).cpu()
    points = torch.cat([expected, found]).unique()
    assert found.dtype == torch.float32
    distance = (share_below(found, points) - share_below(expected, points)).abs().max()
    assert distance < 2.7 * (2 / expected.numel()) ** 0.5


@fails_on_stock
@pytest.mark.parametrize("name", SAMPLERS)
def test_samples_are_those_of_the_seed(name, many_are_drawn):
    def drawn(seed):
        torch_xla.manual_seed(seed)
        return on_the_device(lambda: sample(name, DEVICE)).cpu()

    first = drawn(7)
    assert torch.equal(first, drawn(7))
    assert not torch.equal(first, drawn(8))


def gradients_of_samples(device, dtype=torch.float32):
    """Of many kinds of gamma and beta variates, with what they were drawn of."""
    alpha = torch.tensor([0.01, 0.3, 1.0, 2.5, 7.0, 30.0, 500.0], dtype=torch.float64).repeat(40, 1)
    generator = torch.Generator().manual_seed(4)
    gammas = torch._standard_gamma(alpha, generator=generator).to(dtype)
    pairs = torch.stack([alpha, torch.rand(alpha.shape, generator=generator, dtype=torch.float64) * 9 + 0.1], -1)
    betas = torch._sample_dirichlet(pairs, generator=generator)[..., 0].clamp(1e-30, 1 - 1e-3).to(dtype)
    alpha, total = alpha.to(dtype), pairs.sum(-1).to(dtype)
    return (
        torch.ops.aten._standard_gamma_grad(alpha.to(device), gammas.clamp(min=1e-30).to(device)),
        torch.ops.aten._dirichlet_grad(betas.to(device), alpha.to(device), total.to(device)),
    )


@fails_on_stock
def test_gradients_of_samples():
    """torch's own are exact to three places."""
    wide = on_the_device(lambda: gradients_of_samples(DEVICE, torch.float64))
    torch.testing.assert_close(on_the_cpu(wide), list(gradients_of_samples("cpu", torch.float64)), rtol=3e-3, atol=0)
    found = on_the_device(lambda: gradients_of_samples(DEVICE))
    torch.testing.assert_close(on_the_cpu(found), [t.cpu().float() for t in wide], rtol=1e-4, atol=0)


@fails_on_stock
def test_gradients_of_samples_whose_distribution_has_a_closed_form():
    x, alpha = torch.meshgrid(torch.linspace(0.02, 0.98, 25), torch.tensor([0.1, 1.0, 8.0, 90.0]), indexing="ij")
    found = on_the_device(lambda: torch.ops.aten._dirichlet_grad(*(t.to(DEVICE) for t in (x, alpha, alpha + 1))))
    x, alpha = x.double(), alpha.double()  # F(x) = x^α
    torch.testing.assert_close(found.cpu(), (-x * x.log() / alpha / (1 - x)).float(), rtol=1e-5, atol=0)


@fails_on_stock
def test_a_sample_of_a_distribution_has_a_gradient_on_the_device():
    def run():
        alpha = (X[0, 0] + 0.5).to(DEVICE).requires_grad_()
        samples = [
            torch.distributions.Gamma(alpha, torch.ones_like(alpha), validate_args=False).rsample(),
            torch.distributions.Dirichlet(alpha, validate_args=False).rsample(),
        ]
        return torch.autograd.grad(sum((t**2).sum() for t in samples), alpha)[0]

    found = on_the_device(run)
    assert found.isfinite().all() and (found != 0).all()


@fails_on_stock
def test_rare_samples():
    def run(device):
        zero = torch.zeros(3, device=device)
        return [
            torch.poisson(zero),
            torch.binomial(zero + 5, zero),
            torch.binomial(zero + 5, zero + 1),
            torch._standard_gamma(zero + 1e-8) < 1e-30,
            torch.poisson(zero[:0]),
            torch.binomial(tries.to(device), chances.to(device)),
            torch._standard_gamma(of_none.to(device)),
            torch._sample_dirichlet(of_none.to(device)),
        ]

    tries, nan = torch.tensor([-1.0, 2, 2, 2, 2.5, 2]), math.nan
    chances, of_none = torch.tensor([0.5, -0.5, 1.5, nan, 1, 0]), torch.tensor([-1.0, 0, nan])
    found = on_the_device(lambda: run(DEVICE))
    torch.testing.assert_close(on_the_cpu(found), run("cpu"), rtol=1e-4, atol=0, equal_nan=True)


@passes_on_stock
def test_rounding_to_decimals_divides_exactly():
    x = torch.tensor([0.87, 0.93, 123.456, math.inf, -math.inf, math.nan])
    for decimals in (1, 3, -1):
        found = x.to(DEVICE).round(decimals=decimals).cpu()
        torch.testing.assert_close(found, x.round(decimals=decimals), rtol=0, atol=0, equal_nan=True)


@fails_on_stock
def test_a_histogram_of_what_is_not_finite_is_nan():
    x = torch.tensor([math.inf, 2]).to(DEVICE)
    found = on_the_device(lambda: [torch.histogram(x, 4).hist, torch.histogramdd(x[:, None], [4]).hist, torch.histc(x)])
    assert all(t.isnan().all() for t in found)


@fails_on_stock
@pytest.mark.parametrize(
    "program",
    [torch.cov, torch.corrcoef, lambda x: torch.combinations(x[0], 2)],
    ids=["cov", "corrcoef", "combinations"],
)
def test_what_torch_makes_of_other_operators_is_on_the_device_in_inference_mode(program):
    x = X[0, 0].to(DEVICE)
    with torch.inference_mode():
        found = on_the_device(lambda: program(x))
    torch.testing.assert_close(found.cpu(), program(X[0, 0]))


@passes_on_stock
def test_composites_of_the_cpu_are_functionalized():
    found = torch.func.functionalize(lambda x: (torch.cov(x), torch.combinations(x[0])))(X[0, 0])
    assert torch.equal(found[0], torch.cov(X[0, 0])) and torch.equal(found[1], torch.combinations(X[0, 0, 0]))


@fails_on_stock
@pytest.mark.parametrize("weights", [{"fweights": [1, -1, 2, 1, 1, 1, 1]}, {"aweights": [0.0] * 7}])
def test_weights_of_a_covariance_that_torch_refuses_give_nan(weights):
    weights = {name: torch.tensor(value).to(DEVICE) for name, value in weights.items()}
    assert on_the_device(lambda: torch.cov(X[0, 0].to(DEVICE), **weights)).isnan().all()


NUMBERS = {
    "copysign": lambda x: torch.copysign(x, -1),
    "copysign of bytes": lambda x: torch.copysign(x.abs().to(torch.uint8), -1),
    "copysign of integers": lambda x: torch.copysign(x.int(), 2.5),
    "xlog1py": lambda x: torch.special.xlog1py(2, x),
    "xlog1py of bfloat16": lambda x: torch.special.xlog1py(x.bfloat16(), 4),
    "zeta": lambda x: torch.special.zeta(x + 1.5, 3),
    "zeta of a number": lambda x: torch.special.zeta(2.5, x[0, 0, 0, 0] + 1),
    "polynomial": lambda x: torch.special.shifted_chebyshev_polynomial_t(0.5, (x * 4).long()),
}


@fails_on_stock
@pytest.mark.parametrize("call", NUMBERS.values(), ids=NUMBERS.keys())
def test_numbers_instead_of_tensors(call):
    found, expected = on_the_device(lambda: call(X.to(DEVICE))), call(X)
    assert found.dtype == expected.dtype
    rounding = 1e-2 if found.dtype == torch.bfloat16 else 1e-4  # torch's kernel rounds the logarithm, too
    torch.testing.assert_close(found.cpu(), expected, rtol=rounding, atol=1e-5)


def test_samples_of_fractional_pooling():
    """torch.nn.FractionalMaxPool3d draws two for an image without a batch; too few are refused."""
    pool = torch.nn.functional.fractional_max_pool3d_with_indices
    x, samples = X[None], torch.rand(2, 2, 3)
    found = pool(x[0].to(DEVICE), 2, (1, 3, 4), _random_samples=samples.to(DEVICE))
    for f, e in zip(found, pool(x[0], 2, (1, 3, 4), _random_samples=samples), strict=True):
        assert torch.equal(f.cpu(), e)
    with pytest.raises(RuntimeError, match="samples"):
        pool(x.expand(3, *x.shape[1:]).to(DEVICE), 2, (1, 3, 4), _random_samples=samples.to(DEVICE))


WHOLE, COMPLEX = torch.ones(1, 4, 4, dtype=torch.int64), torch.ones(4, dtype=torch.complex64)

#: Calls that torch's kernels refuse for their dtypes; the functions of the table would compute something.
REFUSED = {
    "gcd": lambda: torch.gcd(X[0, 0].to(DEVICE), X[0, 0].to(DEVICE)),
    "igamma": lambda: torch.igamma(WHOLE.to(DEVICE), WHOLE.to(DEVICE)),
    "unfold": lambda: F.unfold(WHOLE.to(DEVICE), 2),
    "huber_loss": lambda: F.huber_loss(WHOLE.to(DEVICE), WHOLE.to(DEVICE)),
    "median": lambda: COMPLEX.to(DEVICE).median(),
    "nansum of floats in integers": lambda: X.to(DEVICE).nansum(dtype=torch.int64),
    "nansum of floats in complex numbers": lambda: X.to(DEVICE).nansum(dtype=torch.complex64),
    "isin": lambda: torch.isin(WHOLE.bool().to(DEVICE), WHOLE.bool().to(DEVICE)),
    "signbit": lambda: torch.signbit(COMPLEX.to(DEVICE)),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_dtypes_that_torch_refuses(call):
    with pytest.raises((NotImplementedError, RuntimeError)):
        call()


@passes_on_stock
def test_a_nansum_in_a_narrow_dtype_is_rounded_once():
    numbers = torch.tensor([1.7, float("nan"), 2.6, 0.9])
    found, expected = (numbers.to(device).nansum(dtype=torch.bfloat16) for device in (DEVICE, "cpu"))
    assert torch.equal(found.cpu(), expected)


@passes_on_stock
@pytest.mark.filterwarnings("default")
def test_a_covariance_of_too_few_observations_is_told():
    with pytest.warns(UserWarning, match="degrees of freedom"):
        found = torch.cov(X[0, 0].to(DEVICE), correction=7)
    assert torch.equal(found.cpu(), torch.cov(X[0, 0], correction=7))


@fails_on_stock
def test_lengths_of_segments_that_are_not_the_datas_give_nan():
    x = X[0, 0, 0].to(DEVICE)
    for lengths in torch.tensor([[3, 3], [9, -2]]).to(DEVICE):
        assert on_the_device(lambda n=lengths: torch.segment_reduce(x, "sum", lengths=n)).isnan().all()


@fails_on_stock
def test_batch_normalization_by_its_later_name():
    def run(x):
        mean, var = torch.zeros(4).to(x.device), torch.ones(4).to(x.device)
        y = torch.ops.aten._batch_norm_with_update(x, var + 1, var * 3, mean, var, 0.1, 1e-5)[0]
        (grad,) = torch.autograd.grad(y, x, torch.cos(y.detach()))
        return y.detach(), grad, mean, var

    found = on_the_device(lambda: run(X.to(DEVICE).requires_grad_()))
    torch.testing.assert_close(on_the_cpu(found), on_the_cpu(run(X.clone().requires_grad_())), rtol=1e-4, atol=1e-5)


NUMBERS = {
    "int64": (torch.float32, torch.tensor(-1)),
    "bool": (torch.float32, torch.tensor(True)),
    "one element": (torch.float32, torch.tensor([-1])),
    "float64 for int64": (torch.int64, torch.tensor(-2.5, dtype=torch.float64)),
    "int32 for bfloat16": (torch.bfloat16, torch.tensor(3, dtype=torch.int32)),
    "float32 for complex64": (torch.complex64, torch.tensor(2.0)),
}


@fails_on_stock
@pytest.mark.parametrize("of_the_cpu", (False, True), ids=("of the device", "of the CPU"))
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_of_another_type_is_written_by_a_mask(name, of_the_cpu):
    dtype, number = NUMBERS[name]
    x = X.to(dtype)
    value = number if of_the_cpu else number.to(DEVICE)
    for mask in (X > 0.5, ROWS):
        found = on_the_device(lambda mask=mask: written(x.to(DEVICE), mask.to(DEVICE), value))
        assert torch.equal(found.cpu(), written(x, mask, number))


@pytest.mark.passes_on_stock
def test_values_that_differ_from_place_to_place_are_written_as_before():
    for mask, values in ((ROWS, X[:1]), (X > 0.5, X[X > 0.5].flip(0)), (torch.tensor([True, True]), X.flip(0))):
        assert torch.equal(written(X.to(DEVICE), mask.to(DEVICE), values.to(DEVICE)).cpu(), written(X, mask, values))
    with pytest.raises((IndexError, RuntimeError)):
        written(X.to(DEVICE), (X[0] > 0.5).to(DEVICE), 1.0)


@fails_on_stock
def test_out_and_in_place_forms():
    x, out = X.to(DEVICE), torch.empty(0).to(DEVICE)
    found = on_the_device(lambda: (torch.hypot(x, x, out=out), x.clone().heaviside_(x), x.clone().copysign_(x)))
    torch.testing.assert_close(found[0].cpu(), torch.hypot(X, X))
    assert out.shape == X.shape
    assert torch.equal(found[2].cpu(), X)


@fails_on_stock
@pytest.mark.parametrize(
    "program",
    [torch.index_select, lambda x, dim, index: x.index_fill(dim, index, 1.0), lambda x, dim, index: x[index]],
    ids=["index_select", "index_fill", "getitem"],
)
def test_places_that_were_searched_for_are_an_index(program):
    x, bounds, values = X[0, 0], torch.tensor([0.1, 0.5, 0.7]), torch.tensor([0.2, 0.6])

    def run(x, bounds, values):
        return program(x, 0, torch.searchsorted(bounds, values))

    found = on_the_device(lambda: run(*(t.to(DEVICE) for t in (x, bounds, values))))
    assert torch.equal(found.cpu(), run(x, bounds, values))


@pytest.mark.since("2.7", "tensors that stand for others, of which a graph is made once")
@fails_on_stock
def test_a_fourier_transform_is_one_operation():
    x = X.to(DEVICE)
    torch_xla.sync()
    ir(torch.fft.rfft(x)).expect("""\
%0 = f32[2,4,5,7] xla::device_data()
%1 = (c64[2,4,5,4]) xla::_fft_r2c(%0)
return %1
""")


def test_what_is_declined_goes_where_it_went():
    x = (X[0] * 10).to(torch.uint8)
    assert torch.equal(
        F.interpolate(x[None].to(DEVICE), size=(3, 4), mode="bilinear").cpu(),
        F.interpolate(x[None], size=(3, 4), mode="bilinear"),
    )
    assert torch.equal(F.max_pool2d(X.to(DEVICE), 2).cpu(), F.max_pool2d(X, 2))
    with pytest.raises((RuntimeError, IndexError)):
        torch.linalg.cross(X.to(DEVICE), X.to(DEVICE))


@passes_on_stock
@pytest.mark.parametrize("name", CPU_OPERANDS)
@pytest.mark.parametrize("on_xla", [0, 1])
def test_operands_of_the_cpu_go_where_they_went(name, on_xla):
    program, *given = CPU_OPERANDS[name]
    operands = [x.to(DEVICE) if i == on_xla else x for i, x in enumerate(given)]
    found, expected = program(*operands), program(*given)
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found.cpu(), expected)


@fails_on_stock
def test_the_table_has_operators_and_functions_that_exist():
    table = importlib.import_module("torch_xla._lowerings.table")
    assert table.TABLE, "the table is empty"
    entries = [("XLA", *entry) for entry in table.TABLE.items()]
    entries += [("AutogradXLA", *entry) for entry in table.DIFFERENTIABLE.items()]
    entries += [(key, *entry) for key in ("AutogradXLA", "Functionalize") for entry in table.COMPOSITE.items()]
    for key, operator, place in entries:
        module, function = place.split(".")
        assert callable(getattr(importlib.import_module(f"torch_xla._lowerings.{module}"), function)), place
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", key), operator


@fails_on_stock
def test_a_compiled_function_is_one_graph():
    compiled = torch.compile(
        lambda x: F.interpolate(x, scale_factor=1.7).exp2().sum(), backend="openxla", fullgraph=True
    )
    found = on_the_device(lambda: compiled(X.to(DEVICE)))
    torch.testing.assert_close(found.cpu(), F.interpolate(X, scale_factor=1.7).exp2().sum())


LEAVING = """\
import torch, torch_xla
x = torch.rand(3, 3, device="xla").requires_grad_()
for _ in range(2):
    torch.nonzero(x.detach())
torch.linalg.eigvals(x).real.sum().backward()
"""


@fails_on_stock
def test_what_leaves_the_device_is_told_with_its_line_if_that_is_asked_for(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LEAVING, encoding="utf-8")
    told = completed(program, CASTOFF_WARN_LEAVES_DEVICE="1").stderr
    assert told.count("program.py:4: RuntimeWarning: aten::nonzero leaves the device") == 1
    assert told.count("program.py:5: RuntimeWarning: aten::linalg_eig leaves the device") == 1
    assert told.count("aten::nonzero leaves") == 1
    assert "aten::_linalg_solve_ex leaves the device for the CPU in the gradient LinalgEigBackward0" in told


@passes_on_stock
def test_nothing_is_told_by_default(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LEAVING, encoding="utf-8")
    assert "leaves the device" not in forked(program).stderr


@passes_on_stock
@pytest.mark.parametrize("name", ["addmv", "addbmm"])
def test_factors_of_products_of_integers(name):
    """They are integers, as on the CPU, which stock leaves them to."""
    shapes = {"addmv": ((2,), (2, 3), (3,)), "addbmm": ((2, 2), (4, 2, 3), (4, 3, 2))}[name]
    operands = [torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape) for shape in shapes]
    expected = getattr(torch, name)(*operands, beta=2.7, alpha=1.9)
    found = getattr(torch, name)(*[x.to("xla") for x in operands], beta=2.7, alpha=1.9)
    assert found.dtype == torch.int64
    assert torch.equal(found.cpu(), expected)


def test_a_zero_point_of_int64_is_refused_as_on_the_cpu():
    for device in ("cpu", DEVICE):
        scale, zero = (ROW + 0.1).to(device), torch.arange(5).to(device)
        with pytest.raises(RuntimeError, match=r"[Zz]ero-point must be"):
            torch.fake_quantize_per_channel_affine(X.to(device), scale, zero, 2, 0, 20)
