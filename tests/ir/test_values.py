"""Operators whose values torch_xla gets wrong, or whose arguments it refuses: patches/torch_xla/values."""

import math

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from compared import assert_same, gradient
from expecttest import assert_expected_inline
from ir_text import ir
from marks import ends_the_process_on_stock, fails_on_stock, passes_on_stock
from tensors import DEVICE, bf16, f16, f32

INF = float("inf")


def data(*shape, dtype=f32, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2
    return x.to(dtype)


# ---- wrong values


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16, f16), ids=str)
def test_exponential_units(dtype):
    units = (F.elu, F.celu, lambda x: F.elu(x, 0.3), lambda x: F.celu(x, 0.3), lambda x: F.elu(x * 1, inplace=True))
    assert_same(units, data(4, 8, dtype=dtype), gradients=True)


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16), ids=str)
def test_gradients_of_hardswish_and_logsigmoid(dtype):
    assert_same((F.hardswish, F.logsigmoid), torch.linspace(-12, 12, 62).to(dtype), gradients=True)


@fails_on_stock
@pytest.mark.since("2.8", "one gradient of hardswish at 3 on the CPU, whatever the tensor's size")
@pytest.mark.parametrize("dtype", (f32, bf16, f16), ids=str)
def test_gradients_of_hardswish_where_its_pieces_meet(dtype):
    assert_same([F.hardswish], torch.tensor([-3.0, 3.0]).to(dtype), gradients=True)


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16), ids=str)
def test_norms_of_infinite_order(dtype):
    norms = (
        lambda x: x.norm(INF),
        lambda x: x.norm(-INF, 1),
        lambda x: torch.linalg.vector_norm(x, INF, dim=(0, 1), keepdim=True),
        lambda x: torch.linalg.vector_norm(x, -INF, dim=0, dtype=f32),
    )
    assert_same(norms, data(4, 8, dtype=dtype), gradients=True)


@passes_on_stock
def test_norms_of_finite_order():
    assert_same([lambda x, p=p: x.norm(p, 1) for p in (0, 1, 2, 3)], data(4, 8))


@fails_on_stock
def test_pdist_of_order_0():
    assert_same([lambda x: torch.pdist(x, 0)], data(4, 3).round())


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16, torch.int64, torch.bool), ids=str)
def test_chunk_cat(dtype):
    cats = (
        lambda *t: torch._chunk_cat(t, 0, 2),
        lambda *t: torch._chunk_cat([t[0], t[0]], -1, 3),
        lambda *t: torch._chunk_cat(t, 0, 2, out=torch.empty(2, 21, dtype=dtype, device=t[0].device)),
    )
    assert_same(cats, *(data(*shape).mul(4).to(dtype) for shape in ((3, 4), (4, 2), (5, 3))))


@fails_on_stock
def test_chunk_cat_refuses():
    with pytest.raises(RuntimeError, match="of one dtype"):
        torch._chunk_cat([data(2).to(DEVICE), data(2, dtype=bf16).to(DEVICE)], 0, 2)
    with pytest.raises(RuntimeError, match="at least 1"):
        torch._chunk_cat([data(2).to(DEVICE)], 0, 0)


@fails_on_stock
@pytest.mark.parametrize("dtype", (torch.int64, torch.int32, torch.int8, torch.uint8), ids=str)
def test_shifts(dtype):
    shifts = (
        lambda x: x >> 1,
        lambda x: x >> (x * 0 + 2),
        lambda x: x.clone().__irshift__(1),
        lambda x: x >> 70,
        lambda x: x << 3,
        lambda x: x << 64,
        lambda x: torch.bitwise_right_shift(x, 1),
    )
    x = torch.tensor([-3, -8, -1, 5, 100, -128]) if dtype != torch.uint8 else torch.tensor([3, 250, 128, 1])
    assert_same(shifts, x.to(dtype))


@fails_on_stock
def test_bool_is_shifted_as_an_integer():
    assert_same([lambda x: x << 1, lambda x: x >> 1], torch.tensor([True, False]))


@fails_on_stock
@pytest.mark.parametrize("dtype", (torch.float64, f32, bf16), ids=str)
def test_floor_division_takes_the_rest_off_first(dtype):
    x = torch.tensor([3.0, -3.0, 1.0, 0.0, 6.6, INF, -7.0, 0.5], dtype=dtype)
    divisions = (
        lambda x: x // 0.3,
        lambda x: torch.div(x, torch.full_like(x, -0.1), rounding_mode="floor"),
        lambda x: 1.0 // x,
        lambda x: x // x.flip(0),
        lambda x: x // INF,
    )
    assert_same(divisions, x)
    assert_same([lambda x: x // 0.3, lambda x: x // 2], torch.tensor([3, -3, 7]))


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16, torch.float64, torch.int32), ids=str)
def test_arange_counts_as_torch(dtype):
    if dtype.is_floating_point:
        steps = [(0, 1, 0.1), (0.0, 0.6, 0.2), (1.0, -1.0, -0.1), (0, 2.5), (1.0, 1.0)]
    else:
        steps = [(0.2, 5.9), (0.9, 3.1), (0.2, -5.9, -1.7), (5,), (1, 1, 2)]
    ranges = [lambda x, s=s: torch.arange(*s, dtype=dtype, device=x.device) for s in steps]
    assert_same(ranges, torch.zeros(1))


@fails_on_stock
def test_ranges_of_uint8_pass_0_and_255():
    steps = [(-1, 3), (-3, 0), (0, -8, -4), (5, -300, -4), (-300, 10, 7), (250, 260), (-1.0, 3.0), (3, -1, -1)]
    assert_same([lambda x, s=s: torch.arange(*s, dtype=torch.uint8, device=x.device) for s in steps], torch.zeros(1))


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16, f16, torch.float64), ids=str)
def test_the_first_nan_is_the_largest_and_the_smallest(dtype):
    nan = float("nan")
    x = torch.tensor([[1.0, nan, INF, nan], [3.0, 9.0, 9.0, -1.0], [nan, 0.0, -INF, 2.0]], dtype=dtype)
    positions = [
        lambda x, name=name, dim=dim, keep=keep: getattr(x, name)(dim, keep)
        for name in ("argmax", "argmin")
        for dim in (0, 1, None)
        for keep in (False, True)
    ]
    of_one = [lambda x: x[1].argmax(), lambda x: x[0, 0].argmin(), lambda x: x[1].argmin(keepdim=True)]
    assert_same([*positions, *of_one, lambda x: x[0, 0].argmax(0, keepdim=True)], x)


@ends_the_process_on_stock("2.9", "2.8", "2.7", "2.6")
@pytest.mark.since("2.8", "such a step on the CPU")
@pytest.mark.parametrize("dtype", (torch.int32, torch.int8), ids=str)
def test_arange_of_a_step_that_is_0_as_an_integer(dtype):
    ranges = [lambda x, s=s: torch.arange(*s, dtype=dtype, device=x.device) for s in ((0.2, 2, 0.5), (3, 1, -0.25))]
    assert_same(ranges, torch.zeros(1))


@ends_the_process_on_stock("2.9", "2.8", "2.7", "2.6")
def test_arange_refuses_a_step_that_is_0_as_int64():
    """On the CPU it ends the process."""
    with pytest.raises(RuntimeError, match="step must be nonzero"):
        torch.arange(0.2, 2, 0.5, dtype=torch.int64, device=DEVICE)


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16, f16), ids=str)
def test_signs_of_quotients_that_are_0(dtype):
    x = torch.tensor([-0.0, 0.0, 0.5, -0.5, 5.5], dtype=dtype)
    quotients = (lambda x: x // 5, lambda x: torch.div(x, -7, rounding_mode="floor"), lambda x: x // INF)
    assert_same([lambda x, q=q: 1 / q(x) for q in quotients], x)


@passes_on_stock
@pytest.mark.parametrize("scale", (1.3, 2.1, 2.3, 1.0, 2.0))
def test_nearest_of_as_many_and_of_twice_as_many(scale):
    """torch copies them, whatever the scale is."""
    nearest = lambda x: F.interpolate(x, scale_factor=(1, scale))  # noqa: E731
    assert_same([nearest], torch.arange(6.0).view(1, 1, 2, 3), gradients=True)


@fails_on_stock
def test_gelu_of_float32_far_below_0():
    """Times a tiny number: the CPU's own result for -8 is one of 1e-15."""
    assert_same([lambda x: F.gelu(x) * 1e-9], torch.tensor([-1e30, -1e10, -100.0, -8.0, 0.0, 8.0]))


@passes_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16), ids=str)
def test_gelu_far_below_0(dtype):
    assert_same([F.gelu], torch.tensor([-6e4, -100.0, -8.0, 0.0, 8.0], dtype=dtype))


@fails_on_stock
def test_the_largest_of_a_bag_of_negative_numbers():
    ids, offsets = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2, 2])
    bags = (
        lambda w: F.embedding_bag(ids.to(w.device), w, offsets.to(w.device), mode="max"),
        lambda w: F.embedding_bag(ids.view(2, 3).to(w.device), w, mode="max"),
    )
    assert_same(bags, -data(7, 4).abs(), gradients=True)


@pytest.mark.fails_on_stock("2.9", "2.8", "2.7")
def test_cummax_gives_the_last_of_equal_elements():
    x = torch.tensor([[1, 1, 3, 2, 3], [0, 1, 1, 5, 1]])
    both = [lambda x, dim=dim: torch.stack(x.cummax(dim)) for dim in (0, 1)]
    assert_same(both, x)
    assert_same([lambda x, dim=dim: x.float().cummax(dim).indices for dim in (0, 1)], x)


@fails_on_stock
def test_integers():
    pools = (lambda x: F.avg_pool2d(x, 3), lambda x: F.avg_pool3d(x, 3))
    assert_same(pools, data(2, 3, 8, 8).mul(9).long())
    backward = torch.ops.aten.native_dropout_backward
    assert_same([lambda x: backward(x, x > 0, 1.25)], data(4, 8).mul(9).int())
    assert_same((torch.erfc, torch.erfinv), torch.tensor([-1, 0, 1]))


@fails_on_stock
def test_no_integer_is_infinite():
    assert_same([torch.isneginf], torch.tensor([0, 1, 127], dtype=torch.uint8))


@fails_on_stock
def test_arcs_of_bools():
    x = torch.tensor([True, False, True])
    assert_same([lambda x: torch.atan2(x, x), lambda x: torch.atan2(x, ~x)], x)


@fails_on_stock
def test_magnitudes_of_complex_numbers():
    x = torch.complex(data(6), data(6, seed=1))
    assert_same([torch.abs], x)
    leaf = x.to(DEVICE).requires_grad_()
    leaf.abs().sum().backward()
    torch.testing.assert_close(leaf.grad.cpu(), x / x.abs())


@fails_on_stock
@pytest.mark.ends_the_process_on_stock("2.9", "2.8", "2.7", "2.6")
def test_permuted_parts_of_complex_numbers():
    z = torch.complex(data(2, 3, 4), data(2, 3, 4, seed=1))
    parts = lambda z: torch.view_as_real(z).transpose(0, 1)  # noqa: E731
    assert_same([parts, lambda z: torch.view_as_complex(parts(z).contiguous()).abs()], z)


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16, torch.int32), ids=str)
def test_normal_distribution_has_its_lower_tail(dtype):
    x = torch.linspace(-9, 4, 40).to(dtype)
    exact = torch.erfc(x.double() * -(0.5**0.5)) / 2
    wanted = dtype if dtype.is_floating_point else f32
    found = torch.special.ndtr(x.to(DEVICE)).cpu()
    assert found.dtype == wanted
    torch.testing.assert_close(found, exact.to(wanted), rtol=1e-2 if dtype == bf16 else 3e-5, atol=0)


# ---- writes to windows


def fill_one(v):
    v[1, 1] = 9


WRITES = {  # windows of x, f32[8, 12], and what is written to them
    "with gaps": (lambda x: x.unfold(1, 2, 3), lambda v: v.mul_(2)),
    "side by side": (lambda x: x.unfold(0, 3, 3), lambda v: v.add_(1)),
    "overlapping": (lambda x: x.unfold(0, 3, 1), lambda v: v.fill_(7)),
    "one element of several windows": (lambda x: x[0].unfold(0, 3, 1), fill_one),
    "one window of several": (lambda x: x.unfold(1, 4, 2), lambda v: v[:, 3].zero_()),
    "of a transposed slice": (lambda x: x.t()[2:].unfold(0, 3, 2)[1:], lambda v: v[..., 0].fill_(5)),
    "windows of windows": (lambda x: x.unfold(0, 2, 3).unfold(1, 2, 5), lambda v: v.neg_()),
}


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16, torch.int64), ids=str)
@pytest.mark.parametrize(("windows", "write"), WRITES.values(), ids=WRITES.keys())
def test_what_is_written_to_windows_is_in_the_tensor(windows, write, dtype):
    """What is between the windows stays; what they share is written, not added up. Read from both."""

    def tensor_and_windows(x):
        x = x.clone()
        view = windows(x)
        write(view)
        return torch.cat([x.flatten(), view.flatten()])

    x = (data(8, 12) * 9).to(dtype)
    assert_same([tensor_and_windows], x)


@fails_on_stock
def test_a_write_to_windows_leaves_nan():
    def written(x):
        x = x.clone()
        x.unfold(0, 2, 1)[2].fill_(1)
        return x

    assert_same([written], torch.full((5,), float("nan")))


@fails_on_stock
def test_gradient_of_a_write_to_windows():
    def written(x):
        y = x * 1
        y.unfold(0, 2, 3).mul_(2)
        return y

    assert_same([written], data(8), gradients=True)


@passes_on_stock
def test_windows_are_a_view_of_the_tensor():
    x = torch.arange(6.0).to(DEVICE)
    view = x.unfold(0, 2, 2)
    x.add_(1)
    assert view.cpu().tolist() == [[1, 2], [3, 4], [5, 6]]
    assert (view.shape, view.stride()) == ((3, 2), (2, 1))


@fails_on_stock
@pytest.mark.parametrize(
    "strided", [((2, 2), (3, 1), 1), ((2, 3), (5, 1), 4), ((3, 1, 1), (2, 1, 4), 0), ((3, 2), (1, 4), 2)], ids=str
)
def test_what_is_written_to_elements_apart_is_written_to_them(strided):
    def written(x):
        x = x.clone()
        x.as_strided(*strided).copy_(-torch.arange(1.0, 7.0, device=x.device)[: math.prod(strided[0])].view(strided[0]))
        return x

    assert_same([written, lambda x: x.as_strided(*strided)], data(3, 4))


@passes_on_stock
def test_windows_of_the_parts_of_complex_numbers():
    x = torch.zeros(8, dtype=torch.complex64).to(DEVICE)
    torch.view_as_real(x).unfold(0, 2, 3).fill_(3)
    assert torch.view_as_real(x).cpu()[:, 0].tolist() == [3, 3, 0, 3, 3, 0, 3, 3]


@pytest.mark.parametrize(
    "strided",
    [
        pytest.param(((2,), (2,), 1), marks=passes_on_stock, id="apart"),
        pytest.param(((2,), (1,), 1), marks=fails_on_stock, id="one after the other"),
    ],
)
def test_as_strided_scatter_of_another_dtype(strided):
    assert_same([lambda x, y: torch.as_strided_scatter(x, y, *strided)], data(4, dtype=bf16), data(2, seed=1))


# ---- interpolation

IMAGE = data(2, 3, 5, 7)


def interpolations(mode):
    return [lambda x, f=f: F.interpolate(x, scale_factor=f, mode=mode) for f in (1.3, 0.7, (2.0, 1.7))]


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16), ids=str)
@pytest.mark.parametrize("mode", ("nearest", "bilinear"))
def test_interpolation_by_a_scale(mode, dtype):
    assert_same(interpolations(mode), IMAGE.to(dtype), gradients=True)


@fails_on_stock
def test_interpolation_of_bytes():
    """torch's weights of bytes have 16 bits, so that some results are another byte, next to it."""
    image = IMAGE.mul(20).abs().to(torch.uint8)
    assert_same(interpolations("nearest"), image)
    assert_same([lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")], image)
    for function in interpolations("bilinear"):
        found, expected = function(image.to(DEVICE)).cpu().int(), function(image).int()
        assert (found - expected).abs().max() <= 1


def test_interpolation_by_sizes():
    sizes = [lambda x, s=s: F.interpolate(x, size=s, mode="bilinear") for s in ((9, 4), (10, 14), (3, 20))]
    aligned = [lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear", align_corners=True)]
    assert_same([*sizes, *aligned, lambda x: F.interpolate(x, size=(9, 4))], IMAGE)


@passes_on_stock
def test_ir_of_interpolation_by_sizes_is_stocks():
    x = IMAGE.to(DEVICE)
    found = [F.interpolate(x, size=(9, 4)), F.interpolate(x, scale_factor=2)]
    ir(*found, F.interpolate(x, size=(10, 14), mode="bilinear")).expect("""\
%0 = f32[2,3,5,7] xla::device_data()
%1 = f32[2,3,9,4] aten::upsample_nearest2d(%0)
%2 = f32[2,3,10,14] aten::upsample_nearest2d(%0)
%3 = f32[2,3,10,14] aten::upsample_bilinear2d(%0)
return %1, %2, %3
""")


# ---- what ends the process on stock


BY_INDEX = {
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: torch.zeros_like(x).index_add(0, i, x[: len(i)]),
    "index_add_": lambda x, i: torch.zeros_like(x).index_add_(0, i, x[: len(i)]),
    "index_copy": lambda x, i: torch.zeros_like(x).index_copy(0, i, x[: len(i)]),
    "index_fill": lambda x, i: x.index_fill(0, i, 5),
    "index_fill of a tensor": lambda x, i: x.index_fill(0, i, torch.full((), 5.0, device=x.device)),
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding's gradient": lambda x, i: torch.ops.aten.embedding_dense_backward(x[: len(i)], i, 3, -1, False),
}
INDICES = {
    "sort": lambda x: x[:, 0].sort(descending=True)[1],
    "stable sort": lambda x: torch.sort(x[:, 0], stable=True, descending=True)[1],
    "topk": lambda x: x[:, 0].topk(2)[1],
    "max": lambda x: x.max(0)[1],
}


@ends_the_process_on_stock("2.9", "2.8", "2.7", "2.6")
@pytest.mark.parametrize("indices", INDICES)
@pytest.mark.parametrize("operator", BY_INDEX)
def test_indices_that_are_one_output_of_several(operator, indices):
    """torch_xla asks the node of sort, topk or max for its rank."""
    x = torch.tensor([[3.0, 1.0, 2.0], [1.0, 5.0, 0.0], [2.0, 0.0, 7.0]])
    on_xla = x.to(DEVICE)
    found = BY_INDEX[operator](on_xla, INDICES[indices](on_xla))
    assert torch.equal(found.cpu(), BY_INDEX[operator](x, INDICES[indices](x)))


@ends_the_process_on_stock("2.9")
def test_roll_of_an_empty_tensor():
    assert_same([lambda x: x.roll(1, 0)], data(0, 4))
    assert_same([lambda x: x.roll((1, 2), (0, 1))], data(4, 0))


@ends_the_process_on_stock("2.9")
@pytest.mark.parametrize("reduction", ("mean", "sum", "none"))
def test_nll_loss_of_an_empty_batch_and_of_one_row(reduction):
    def loss(x):
        target = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
        return F.nll_loss(x, target, reduction=reduction)

    assert_same([loss], data(0, 4), gradients=True)
    assert_same([loss], data(4), gradients=True)


# ---- arguments that stock takes, and torch refuses


@fails_on_stock
def test_targets_that_are_no_integers_are_refused():
    scores, classes = torch.rand(4, 5).to(DEVICE), torch.arange(4.0).to(DEVICE)
    for loss in (F.cross_entropy, F.nll_loss):
        with pytest.raises(RuntimeError, match="expected classes of int64 as targets, but found Float"):
            loss(scores, classes)
        assert torch.equal(loss(scores, classes.int()), loss(scores, classes.long()))


@fails_on_stock
@pytest.mark.parametrize("sizes", [(3, 5), (4, 4)], ids=str)
def test_an_index_that_is_too_large_is_refused(sizes):
    """Too large for self, or for what is written there."""
    self, src = torch.zeros(3, 4).to(DEVICE), torch.ones(3, 5).to(DEVICE)
    index = torch.zeros(sizes, dtype=torch.int64).to(DEVICE)
    with pytest.raises(RuntimeError, match="to be no larger than self"):
        self.scatter(0, index, src)
    with pytest.raises(RuntimeError, match="to be no larger than self"):
        self.scatter_add(0, index, src)


NOT_OF_THE_DTYPE = {
    "float << number": lambda: data(3).to(DEVICE) << 2,
    "integer << float": lambda: torch.arange(3, device=DEVICE) << 2.5,
    "float << float": lambda: data(3).to(DEVICE) << data(3).to(DEVICE),
    "average of bool": lambda: F.avg_pool2d(torch.ones(1, 4, 4, device=DEVICE).bool(), 2),
}
"""The compiler ends the process with some of these."""


@fails_on_stock
@pytest.mark.parametrize("call", NOT_OF_THE_DTYPE.values(), ids=NOT_OF_THE_DTYPE.keys())
def test_dtypes_that_no_kernel_has_are_refused_at_the_call(call):
    with pytest.raises(NotImplementedError):
        call()


NOT_OF_COMPLEX_NUMBERS = {
    "softmax": lambda z: z.softmax(-1),
    "log_softmax": lambda z: z.log_softmax(-1),
    "cross_entropy": lambda z: F.cross_entropy(z, torch.zeros(2, dtype=torch.int64, device=z.device)),
    "isneginf": torch.isneginf,
    "remainder of a number": lambda z: z % 2,
    "remainder of a tensor": lambda z: z % z,
    "remainder by a complex tensor": lambda z: z.real % z,
    "max_pool1d": lambda z: F.max_pool1d(z[None], 2),
    "max_pool2d": lambda z: F.max_pool2d(z[None], (1, 2)),
    "max_pool3d": lambda z: F.max_pool3d(z[None, None], (1, 1, 2)),
    "adaptive_max_pool2d": lambda z: F.adaptive_max_pool2d(z[None], 1),
}


@pytest.mark.since("2.6", "the refusals of a pool")
@ends_the_process_on_stock("2.9", "2.8", "2.7", "2.6")
@fails_on_stock
@pytest.mark.parametrize("call", NOT_OF_COMPLEX_NUMBERS.values(), ids=NOT_OF_COMPLEX_NUMBERS.keys())
def test_complex_numbers_are_refused_as_on_the_cpu(call):
    z = torch.complex(data(2, 4), data(2, 4, seed=1))
    with pytest.raises(RuntimeError):
        call(z)
    with pytest.raises(NotImplementedError, match="as on the CPU"):
        call(z.to(DEVICE))


@ends_the_process_on_stock("2.9", "2.8", "2.7", "2.6")
@fails_on_stock
def test_argmax_of_complex_numbers_is_refused():
    with pytest.raises(NotImplementedError, match="argmax"):
        torch.view_as_complex(data(3, 2).to(DEVICE)).argmax()


@fails_on_stock
def test_glu_of_an_odd_size_is_refused():
    with pytest.raises(RuntimeError, match="expected an even size to halve"):
        F.glu(torch.ones(2, 3).to(DEVICE))


FILLED = {
    "index_fill": lambda x, i: x.index_fill(1, i, 5),
    "of a tensor": lambda x, i: x.index_fill(-1, i, torch.full((), 5.0, device=x.device)),
    "in place": lambda x, i: x.clone().index_fill_(1, i, 5),
}


@fails_on_stock
@pytest.mark.parametrize("fill", FILLED.values(), ids=FILLED.keys())
def test_index_fill_counts_from_the_end(fill):
    assert_same([fill], data(2, 4), torch.tensor([-1, 0, -3]))


BEYOND = {
    "read": lambda x, i: x[i],
    "of another dimension": lambda x, i: x[:, i],
    "after a mask": lambda x, i: x[torch.tensor([True, False, True]).to(x.device), i[:1]],
    "written": lambda x, i: x.clone().index_put_((i,), torch.ones((), device=x.device)),
    "of int32": lambda x, i: x[i.int()],
}


@fails_on_stock
@pytest.mark.parametrize("call", BEYOND.values(), ids=BEYOND.keys())
@pytest.mark.parametrize("index", [7, -4])
def test_indices_of_the_cpu_beyond_what_they_index_are_refused(call, index):
    for device in ("cpu", DEVICE):
        with pytest.raises(IndexError, match=f"index {index} is out of bounds for dimension . with size 3"):
            call(torch.ones(3, 3).to(device), torch.tensor([index, 1]))


@passes_on_stock
def test_indices_of_the_cpu():
    x, index = data(3, 3), torch.tensor([-3, 2])
    for read in (
        lambda x: x[index],
        lambda x: x[None, index],
        lambda x: x[..., index],
        lambda x: x[index.new_empty(0)],
    ):
        assert torch.equal(read(x.to(DEVICE)).cpu(), read(x))


# ---- arguments that stock refuses


@fails_on_stock
def test_masked_scatter_takes_masks_and_sources_of_other_shapes():
    mask = torch.tensor([[False, True, True], [True, False, True]])
    scatters = (
        lambda x, mask: x[0].masked_scatter(mask, x),
        lambda x, mask: x[:1].masked_scatter(mask, x),
        lambda x, mask: x[0].masked_scatter(mask[0], x),
        lambda x, mask: x.clone().masked_scatter_(mask[1], x.flip(0)),
    )
    assert_same(scatters, data(2, 3), mask)


@ends_the_process_on_stock("2.6")
@fails_on_stock
@pytest.mark.parametrize("shapes", (((3,), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 1, 3))), ids=str)
def test_clamp_by_a_tensor_of_another_shape(shapes):
    assert_same((torch.clamp_min, torch.clamp_max), data(*shapes[0]), data(*shapes[1], seed=1))


@ends_the_process_on_stock("2.6")
@fails_on_stock
def test_replication_padding_by_negative_numbers():
    paddings = ((-1, 2, 0, 0), (2, -1, 1, 0), (-5, 6, 0, 0), (1, -1, -2, 3))
    pads = [lambda x, p=p: F.pad(x, p, mode="replicate") for p in paddings]
    assert_same(pads, data(2, 3, 4, 5), gradients=True)
    assert_same(pads, data(2, 3, 4, 5).long())


@fails_on_stock
def test_sections_in_a_tensor():
    for sections in (torch.tensor([1, 3]), torch.tensor(2)):
        assert_same([lambda x, s: torch.cat(torch.tensor_split(x, s)[1:])], data(4, 3), sections)


@fails_on_stock
def test_matrices():
    batch = data(2, 3, 3) + 4 * torch.eye(3)
    assert_same([torch.logdet, lambda x: torch.linalg.slogdet(x)[1]], batch, gradients=True)
    of_one = (torch.linalg.svdvals, torch.linalg.pinv, lambda x: torch.linalg.norm(x, "nuc", (1, 2)))
    assert_same([*of_one, lambda x: torch.linalg.inv_ex(x).info], batch)
    assert_same([torch.logdet], data(0, 0))


@fails_on_stock
def test_cumulative_product_of_nothing():
    assert_same([lambda x: x.cumprod(0)], data(0))


@fails_on_stock
def test_cumulative_sums_of_nothing():
    assert_same([lambda x: x.cumsum(0), lambda x: x.cumsum(1)], data(5, 0))
    assert_same([lambda x: x.cumsum(0)], torch.zeros(0, dtype=torch.bool))


@fails_on_stock
def test_no_copies():
    repeats = (lambda x: x.repeat(0, 2, 3), lambda x: x.repeat(2, 0), lambda x: x.tile(0))
    assert_same(repeats, data(3, 4), gradients=True)


@fails_on_stock
def test_layer_norm_of_nothing_has_gradients():
    cpu = [data(0, 4), data(4), data(4, seed=1)]
    gradients = []
    for device in ("cpu", DEVICE):
        leaves = [t.to(device).requires_grad_() for t in cpu]
        result = F.layer_norm(leaves[0], (4,), *leaves[1:])
        gradients.append([t.cpu() for t in torch.autograd.grad(result, leaves, torch.ones_like(result))])
    assert all(map(torch.equal, *gradients))


@fails_on_stock
def test_distances_between_batches():
    x, y = data(4, 5), data(2, 3, 5, seed=1)
    assert_same([torch.cdist, lambda x, y: torch.cdist(y, x), lambda x, y: torch.cdist(x, y[:0])], x, y)
    assert_same([lambda x: torch.cdist(x, y.to(x.device))], x, gradients=True)


@fails_on_stock
def test_gradient_of_a_selected_number():
    assert_same([lambda x: x.masked_select(x < INF)], data(), gradients=True)


HAVE_NO_KERNEL = {  # and what the message says
    "chalf": (lambda x: x.chalf(), "aten::chalf: expected complex64"),
    "complex": (lambda x: torch.complex(x.half(), x.half()), "aten::complex: expected complex64"),
    "to_sparse": (lambda x: x.to_sparse(), "aten::_to_sparse: expected an operator of dense tensors"),
    "to_sparse_csr": (lambda x: x.to_sparse_csr(), "aten::_to_sparse_csr: expected an operator of dense tensors"),
    "embedding": (
        lambda x: F.embedding(x.new_zeros(2, dtype=torch.long), x.requires_grad_(), sparse=True).sum().backward(),
        "aten::embedding_sparse_backward: expected an operator of dense tensors",
    ),
}


@fails_on_stock
@pytest.mark.parametrize(("function", "message"), HAVE_NO_KERNEL.values(), ids=HAVE_NO_KERNEL.keys())
def test_what_xla_does_not_have_is_refused_at_the_call(function, message):
    x = data(3, 4).to(DEVICE)
    pending = x + 1
    with pytest.raises(NotImplementedError, match=message):
        function(x)
    assert torch.equal(pending.cpu(), data(3, 4) + 1)


# ---- computed in float32 and rounded once

X = data(32, 64)


def exactness(functions, dtype, grad=False):
    """The names of functions whose mean error is more than 1.5 times that of torch's CPU kernels."""

    def run(function, x, device):
        return gradient(function, x, device) if grad else function(x.to(device))

    names, x = list(functions), X.to(dtype)
    found = torch_xla._XLAC._xla_get_cpu_tensors([run(functions[name], x, DEVICE) for name in names])
    worse = []
    for name, f in zip(names, found, strict=True):
        assert f.dtype == dtype
        exact, cpu = run(functions[name], x.double(), "cpu"), run(functions[name], x, "cpu")
        errors = [float((t.double() - exact).abs().sum() / exact.abs().sum()) for t in (f, cpu)]
        if errors[0] > 1.5 * errors[1] + torch.finfo(dtype).eps / 40:
            worse.append((name, *errors))
    return worse


STEPS = {
    "lerp": lambda x: x.lerp(x.flip(0), 0.3),
    "lerp by a tensor": lambda x: x.lerp(x.flip(0), x.flip(1)),
    "floor": lambda x: torch.div(x * 8, x.flip(0), rounding_mode="floor"),
    "floor_divide": lambda x: torch.floor_divide(x * 8, x.flip(0)),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(0)),
    "softplus": lambda x: F.softplus(x, beta=3),
    "cumsum": lambda x: x.cumsum(1),
    "cumsum to the dtype": lambda x: x.float().cumsum(0, dtype=x.dtype),
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "group_norm": lambda x: F.group_norm(x, 8),
    "layer_norm": lambda x: F.layer_norm(x, (64,), x[0], x[1]),
    "log_softmax": lambda x: x.log_softmax(1),
}
OF_FLOAT16 = {
    "addcdiv": lambda x: x.addcdiv(x.flip(0), x.flip(1), value=0.3),
    "addcmul": lambda x: x.addcmul(x.flip(0), x.flip(1), value=0.3),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "conv": lambda x: F.conv1d(x.view(4, 8, 64), x.view(8, 8, 32)[..., :5]),
}


@fails_on_stock
@pytest.mark.parametrize(
    ("dtype", "functions"), ((bf16, STEPS), (f16, {**STEPS, **OF_FLOAT16})), ids=("bfloat16", "float16")
)
def test_steps(dtype, functions):
    assert exactness(functions, dtype) == []


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16), ids=str)
def test_gradients_of_steps(dtype):
    names = ("cumsum", "gelu", "gelu by tanh", "group_norm", "layer_norm", "log_softmax")
    functions = {name: STEPS[name] for name in names} | ({"conv": OF_FLOAT16["conv"]} if dtype == f16 else {})
    assert exactness(functions, dtype, grad=True) == []


@fails_on_stock
def test_the_tails_of_gelu():
    """Each element by itself: a mean of errors does not see the small ones."""
    x = torch.linspace(-6, 0, 500).to(bf16)
    for approximate in ("none", "tanh"):
        found, cpu = (F.gelu(x.to(device), approximate=approximate).cpu() for device in (DEVICE, "cpu"))
        torch.testing.assert_close(found, cpu, rtol=2**-7, atol=2e-6)


SPECIAL = {"numbers": (), "inf": (INF,), "both": (INF, -INF), "-inf, nan": (-INF, float("nan")), "nan": (float("nan"),)}


@fails_on_stock
@pytest.mark.parametrize("special", SPECIAL.values(), ids=SPECIAL)
@pytest.mark.parametrize(("shape", "dim"), (((300,), 0), ((3, 65), 1), ((129, 2), 0), ((2, 128, 3), -2)), ids=str)
def test_cumulative_sums_for_a_tpu(tpu, shape, dim, special):
    x = data(*shape, dtype=bf16).fill_(1) if special == (INF,) else data(*shape, dtype=bf16)
    for i, number in enumerate(special):
        x.movedim(dim, 0)[(17, 64)[i]] = number
    found, exact = x.to(DEVICE).cumsum(dim).cpu(), x.double().cumsum(dim)
    assert found.dtype == bf16
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(
        gradient(lambda x: x.cumsum(dim), x, DEVICE).cpu(), gradient(lambda x: x.cumsum(dim), x, "cpu")
    )


@fails_on_stock
def test_ir_of_cumulative_sums(tpu):
    long, short = (data(2, n, dtype=bf16).to(DEVICE) for n in (128, 64))
    assert "dot" in ir(long.cumsum(1)) and "aten::cumsum" not in ir(short.cumsum(1)).replace(
        "f32[2,64] aten::cumsum", ""
    )
    tpu(False)
    assert "dot" not in ir(long.cumsum(1))


@pytest.mark.default_pin
@fails_on_stock
def test_layer_norm_of_rows_that_fill_no_tiles(tpu):
    """For a TPU they are one dimension: each row would be padded."""
    x, weight, bias = (data(*shape, dtype=bf16).to(DEVICE).requires_grad_() for shape in ((2, 3, 7, 4), (4,), (4,)))
    y = F.layer_norm(x, (4,), weight, bias)
    gradients = torch.autograd.grad(y, (x, weight, bias), torch.ones_like(y))
    assert y.shape == gradients[0].shape == x.shape and "f32[2,21,4]" in ir(y) and "f32[2,3,7,4]" not in ir(y)
    assert "f32[2,3,7,4]" not in ir(*gradients)
    tpu(False)
    again = F.layer_norm(x, (4,), weight, bias)
    expected = torch.autograd.grad(again, (x, weight, bias), torch.ones_like(again))
    for found, other in zip((y, *gradients), (again, *expected), strict=True):
        torch.testing.assert_close(found.cpu(), other.cpu())


@pytest.mark.default_pin
@fails_on_stock
@pytest.mark.parametrize("form", ["tiles", "permuted", "two dimensions"])
def test_layer_norm_of_other_rows(tpu, form):
    x = data(2, 3, 8 if form == "tiles" else 7, 4, dtype=bf16).to(DEVICE)
    if form == "permuted":  # as after a convolution
        x = x.permute(0, 3, 1, 2).clone().permute(0, 2, 3, 1)
    found = ir(F.layer_norm(x, x.shape[2:] if form == "two dimensions" else (4,)))
    tpu(False)
    assert found == ir(F.layer_norm(x, x.shape[2:] if form == "two dimensions" else (4,)))


# XLA's own gradient of a layer_norm: see norm_gradient.cpp
OWN = "aten::native_batch_norm_backward"


def gradients_of_layer_norm(*shape, dtype=bf16, norm=F.layer_norm):
    """Of the input, the weight and the bias."""
    x, grad = (data(*shape, dtype=dtype, seed=seed).to(DEVICE) for seed in (0, 1))
    weight, bias = (data(shape[-1], dtype=dtype, seed=seed).to(DEVICE) for seed in (2, 3))
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    return torch.autograd.grad(norm(x, shape[-1:], weight, bias), leaves, grad)


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16), ids=str)
@pytest.mark.parametrize("shape", ((40, 64), (2, 16, 64), (2, 3, 7, 64), (3, 8, 1)), ids=str)
def test_gradient_of_layer_norm_for_a_tpu(tpu, shape, dtype):
    """It is a formula of two means, and as exact."""
    found = gradients_of_layer_norm(*shape, dtype=dtype)
    assert OWN not in ir(*found)
    x, weight, bias, grad = (
        data(*size, dtype=dtype, seed=seed).double().requires_grad_()
        for seed, size in ((0, shape), (2, shape[-1:]), (3, shape[-1:]), (1, shape))
    )
    exact = torch.autograd.grad(F.layer_norm(x, shape[-1:], weight, bias), (x, weight, bias), grad)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.cpu().double(), other, rtol=2 * torch.finfo(dtype).eps, atol=2e-3)


@fails_on_stock
def test_gradient_of_layer_norm_of_what_was_permuted_for_a_tpu(tpu):
    """After a convolution, as in ConvNeXt, it is XLA's own: the formula takes 1.03 of its cycles."""
    found = gradients_of_layer_norm(2, 4, 4, 8, norm=lambda x, *more: F.layer_norm(x.permute(0, 2, 1, 3), *more))
    assert OWN in ir(*found)
    tpu(False)
    expected = gradients_of_layer_norm(2, 4, 4, 8, norm=lambda x, *more: F.layer_norm(x.permute(0, 2, 1, 3), *more))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.cpu(), other.cpu())


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16), ids=str)
@pytest.mark.parametrize("shape", ((2, 8, 4, 4), (3, 8)), ids=str)
def test_gradient_of_group_norm_for_a_tpu(tpu, shape, dtype):
    x, grad, weight, bias = (
        data(*size, dtype=dtype, seed=seed) for seed, size in enumerate((shape, shape, (8,), (8,)))
    )

    def gradients(device, wide):
        leaves = [t.to(wide).to(device).requires_grad_() for t in (x, weight, bias)]
        return torch.autograd.grad(F.group_norm(leaves[0], 2, *leaves[1:]), leaves, grad.to(wide).to(device))

    found = gradients(DEVICE, dtype)
    assert OWN not in ir(*found)
    for one, other in zip(found, gradients("cpu", torch.float64), strict=True):
        torch.testing.assert_close(one.cpu().double(), other, rtol=2 * torch.finfo(dtype).eps, atol=2e-3)


@fails_on_stock
@pytest.mark.parametrize("number", (0.0, 3.0, INF, math.nan, 1e30), ids=str)
def test_gradient_of_layer_norm_of_special_rows_for_a_tpu(tpu, number):
    weight = data(8, dtype=bf16, seed=2).to(DEVICE)

    def gradient_of_row():
        x = data(3, 8, dtype=bf16)
        x[1] = number
        x = x.to(DEVICE).requires_grad_()
        (grad,) = torch.autograd.grad(F.layer_norm(x, (8,), weight), x, data(3, 8, dtype=bf16, seed=1).to(DEVICE))
        return grad

    found = gradient_of_row()
    assert OWN not in ir(found)
    tpu(False)
    torch.testing.assert_close(found.cpu(), gradient_of_row().cpu(), equal_nan=True)


@fails_on_stock
def test_second_gradient_of_layer_norm_for_a_tpu(tpu):
    weight = data(8, dtype=bf16, seed=2).to(DEVICE)

    def second():
        x = data(4, 8, dtype=bf16).to(DEVICE).requires_grad_()
        (grad,) = torch.autograd.grad(F.layer_norm(x, (8,), weight).square().sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(grad.float().pow(3).sum(), x)
        return grad.detach(), again

    found = second()
    assert OWN not in ir(found[0])
    tpu(False)
    for one, other in zip(found, second(), strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=0.02, atol=0.02)


@pytest.mark.default_pin
@fails_on_stock
@pytest.mark.parametrize("form", ["float32", "many", "computed", "no weight"])
def test_other_norms_for_a_tpu_have_xlas_own_gradient(tpu, form):
    if form in ("computed", "no weight"):
        x, weight = (data(*shape, dtype=bf16).to(DEVICE).requires_grad_() for shape in ((4, 8), (8,)))
        y = F.layer_norm(x, (8,), weight if form == "computed" else None)
        if form == "computed":
            torch_xla.sync()
        found = torch.autograd.grad(y, x, torch.ones_like(y))
    else:
        shape = (4, 1024, 1024) if form == "many" else (2, 4, 8)
        found = gradients_of_layer_norm(*shape, dtype=f32 if form == "float32" else bf16)
    assert OWN in ir(*found)


@fails_on_stock
def test_ir_of_steps():
    x = data(2, 3, dtype=bf16).to(DEVICE)
    ir(F.gelu(x), x.log_softmax(1), x.cumsum(1)).expect("""\
%0 = f32[] prim::Constant()
%1 = bf16[2,3] xla::device_data()
%2 = f32[2,3] xla::cast(%1)
%3 = f32[2,3] aten::mul(%2, %0)
%4 = f32[2,3] aten::gelu(%2)
%5 = f64[] xla::device_data()
%6 = pred[2,3] aten::ge(%2, %5)
%7 = f32[2,3] aten::where(%6, %4, %3)
%8 = bf16[2,3] xla::cast(%7)
%9 = f32[2,3] xla::cast(%1)
%10 = f32[2,3] aten::log_softmax(%9)
%11 = bf16[2,3] xla::cast(%10)
%12 = f32[2,3] xla::cast(%1)
%13 = f32[2,3] aten::cumsum(%12)
%14 = bf16[2,3] xla::cast(%13)
return %8, %11, %14
""")


@fails_on_stock
def test_who_multiplies_in_bfloat16_has_these_steps_in_it():
    x = data(2, 3, dtype=bf16).to(DEVICE)
    wide = ir(F.gelu(x), x.log_softmax(1), F.layer_norm(x, (3,)), F.group_norm(x, 3))
    with torch_xla.experimental.native_mul_context():
        narrow = ir(F.gelu(x), x.log_softmax(1), F.layer_norm(x, (3,)), F.group_norm(x, 3))
    assert "xla::cast" in wide and "xla::cast" not in narrow


def test_running_statistics_of_float16():
    layer = torch.nn.BatchNorm1d(64).half()
    results = []
    for device in (DEVICE, "cpu"):
        layer.reset_running_stats()
        on = layer.to(device)
        on(X.half().to(device))
        results.append((on.running_mean.cpu(), on.running_var.cpu()))
    torch.testing.assert_close(*results)


# ---- what is as in stock


@passes_on_stock
def test_the_rest_is_as_in_stock():
    x, h = data(2, 3).to(DEVICE), data(2, 3, dtype=bf16).to(DEVICE)
    assert_expected_inline(
        ir(
            x.norm(3),
            x.clamp_min(x),
            x.lerp(x, 0.5),
            h.addcmul(h, h),
            x.roll(1, 0),
        ),
        """\
%0 = f32[] prim::Constant()
%1 = f32[] prim::Constant()
%2 = f32[2,3] xla::device_data()
%3 = f32[2,3] aten::abs(%2)
%4 = f32[2,3] aten::pow(%3, %1)
%5 = f32[] aten::sum(%4)
%6 = f32[] aten::pow(%5, %0)
%7 = f32[2,3] aten::clamp_min(%2, %2)
%8 = f32[] xla::device_data()
%9 = f32[2,3] aten::lerp(%2, %2, %8)
%10 = s64[] prim::Constant()
%11 = bf16[2,3] xla::device_data()
%12 = bf16[2,3] aten::addcmul(%11, %11, %11, %10)
%13 = f32[2,3] aten::roll(%2)
return %6, %7, %9, %12, %13
""",
    )


@fails_on_stock
def test_gather_and_scatter_of_numbers_and_of_nothing():
    def ranks(x):
        d = x.device
        i, one, none = (
            torch.tensor(2, device=d),
            torch.tensor([2], device=d),
            torch.empty(0, dtype=torch.int64, device=d),
        )
        number, row = x[1].clone(), x.unsqueeze(0)
        return (
            x.gather(0, i),
            x.gather(-1, none),
            row.gather(1, none),
            number.gather(0, one * 0),
            x.scatter(0, i, number),
            x.scatter(0, one, number),
            x.scatter(0, i, 7.0),
            row.scatter(0, none, 7.0),
            row.scatter(0, none, row.detach()),
            x.scatter_add(0, i, number),
            x.scatter_reduce(0, i, number, "amax"),
            number.scatter(0, i * 0, 3.0),
            number.scatter_add(0, one * 0, one.float()),
        )

    for f in range(13):
        assert_same([lambda x, f=f: ranks(x)[f] * 1], data(5), gradients=True)


def written_diagonal(x, *which):
    y = x * 1
    y.diagonal(*which).mul_(-3)
    return y


@fails_on_stock
@pytest.mark.parametrize("shape", ((2, 3, 4), (3, 2, 2, 5)), ids=str)
def test_diagonals_of_the_first_dimensions(shape):
    """Those are the default; torch_xla takes them for the last ones."""
    for which in ((), (1,), (-1, 0, 1), (0, -len(shape), 1), (1, 1, 0), (0, 0, 2), (-1, -2, -1)):
        assert_same([lambda x, w=which: x.diagonal(*w) * 2], data(*shape), gradients=True)
        assert_same([lambda x, w=which: written_diagonal(x, *w)], data(*shape), gradients=True)
    x = data(*shape)
    assert_same([torch.diagonal_scatter], x, x.diagonal().square())


@fails_on_stock
@pytest.mark.parametrize("shape", ((2, 4), (4, 2), (2, 4, 2)), ids=str)
def test_writing_to_a_diagonal_without_elements(shape):
    for offset in (-5, -4, -2, 2, 4, 5):
        assert_same([lambda x, o=offset: written_diagonal(x, o, -2, -1)], data(*shape))


@passes_on_stock
def test_what_is_on_the_meta_device_has_no_data():
    for copied in (lambda x: x.to(DEVICE), lambda x: torch.ones(2, device=DEVICE).copy_(x)):
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
            copied(torch.ones(2, device="meta"))
    with pytest.raises(NotImplementedError, match="to_empty"):
        torch.nn.Linear(2, 2, device="meta").to(DEVICE)


@fails_on_stock
def test_as_strided_beyond_the_elements_is_refused_at_the_call():
    x = torch.arange(6.0, device=DEVICE)
    for size, stride, offset in (((4, 4), (1, 1), 0), ((3,), (2,), 5), ((2, 2), (1, 1), 7)):
        with pytest.raises(RuntimeError, match="out of bounds"):
            x.as_strided(size, stride, offset)
    with pytest.raises(RuntimeError, match="out of bounds"):
        x.as_strided_scatter(torch.zeros(3, device=DEVICE), (3,), (2,), 5)
    assert_same([lambda x: x.as_strided((2, 3), (1, 2)), lambda x: x.as_strided((0, 9), (9, 9))], torch.arange(6.0))


@fails_on_stock
def test_compiled():
    def program(x):
        return x.norm(INF), F.interpolate(x[None, None], scale_factor=1.3), x.bfloat16().lerp(x.flip(0).bfloat16(), 0.3)

    x = data(4, 6)
    found = torch.compile(program, backend="openxla")(x.to(DEVICE))
    for f, e in zip(found, program(x), strict=True):
        torch.testing.assert_close(f.cpu(), e)
