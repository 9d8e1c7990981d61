"""Operators on XLA whose operands have different float dtypes: patches/torch_xla/mixed-operands.

torch's CPU kernels are the reference: what they promote comes back in the same dtype, what they refuse is
refused at the call, unless torch_xla lowers it truthfully.
"""

import re
from itertools import product

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE, bf16, f16, f32, f64

NAMES = {"bf16": bf16, "f16": f16, "f32": f32, "f64": f64}
INDEX = torch.tensor([[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 1, 0]])
ROWS = torch.tensor([0, 2, 1])
CLASSES = torch.tensor([0, 2, 1, 4])
MASK = torch.tensor([[True, False, True, False, True]] * 4)


def at(constant, tensor):
    return constant.to(tensor.device)


def in_place(name):
    def call(a, *others):
        return getattr(a * 1, name)(*others)

    return call


def foreach(name):
    return lambda a, b: getattr(torch, f"_foreach_{name}")([a, a], [b, b])[0]


def foreach_in_place(name, **numbers):
    def call(a, *others):
        targets = [a * 1, a * 2]
        getattr(torch, f"_foreach_{name}_")(targets, *([t, t] for t in others), **numbers)
        return targets[0]

    return call


def assigned(index):
    def call(a, b):
        a = a * 1
        a[at(index, a) if isinstance(index, torch.Tensor) else index] = b
        return a

    return call


def batch_norm(training):
    def call(x, mean, variance, w, b):
        return F.batch_norm(x, mean * 1, variance.abs() + 1, w, b, training=training)

    return call


S = (4, 5)
NORM = ((3, 4, 5), (4,), (4,), (4,), (4,))
ATTENTION = ((2, 2, 4, 8),) * 3
#: The usual training set: a name, the call and the shapes of its float operands.
OPERATIONS = {
    "add": (torch.add, S, S),
    "add 0-d": (torch.add, S, ()),
    "add_ 0-d": (in_place("add_"), S, ()),
    "sub": (torch.sub, S, S),
    "sub 0-d": (torch.sub, S, ()),
    "mul": (torch.mul, S, S),
    "mul 0-d": (torch.mul, S, ()),
    "mul_": (in_place("mul_"), S, S),
    "div": (torch.div, S, S),
    "pow": (lambda a, b: torch.pow(a.abs() + 1, b), S, S),
    "pow 0-d": (lambda a, b: torch.pow(a.abs() + 1, b), S, ()),
    "atan2": (torch.atan2, S, S),
    "atan2 0-d": (torch.atan2, S, ()),
    "fmod": (torch.fmod, S, S),
    "fmod 0-d": (torch.fmod, S, ()),
    "remainder": (torch.remainder, S, S),
    "remainder 0-d": (torch.remainder, S, ()),
    "xlogy": (lambda a, b: torch.xlogy(a, b.abs() + 1), S, S),
    "maximum": (torch.maximum, S, S),
    "maximum 0-d": (torch.maximum, S, ()),
    "minimum": (torch.minimum, S, S),
    "minimum 0-d": (torch.minimum, S, ()),
    "clamp": (torch.clamp, S, S, S),
    "clamp 0-d": (lambda a, b: torch.clamp(a, min=b), S, ()),
    "clamp_min_": (in_place("clamp_min_"), S, S),
    "where": (lambda a, b: torch.where(at(MASK, a), a, b), S, S),
    "where 0-d": (lambda a, b: torch.where(at(MASK, a), a, b), S, ()),
    "lerp": (torch.lerp, S, S, S),
    "lerp 0-d": (torch.lerp, S, S, ()),
    "addcmul": (torch.addcmul, S, S, S),
    "addcmul 0-d": (torch.addcmul, S, S, ()),
    "addcmul_": (in_place("addcmul_"), S, S, S),
    "addcdiv": (lambda a, b, c: torch.addcdiv(a, b, c.abs() + 1), S, S, S),
    "cat": (lambda a, b: torch.cat([a, b]), S, S),
    "stack": (lambda a, b: torch.stack([a, b]), S, S),
    "copy_": (in_place("copy_"), S, S),
    "x[rows] = y": (assigned(ROWS), S, (3, 5)),
    "x[mask] = 0-d": (assigned(MASK), S, ()),
    "x[1:4] = y": (assigned(slice(1, 4)), S, (3, 5)),
    "index_put": (lambda a, b: a.index_put((at(ROWS, a),), b), S, (3, 5)),
    "index_add": (lambda a, b: a.index_add(0, at(ROWS, a), b), S, (3, 5)),
    "scatter": (lambda a, b: a.scatter(1, at(INDEX, a), b), S, (4, 3)),
    "scatter_add": (lambda a, b: a.scatter_add(1, at(INDEX, a), b), S, (4, 3)),
    "scatter_reduce": (lambda a, b: a.scatter_reduce(1, at(INDEX, a), b, "amax"), S, (4, 3)),
    "masked_fill 0-d": (lambda a, b: a.masked_fill(at(MASK, a), b), S, ()),
    "masked_scatter": (lambda a, b: a.masked_scatter(at(MASK, a), b), S, S),
    "slice_scatter": (lambda a, b: torch.slice_scatter(a, b, 0, 1, 4), S, (3, 5)),
    "mm": (torch.mm, (4, 5), (5, 3)),
    "bmm": (torch.bmm, (2, 4, 5), (2, 5, 3)),
    "mv": (torch.mv, (4, 5), (5,)),
    "dot": (torch.dot, (5,), (5,)),
    "matmul": (torch.matmul, (2, 4, 5), (5, 3)),
    "addmm": (torch.addmm, (4, 3), (4, 5), (5, 3)),
    "baddbmm": (torch.baddbmm, (2, 4, 3), (2, 4, 5), (2, 5, 3)),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), (4, 5), (5, 3)),
    "linear": (F.linear, (4, 5), (3, 5)),
    "linear with bias": (F.linear, (2, 4, 5), (3, 5), (3,)),
    "conv1d": (F.conv1d, (2, 3, 8), (4, 3, 3)),
    "conv2d with bias": (F.conv2d, (2, 3, 6, 6), (4, 3, 3, 3), (4,)),
    "conv_transpose2d": (F.conv_transpose2d, (2, 3, 6, 6), (3, 4, 3, 3), (4,)),
    "batch_norm, training": (batch_norm(True), *NORM),
    "batch_norm, evaluation": (batch_norm(False), *NORM),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (3, 4, 5), (4,), (4,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (5,), w, b), S, (5,), (5,)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (3, 4, 5), (4,), (4,)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (5,), w), S, (5,)),
    "attention": (F.scaled_dot_product_attention, *ATTENTION),
    "attention with mask": (F.scaled_dot_product_attention, *ATTENTION, (4, 4)),
    "cross_entropy": (lambda x, w: F.cross_entropy(x, at(CLASSES, x), weight=w.abs()), S, (5,)),
    "cross_entropy of probabilities": (lambda x, p: F.cross_entropy(x, p.softmax(1)), S, S),
    "nll_loss": (lambda x, w: F.nll_loss(x, at(CLASSES, x), weight=w.abs()), S, (5,)),
    "mse_loss": (F.mse_loss, S, S),
    "l1_loss": (F.l1_loss, S, S),
    "smooth_l1_loss": (F.smooth_l1_loss, S, S),
    "huber_loss": (F.huber_loss, S, S),
    "bce": (lambda x, t: F.binary_cross_entropy(x.sigmoid(), t.sigmoid()), S, S),
    "bce_with_logits": (lambda x, t: F.binary_cross_entropy_with_logits(x, t.sigmoid()), S, S),
    "kl_div": (lambda x, t: F.kl_div(x.log_softmax(1), t.softmax(1), reduction="sum"), S, S),
    "cdist": (torch.cdist, S, S),
    "embedding_bag": (
        lambda w, p: F.embedding_bag(at(INDEX, w), w, per_sample_weights=p, mode="sum"),
        S,
        (4, 3),
    ),
    "prelu": (F.prelu, (2, 5, 3), (5,)),
    "_foreach_add_": (foreach_in_place("add"), S, S),
    "_foreach_mul": (foreach("mul"), S, S),
    "_foreach_maximum": (foreach("maximum"), S, S),
    "_foreach_clamp_max": (foreach("clamp_max"), S, S),
    "_foreach_addcdiv_": (foreach_in_place("addcmul", value=0.5), S, S, S),
    "_foreach_lerp_": (foreach_in_place("lerp", weight=0.25), S, S),
}

#: What stock gets wrong: for these dtypes of the operands it declares what it does not compute, fails when the
#: graph is compiled, refuses what torch promotes or promotes otherwise.
WRONG_ON_STOCK = [
    *product(("add 0-d", "sub 0-d", "pow 0-d", "atan2 0-d", "fmod 0-d"), ((bf16, f32), (f32, f64))),
    *product(("remainder 0-d", "maximum 0-d", "clamp 0-d", "where 0-d"), ((bf16, f32), (f32, f64))),
    *product(("pow", "atan2", "fmod", "remainder", "maximum", "minimum"), ((bf16, f16),)),
    *product(("mse_loss", "smooth_l1_loss"), ((bf16, f16),)),
    ("add_ 0-d", (bf16, f32)),
    pytest.param("lerp 0-d", (bf16, bf16, f32), marks=pytest.mark.since("2.7", "a 0-d weight of lerp in any dtype")),
    ("x[mask] = 0-d", (bf16, f32)),
    ("remainder", (bf16, f32)),
    ("xlogy", (f32, bf16)),
    ("clamp", (bf16, f16, bf16)),
    ("clamp_min_", (f32, bf16)),
    ("where", (bf16, f32)),
    ("addcmul", (bf16, f16, bf16)),
    ("addcdiv", (f16, bf16, bf16)),
    ("smooth_l1_loss", (bf16, f32)),
    *product(("slice_scatter", "scatter", "scatter_add", "scatter_reduce"), ((bf16, f32), (f32, bf16))),
    *product(("masked_scatter", "bce", "cdist", "nll_loss"), ((bf16, f32), (f32, bf16))),
    *product(("_foreach_maximum", "_foreach_clamp_max"), ((bf16, f32), (f32, bf16))),
    *product(("mm", "bmm", "mv", "dot", "matmul", "einsum", "linear", "conv1d"), ((bf16, f32), (f32, f64))),
    ("addmm", (f32, bf16, f32)),
    ("linear with bias", (bf16, f32, bf16)),
    ("conv2d with bias", (bf16, f32, bf16)),
    ("conv_transpose2d", (bf16, f32, f32)),
    ("conv_transpose2d", (bf16, bf16, f32)),
    ("instance_norm", (bf16, f32, f32)),
    ("instance_norm", (f32, bf16, f32)),
    *product(("batch_norm, training", "batch_norm, evaluation"), ((bf16, *[f32] * 4), (f32, *[bf16] * 4))),
]
#: Of a true dtype, but not of the CPU's, which returns the input's: on pins without result-dtypes.
castoff = getattr(torch_xla, "_castoff", None)
OTHER_THAN_CPU = () if castoff and "result-dtypes" in castoff.TOPICS else ("layer_norm", "group_norm")


def operands(name, dtypes, device, grad=False):
    _, *shapes = OPERATIONS[name]
    tensors = []
    for seed, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        tensors.append(numbers.bfloat16().to(dtype).to(device).requires_grad_(grad))
    return tensors


# Some processors have no bfloat16 in oneDNN, and torch's own kernel takes this.
REFUSED_BY_ONEDNN = ("conv_transpose2d", (bf16, bf16, f32))


def outcome(name, dtypes, device):
    """The result of an operation, or the error at its call."""
    try:
        return OPERATIONS[name][0](*operands(name, dtypes, device))
    except (RuntimeError, NotImplementedError) as error:
        return error


def check_truth(tensors):
    """What tensors on XLA declare are the dtypes of their IR and of their HLO, and their graph compiles."""
    for tensor in tensors:
        check_dtype(tensor)
    torch_xla._XLAC._xla_sync_multi(tensors, [], wait=True, sync_xla_data=False)


def check_dtype(tensor):
    text = torch_xla._XLAC._get_xla_tensors_text([tensor])
    (root,) = (line for line in text.splitlines() if re.search(r"\bROOT=0", line))
    assert NAMES[re.search(r" = \(?(\w+)\[", root)[1]] is tensor.dtype, "declared, IR"
    lowered = torch_xla._XLAC._get_xla_tensors_hlo([tensor])
    result = re.search(r"ROOT [^=]+ = \((\w+)\[", lowered[lowered.index("ENTRY") :])[1]
    assert NAMES[result] is tensor.dtype, "declared, HLO"


def check_values(actual, expected, *dtypes):
    """Equal up to a few roundings to their dtype and to the operands', at the scale of the whole."""
    scale = expected.double().abs().max().clamp_min(1).item()
    tolerance = 4 * max(torch.finfo(dtype).eps for dtype in (expected.dtype, *dtypes)) * scale
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=tolerance)


def check(name, *cases):
    """An operation with operands of each case's dtypes; all are computed in one graph."""
    outcomes = [outcome(name, dtypes, DEVICE) for dtypes in cases]
    check_truth([here for here in outcomes if not isinstance(here, Exception)])
    for dtypes, here in zip(cases, outcomes, strict=True):
        cpu = outcome(name, dtypes, "cpu")
        if isinstance(cpu, Exception) or ((name, dtypes) == REFUSED_BY_ONEDNN and isinstance(here, Exception)):
            continue
        assert not isinstance(here, Exception), here
        if name in OTHER_THAN_CPU:
            assert here.dtype is torch.promote_types(*dtypes[:2])
        else:
            assert here.dtype is cpu.dtype
            check_values(here, cpu, *dtypes)
    return outcomes


def name_of(value):
    return value if isinstance(value, str) else "-".join(str(dtype).removeprefix("torch.") for dtype in value)


@fails_on_stock
@pytest.mark.parametrize(("name", "dtypes"), WRONG_ON_STOCK, ids=name_of)
def test_promoted_or_refused_as_on_the_cpu(name, dtypes):
    (here,) = check(name, dtypes)
    if isinstance(outcome(name, dtypes, "cpu"), Exception):
        assert isinstance(here, RuntimeError) and "dtype" in str(here)


@pytest.mark.parametrize("name", OPERATIONS)
def test_sweep(name):
    """One operand of another dtype, in every place, and the gradients of each."""
    places = range(len(OPERATIONS[name]) - 1)
    pairs = product(((bf16, f32), (f32, bf16), (bf16, f16), (f32, f64)), places)
    check(name, *(tuple(other if i == place else usual for i in places) for (usual, other), place in pairs))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in OPERATIONS
        if name not in ("batch_norm, evaluation", "fmod 0-d", "remainder 0-d", "x[mask] = 0-d")
    ],
)
def test_gradients(name):
    """Wherever there is one, it has the leaf's dtype, and its graph holds and compiles to that."""
    function, *shapes = OPERATIONS[name]
    found = []
    for usual, other in ((bf16, f32), (f32, bf16)):
        for place in range(len(shapes)):
            dtypes = [other if i == place else usual for i in range(len(shapes))]
            leaves = operands(name, dtypes, DEVICE, grad=True)
            try:
                result = function(*leaves)
            except RuntimeError:
                continue
            if name == "huber_loss" and len(set(dtypes)) > 1:  # whose backward the CPU refuses, too
                with pytest.raises(RuntimeError, match="Found dtype"):
                    result.sum().backward()
                continue
            grads = torch.autograd.grad(result, leaves, torch.ones_like(result), allow_unused=True)
            for leaf, grad in zip(leaves, grads, strict=True):
                if grad is not None:
                    assert grad.dtype is leaf.dtype
                    found.append(grad)
    check_truth(found)


@fails_on_stock
def test_ir_of_a_promotion():
    a, b = operands("where", (bf16, f32), DEVICE)
    ir(torch.maximum(a, b) + torch.where(a > 0, a, b)).expect("""\
%0 = f32[] prim::Constant()
%1 = f32[4,5] xla::device_data()
%2 = bf16[4,5] xla::device_data()
%3 = f32[4,5] xla::cast(%2)
%4 = s64[] prim::Constant()
%5 = pred[4,5] aten::gt(%2, %4)
%6 = f32[4,5] aten::where(%5, %3, %1)
%7 = f32[4,5] aten::maximum(%2, %1)
%8 = f32[4,5] aten::add(%7, %6, %0)
return %8
""")


@fails_on_stock
def test_ir_of_a_sum_with_a_0d_tensor():
    a, b = operands("add 0-d", (bf16, f32), DEVICE)
    ir(a + b).expect("""\
%0 = bf16[] prim::Constant()
%1 = f32[] xla::device_data()
%2 = bf16[] xla::cast(%1)
%3 = bf16[4,5] xla::device_data()
%4 = bf16[4,5] aten::add(%3, %2, %0)
return %4
""")


@fails_on_stock
def test_ir_of_batch_norm():
    x, mean, variance, w, b = operands("batch_norm, evaluation", (bf16, f32, f32, f32, f32), DEVICE)
    ir(F.batch_norm(x, mean, variance, w, b, training=False)).expect("""\
%0 = f32[4] xla::device_data()
%1 = f32[4] xla::device_data()
%2 = f32[4] xla::device_data()
%3 = f32[4] xla::device_data()
%4 = bf16[3,4,5] xla::device_data()
%5 = f32[3,4,5] xla::cast(%4)
%6 = (f32[3,4,5], f32[4], f32[4], f32[4]) aten::native_batch_norm(%5, %3, %2, %1, %0)
%7 = bf16[3,4,5] xla::cast(%6.0)
return %7
""")
    assert mean.dtype is variance.dtype is f32


@fails_on_stock
def test_errors_say_what_to_do():
    a, b = operands("mm", (bf16, f32), DEVICE)
    with pytest.raises(
        RuntimeError, match=r"aten::mm: expected operands of the same dtype, but got BFloat16 and Float\. Convert"
    ):
        torch.mm(a, b)


WHOLE, HALVES = torch.tensor([1, 2, 3]), torch.tensor([1.5, -2.0, 3.0])


@fails_on_stock
@pytest.mark.parametrize("integer", (torch.int8, torch.int32, torch.int64), ids=str)
@pytest.mark.parametrize(
    "call",
    (
        lambda x, i: torch.addcmul(x, i, i, value=0.5),
        lambda x, i: x.clone().addcmul_(i, i, value=0.5),
        lambda x, i: torch.addcdiv(x, i, x, value=0.5),
        lambda x, i: torch.addcdiv(i, i, x, value=0.5),
        lambda x, i: F.smooth_l1_loss(i, x),
    ),
)
def test_the_number_beside_integers(call, integer):
    """torch_xla rounded it to the integers' dtype: 0.5 was 0."""
    expected = call(HALVES, WHOLE.to(integer))
    result = call(HALVES.to(DEVICE), WHOLE.to(integer).to(DEVICE))
    assert result.dtype is expected.dtype
    torch.testing.assert_close(result.cpu(), expected)


@fails_on_stock
@pytest.mark.parametrize(
    "call",
    (
        lambda i, x: i[None] @ x[:, None],
        lambda i, x: torch.mv(i[None], x),
        torch.dot,
        lambda i, x: torch.bmm(i[None, None], x[None, :, None]),
        lambda i, x: torch.einsum("i,i", i, x),
        lambda i, x: F.linear(i[None], x[None]),
        lambda i, x: F.conv1d(i[None, None], x[None, None]),
        lambda i, x: torch.dot(i.int(), i),
        lambda i, x: F.mse_loss(i, i * 2),
        lambda i, x: torch.lerp(i, i * 2, 0.5),
    ),
)
def test_integers_that_would_round_the_result(call):
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match=r"same dtype|not implemented for|expected scalar type"):
            call(WHOLE.to(device), HALVES.to(device))


@passes_on_stock
@pytest.mark.parametrize("addend", (WHOLE, WHOLE.bool(), HALVES.double()), ids=lambda addend: str(addend.dtype))
def test_the_addend_takes_the_dtype_of_the_product(addend):
    expected = torch.addmv(addend, HALVES.outer(HALVES), HALVES, alpha=0.5, beta=0.25)
    x = HALVES.to(DEVICE)
    result = torch.addmv(addend.to(DEVICE), x.outer(x), x, alpha=0.5, beta=0.25)
    torch.testing.assert_close(result.cpu(), expected)


BY_FALLBACK = (
    torch.hypot,
    torch.logaddexp,
    torch.logaddexp2,
    torch.igamma,
    torch.igammac,
    torch.nextafter,
    torch.bucketize,
)


@passes_on_stock
@pytest.mark.parametrize("integer", (torch.bool, torch.int8, torch.int64), ids=str)
@pytest.mark.parametrize("call", BY_FALLBACK, ids=lambda call: call.__name__)
def test_integers_beside_floats_are_promoted(call, integer):
    """These have kernels for no integers, and those of the CPU promote them."""
    i, x = WHOLE.to(integer), torch.tensor([0.5, 2.0, 3.0])
    torch.testing.assert_close(call(i.to(DEVICE), x.to(DEVICE)).cpu(), call(i, x))


@fails_on_stock
@pytest.mark.parametrize("source", (torch.bool, torch.int32, torch.int64), ids=str)
def test_integers_are_scattered_into_floats(source):
    ones = torch.ones(3, 4)
    src = torch.arange(8).view(2, 4).to(source)
    assert ones.to(DEVICE).slice_scatter(src.to(DEVICE), start=1).tolist() == ones.slice_scatter(src, start=1).tolist()


@passes_on_stock
def test_a_loss_of_integers_and_floats():
    torch.testing.assert_close(F.mse_loss(WHOLE.to(DEVICE), HALVES.to(DEVICE)).cpu(), F.mse_loss(WHOLE, HALVES))


@passes_on_stock
@pytest.mark.parametrize("dtype", (bf16, f32))
@pytest.mark.parametrize("name", ("add", "where", "remainder", "mm", "linear with bias", "batch_norm, training", "bce"))
def test_operands_of_one_dtype(name, dtype):
    check(name, (dtype,) * (len(OPERATIONS[name]) - 1))


@passes_on_stock
def test_numbers_are_no_operands():
    (a,) = operands("add", (bf16, f32), DEVICE)[:1]
    for result in (a + 1.5, torch.where(a > 0, a, 0.5), torch.remainder(a, 0.75), a.clamp(-1.0, 1.0), a**2.0):
        assert result.dtype is bf16
        check_truth([result])


@fails_on_stock
@pytest.mark.parametrize(
    "call",
    (
        lambda x, n: torch.where(x > 0, n, x),
        lambda x, n: torch.where(x > 0, x, n),
        torch.atan2,
        lambda x, n: torch.atan2(n, x),
        lambda x, n: torch.lerp(x, x + 1, n),
        lambda x, n: torch.clamp(x, -n, n),
        lambda x, n: torch.clamp(x, max=n),
        torch.xlogy,
    ),
)
@pytest.mark.parametrize("dtype", (f32, f64), ids=str)
def test_numbers_that_are_tensors_of_the_cpu(call, dtype):
    """As beside tensors of a GPU: pytorch/xla#1749."""
    check_number_of_the_cpu(call, dtype)


@passes_on_stock
@pytest.mark.parametrize("call", (torch.floor_divide, torch.fmax, torch.copysign, torch.heaviside, torch.nextafter))
@pytest.mark.parametrize("dtype", (f32, f64), ids=str)
def test_numbers_that_stock_takes_from_the_cpu(call, dtype):
    check_number_of_the_cpu(call, dtype)


def check_number_of_the_cpu(call, dtype):
    x, number = torch.tensor([-1.5, 0.0, 2.0]), torch.tensor(0.5, dtype=dtype)
    try:
        expected = call(x, number)
    except RuntimeError:  # lerp of two dtypes
        pytest.skip("refused on the CPU, too")
    found = call(x.to(DEVICE), number)
    assert found.dtype is expected.dtype and found.device.type == "xla"
    torch.testing.assert_close(found.cpu(), expected)


@fails_on_stock
def test_gradient_of_a_number_of_the_cpu():
    number = torch.tensor(0.5, requires_grad=True)
    x = torch.tensor([1.0, -1.0, 3.0], device=DEVICE, requires_grad=True)
    torch.where(x > 0, number, x).sum().backward()
    assert number.grad.item() == 2 and x.grad.tolist() == [0, 1, 0]


@fails_on_stock
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int32), ids=str)
def test_xlogy_takes_numbers(dtype):
    x = torch.tensor([1, 2, 0], dtype=dtype)
    for call in (lambda x: torch.xlogy(x, 4), lambda x: torch.xlogy(2.5, x), lambda x: torch.special.xlogy(x[0], 3.0)):
        found, expected = call(x.to(DEVICE)), call(x)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.cpu(), expected)


@passes_on_stock
def test_other_tensors_of_the_cpu_are_refused():
    x = torch.ones(2, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"XLA tensor|same device"):
        torch.where(x > 0, torch.ones(2), x)


@fails_on_stock
def test_a_bound_of_the_cpu_is_not_left_out():
    x, low = torch.ones(2, device=DEVICE), torch.zeros(2)
    with pytest.raises(RuntimeError, match="found at least two devices, xla:0 and cpu!"):
        torch.clamp(x, low.to(DEVICE), low)


@passes_on_stock
def test_products_that_torch_xla_lowers_truthfully_stay():
    """torch refuses a float32 input with a bfloat16 weight; torch_xla gives float32, and says so."""
    x, w = operands("linear", (f32, bf16), DEVICE)
    y = F.linear(x, w)
    check_truth([y])
    check_values(y, F.linear(x.cpu(), w.cpu().float()))


OPTIMIZERS = {
    "SGD": lambda p, foreach: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=foreach),
    "Adam": lambda p, foreach: torch.optim.Adam(p, lr=0.1, amsgrad=True, foreach=foreach),
    "AdamW": lambda p, foreach: torch.optim.AdamW(p, lr=0.1, foreach=foreach),
    "Adagrad": lambda p, foreach: torch.optim.Adagrad(p, lr=0.1, foreach=foreach),
    "RMSprop": lambda p, foreach: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, foreach=foreach),
}


@fails_on_stock  # it has no grad_dtype
@pytest.mark.parametrize("foreach", (False, True))
@pytest.mark.parametrize("wide_state", (False, True))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_with_wide_gradients(name, wide_state, foreach):
    """Two steps of bfloat16 parameters with float32 gradients, and with the state in float32 too."""

    def steps(device):
        p = torch.linspace(-1, 1, 20).bfloat16().reshape(4, 5).to(device).requires_grad_()
        p.grad_dtype = f32
        optimizer = OPTIMIZERS[name]([p], foreach)
        for _ in range(2):
            p.grad = torch.linspace(1, 2, 20).reshape(4, 5).to(device)
            optimizer.step()
            for key, value in optimizer.state[p].items():
                if wide_state and isinstance(value, torch.Tensor) and value.shape == p.shape:
                    optimizer.state[p][key] = value.float()
        return [p.detach(), *(v for v in optimizer.state[p].values() if isinstance(v, torch.Tensor) and v.dim())]

    assert hasattr(torch.Tensor, "grad_dtype")
    try:
        expected = steps("cpu")
    except RuntimeError:
        with pytest.raises(RuntimeError):
            steps(DEVICE)
        return
    for here, cpu in zip(steps(DEVICE), expected, strict=True):
        assert here.dtype is cpu.dtype
        check_truth([here])
        torch.testing.assert_close(here.cpu(), cpu, rtol=4 * torch.finfo(bf16).eps, atol=1e-2)


INT32, INT64 = torch.tensor([2, 0], dtype=torch.int32), torch.tensor([1, 3])
INDICES = {
    "int32, int64": (INT32, INT64),
    "int64, int32": (INT64 // 2, INT32),
    "broadcast": (INT32[:, None], INT64),
    "a mask": (MASK[0, :4], INT32),
    "nothing between": (INT32, slice(None), INT64),
}


@fails_on_stock
@pytest.mark.parametrize("name", INDICES)
def test_indices_of_two_types(name):
    def calls(device):
        indices = tuple(at(i, torch.empty(0, device=device)) if torch.is_tensor(i) else i for i in INDICES[name])
        x = torch.arange(64.0).view(4, 4, 4).to(device).requires_grad_()
        read = x[indices]
        read.square().sum().backward()
        written = x.detach().clone()
        written[indices] = -1.0
        written[indices] += 2.0
        return [t.detach().cpu() for t in (read, x.grad, written)]

    for found, expected in zip(calls(DEVICE), calls("cpu"), strict=True):
        assert torch.equal(found, expected)


@passes_on_stock
def test_indices_of_one_type():
    x = torch.arange(16.0).view(4, 4).to(DEVICE)
    for indices in ((INT32, INT32), (INT64, INT64), (INT32,)):
        assert "cast" not in ir(x[tuple(at(i, x) for i in indices)])
