"""What autocast casts is what torch's lists for CUDA name: patches/torch_xla/autocast-lists.

Most calls are those of torch's own tests, torch/testing/_internal/autocast_test_lists.py, in bfloat16 for float16.
"""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE, bf16, f16, f32
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from torch.utils._pytree import tree_map

RIGHT_ON_STOCK = re.compile(
    r"addbmm|addmm|atan2|baddbmm|bmm|binary_cross.*|cdist|chain_matmul|conv(_tbc|(_transpose)?[123]d)|"
    r"cosine_embedding_loss|einsum|hinge_.*|kl_div|l1_loss|linalg_(multi_dot|matrix_norm.str_ord)|linear|(log_)?softmax|"
    r"margin_.*|matmul|mm|mse_loss|multi_margin_loss|multilabel_.*|nll_loss(2d)?|prelu|prod|rnn_(relu|tanh)_cell|"
    r"smooth_l1_loss|soft_margin_loss|stft|triplet_.*"
)
"""What stock gives in the right dtype: what torch_xla's lists name, what is made of such, and what promotes anyway."""


def data(*shape, dtype=bf16, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).add(0.25).to(dtype)


def wide(*shape, seed=0):
    return data(*shape, dtype=f32, seed=seed)


def of_torchs_tests():
    """(name, function, arguments, keywords, dtype of the result) of the calls in torch's own tests."""
    torch.manual_seed(0)
    lists = AutocastTestLists("cpu")
    found = []
    for of, module, dtype in (
        ("torch_fp16", torch, bf16),
        ("nn_fp16", torch._C._nn, bf16),
        ("linalg_fp16", torch._C._linalg, bf16),
        ("torch_fp32", torch, f32),
        ("nn_fp32", torch._C._nn, f32),
        ("torch_need_autocast_promote", torch, f32),
    ):
        for name, arguments, *more in getattr(lists, of):
            if name.startswith("cudnn") or isinstance(arguments, str):
                continue  # CUDA's own, and einsum, which torch's tests leave out
            keywords = more[0] if more else {}
            full = "pow.Tensor_Scalar" if name == "pow" and isinstance(arguments[1], float) else name
            found.append((full, getattr(module, name), in_bfloat16(arguments), keywords, dtype))
    return found


def in_bfloat16(arguments):
    return tree_map(lambda x: x.bfloat16() if isinstance(x, torch.Tensor) and x.dtype == f16 else x, arguments)


OTHERS = [
    ("scaled_dot_product_attention", F.scaled_dot_product_attention, (wide(1, 2, 8, 4),) * 3, {}, bf16),
    ("einsum", torch.einsum, ("ij,jk->ik", wide(3, 4), wide(4, 5)), {}, bf16),
    ("native_layer_norm", torch.native_layer_norm, (data(2, 8), (8,), data(8), data(8), 1e-5), {}, f32),
    ("pow.Scalar", torch.pow, (1.7, data(4)), {}, f32),
    ("norm.nuc", torch.norm, (data(4, 4), "nuc"), {}, f32),
    ("norm.fro", torch.norm, (data(4, 4), "fro", 1), {}, f32),
    ("nuclear_norm", torch.nuclear_norm, (data(4, 4),), {}, f32),
    ("nuclear_norm.dim", torch.nuclear_norm, (data(4, 4), (0, 1)), {}, f32),
    ("frobenius_norm.dim", torch.ops.aten.frobenius_norm.dim, (data(4, 4), (0,)), {}, f32),
    ("huber_loss", F.huber_loss, (data(4), data(4, seed=1)), {}, f32),
    ("linalg_vector_norm", torch.linalg.vector_norm, (data(8),), {}, f32),
    ("linalg_matrix_norm", torch.linalg.matrix_norm, (data(4, 4),), {}, f32),
    ("linalg_matrix_norm.str_ord", torch.linalg.matrix_norm, (wide(4, 4), "fro"), {}, f32),
    ("softmax", torch.softmax, (data(4, 4), 1), {}, f32),
    *(
        (f"upsample_{name}", F.interpolate, (data(1, 2, *[5] * rank),), {"scale_factor": 2, "mode": mode} | more, f32)
        for name, rank, mode, more in (
            ("nearest1d", 1, "nearest", {}),
            ("nearest2d", 2, "nearest", {}),
            ("nearest3d", 3, "nearest", {}),
            ("_nearest_exact1d", 1, "nearest-exact", {}),
            ("_nearest_exact2d", 2, "nearest-exact", {}),
            ("_nearest_exact3d", 3, "nearest-exact", {}),
            ("linear1d", 1, "linear", {}),
            ("bilinear2d", 2, "bilinear", {}),
            ("_bilinear2d_aa", 2, "bilinear", {"antialias": True}),
            ("trilinear3d", 3, "trilinear", {}),
            ("bicubic2d", 2, "bicubic", {}),
            ("_bicubic2d_aa", 2, "bicubic", {"antialias": True}),
        )
    ),
]


def transforms():
    """Fourier transforms of bfloat16, which the CPU's lists have in float32 and CUDA's do not."""
    x = data(6, 8)
    both = ("fft", "ifft", "rfft", "fft2", "ifft2", "fftn", "ifftn", "rfft2", "rfftn", "ihfft")
    found = [(f"fft_{name}", getattr(torch.fft, name), (x,), {}, torch.complex64) for name in both]
    found += [
        (f"fft_{name}", getattr(torch.fft, name), (x,), {}, f32) for name in ("irfft", "irfft2", "irfftn", "hfft")
    ]
    return [*found, ("stft", torch.stft, (data(32), 8), {"return_complex": True}, torch.complex64)]


# XLA takes seconds to compile what decomposes a matrix, and convolutions with as many weights as elements.
SECONDS = re.compile(r"conv|.*nuc")


def on_stock(name):
    if name == "pow.Tensor_Scalar":
        return fails_on_stock("2.6")
    return passes_on_stock if RIGHT_ON_STOCK.fullmatch(name) else fails_on_stock


def cases():
    return [
        pytest.param(
            *call,
            SECONDS.match(name) is None,
            id=f"{i}-{name}",
            marks=on_stock(name),
        )
        for i, (name, *call) in enumerate(of_torchs_tests() + OTHERS + transforms())
    ]


def on_xla(arguments):
    return tree_map(lambda x: x.to(DEVICE) if isinstance(x, torch.Tensor) else x, arguments)


def converted(arguments, dtype):
    """The arguments with what autocast would have converted; tensors of integers are no matter of it."""
    return tree_map(lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x, arguments)


def first(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize(("function", "arguments", "keywords", "dtype", "values"), cases())
def test_every_operator(function, arguments, keywords, dtype, values):
    """The dtype that torch's list says, and the value of the operator without autocast in that dtype."""
    with torch.autocast("xla"):
        found = first(function(*on_xla(arguments), **keywords))
    assert found.dtype == dtype
    if not values:
        return
    control = first(function(*on_xla(converted(arguments, f32 if dtype.is_complex else dtype)), **keywords))
    torch.testing.assert_close(found.cpu(), control.cpu(), equal_nan=True)


HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
LIST = re.compile(r"#define AT_FORALL_(?!DEPRECATED)\w+\(_\)((?:.*\\\n)*.*\n)")
OPERATOR = re.compile(r"_\((\w+)(?:, (\w+))?\)|\"(norm\.\w+)\"")


@fails_on_stock
def test_every_operator_of_torchs_header_is_listed():
    names = [
        name or operator + "." * bool(overload) + overload
        for text in LIST.findall(HEADER.read_text(encoding="utf-8"))
        for operator, overload, name in OPERATOR.findall(text)
    ]
    assert len(names) > 120
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert [name for name in names if not has(f"aten::{name}", "AutocastXLA")] == []


@fails_on_stock
def test_ir():
    x, q = data(2, 3).to(DEVICE), wide(2, 3).to(DEVICE)
    torch_xla.sync()
    with torch.autocast("xla"):
        results = x.exp(), x.sum(1), torch.addcmul(q, x, x), torch.mv(q, q[0])
    ir(*results).expect("""\
%0 = bf16[2,3] xla::device_data()
%1 = f32[2,3] xla::cast(%0)
%2 = f32[2,3] aten::exp(%1)
%3 = f32[2] aten::sum(%0)
%4 = s64[] prim::Constant()
%5 = f32[2,3] xla::cast(%0)
%6 = f32[2,3] xla::cast(%0)
%7 = f32[2,3] xla::device_data()
%8 = f32[2,3] aten::addcmul(%7, %6, %5, %4)
%9 = f32[1,3] xla::generic_slice(%7)
%10 = f32[3] aten::view(%9)
%11 = bf16[3] xla::cast(%10)
%12 = bf16[2,3] xla::cast(%7)
%13 = bf16[2] aten::mm(%12, %11)
return %2, %3, %8, %13
""")


@fails_on_stock
def test_gradients_have_the_dtype_of_their_leaves():
    def program(x, function):
        leaf = x.clone().requires_grad_()
        with torch.autocast("xla"):
            result = function(leaf)
        assert result.dtype == f32
        return torch.autograd.grad(result.sum(), leaf)[0]

    for function in (torch.exp, lambda x: x.cumsum(0), lambda x: F.layer_norm(x, (8,)), lambda x: x.norm(dim=0)):
        found = program(data(8).to(DEVICE), function)
        leaf = data(8).requires_grad_()
        expected = torch.autograd.grad(function(leaf.float()).sum(), leaf)[0]
        assert found.dtype == bf16
        torch.testing.assert_close(found.cpu(), expected)


@fails_on_stock
def test_a_long_sum():
    x = torch.full((4096,), 0.1).bfloat16()
    with torch.autocast("xla"):
        found = x.to(DEVICE).cumsum(0)[-1], x.to(DEVICE).sum()
    for f in found:
        torch.testing.assert_close(f.cpu(), x.double().sum().float())


@passes_on_stock
def test_outside_of_autocast_nothing_is_cast():
    x, q = data(8).to(DEVICE), wide(1, 2, 8, 4).to(DEVICE)
    with torch.autocast("xla", enabled=False):
        assert (x.exp().dtype, x.sum().dtype) == (bf16, bf16)
    with torch.autocast("cpu", dtype=bf16):
        assert (x.exp().dtype, F.scaled_dot_product_attention(q, q, q).dtype) == (bf16, f32)
    assert F.scaled_dot_product_attention(q, q, q).dtype == f32
    with torch.autocast("xla"):
        assert x.to(torch.int64).sum().dtype == torch.int64
        assert x.relu().dtype == x.add(1).dtype == bf16


@fails_on_stock
def test_compiled():
    def program(x, q):
        with torch.autocast("xla"):
            return x.exp(), x.sum(), F.scaled_dot_product_attention(q, q, q)

    x, q = data(8), wide(1, 2, 8, 4)
    found = torch.compile(program, backend="openxla")(x.to(DEVICE), q.to(DEVICE))
    assert [t.dtype for t in found] == [f32, f32, bf16]
    torch.testing.assert_close(found[0].cpu(), x.float().exp())
