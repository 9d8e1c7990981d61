"""Products of bfloat16 and float16 tensors in their own dtype: patches/torch_xla/native-mul."""

import threading
from pathlib import Path

import pytest
import torch
import torch_xla
from expecttest import assert_expected_inline
from ir_text import hlo, ir
from marks import fails_on_stock, passes_on_stock
from other_process import build_id, forked, run, run_tests, run_with_another_xlac
from small_transformer import casts, gradients, loss_of, model_and_data
from tensors import DEVICE, bf16, f16
from torch_xla import experimental

both_dtypes = pytest.mark.parametrize("dtype", (bf16, f16), ids=str)


def data(*shape, dtype=bf16, seed=0):
    """A tensor on the CPU and the same one on XLA, as device data."""
    cpu = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(3).to(dtype)
    return cpu, cpu.to(DEVICE)


def pair(dtype=bf16, shapes=((4, 6), (4, 6))):
    """Two operands on the CPU, and the same two on XLA."""
    (a, x), (b, y) = (data(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes))
    return (a, b), (x, y)


def rounded_once(a, b):
    """The product of two bfloat16 or float16 tensors, which float64 and float32 hold exactly, rounded."""
    return (a.double() * b.double()).to(a.dtype)


# ---- the graph


@passes_on_stock
def test_stock_by_default():
    _, (x, y) = pair()
    ir(x * y).expect("""\
%0 = bf16[4,6] xla::device_data()
%1 = f32[4,6] xla::cast(%0)
%2 = bf16[4,6] xla::device_data()
%3 = f32[4,6] xla::cast(%2)
%4 = f32[4,6] aten::mul(%3, %1)
%5 = bf16[4,6] xla::cast(%4)
return %5
""")


@fails_on_stock
def test_bfloat16():
    (a, b), (x, y) = pair()
    with experimental.native_mul_context():
        z = x * y
    ir(z).expect("""\
%0 = bf16[4,6] xla::device_data()
%1 = bf16[4,6] xla::device_data()
%2 = bf16[4,6] aten::mul(%1, %0)
return %2
""")
    assert z.dtype == bf16
    assert torch.equal(z.cpu(), rounded_once(a, b))


@fails_on_stock
def test_float16_that_broadcasts():
    (a, b), (x, y) = pair(f16, ((4, 1, 6), (3, 1)))
    with experimental.native_mul_context():
        z = x * y
    assert casts(z) == 0
    assert torch.equal(z.cpu(), rounded_once(a, b))


# Views and kin of a 4 x 6 tensor: IR nodes of every kind, with one output and with several.
OPERANDS = {
    "transposed": lambda t: t.t().contiguous().t(),
    "view": lambda t: t.view(24),
    "row": lambda t: t[1:2],
    "strided slice": lambda t: t[::2, 1::2],
    "0-d": lambda t: t[0, 0],
    "nothing": lambda t: t[:0],
    "expanded": lambda t: t[:, None].expand(4, 3, 6),
    "diagonal": lambda t: t.diagonal(),
    "split": lambda t: t.split([1, 3])[1],
    "chunk": lambda t: t.chunk(3, 1)[2],
    "unbind": lambda t: t.unbind(0)[3],
    "flip": lambda t: t.flip(0, 1),
    "as_strided": lambda t: t.as_strided((3, 2), (2, 1), 1),
    "max": lambda t: t.max(1).values,
    "cast": lambda t: t.float().to(t.dtype),
    "sum": lambda t: t + t,
    "detached": lambda t: t.detach(),
    "written in place": lambda t: t.clone().fill_diagonal_(2),
}


@fails_on_stock
@both_dtypes
@pytest.mark.parametrize("view", OPERANDS.values(), ids=OPERANDS.keys())
def test_each_kind_of_operand(view, dtype):
    (a, _), (x, _) = pair(dtype)
    with experimental.native_mul_context():
        z = view(x) * view(x)
    assert casts(z) == 0
    assert (z.dtype, z.shape) == (dtype, view(a).shape)
    assert torch.equal(z.cpu(), rounded_once(view(a), view(a)))


def out_of_place(x, y):
    return torch.mul(x, y)


def in_place(x, y):
    return x.clone().mul_(y)


def in_place_of_a_view(x, y):
    z = x.clone()
    z[1:3].mul_(y[1:3])
    return z[1:3]


def into_out(x, y):
    return torch.mul(x, y, out=torch.zeros_like(x))


def foreach(x, y):
    return torch._foreach_mul([x, x], [y, y])[1]


def foreach_in_place(x, y):
    z = [x.clone(), x.clone()]
    torch._foreach_mul_(z, [y, y])
    return z[0]


def squared_by_itself(x, y):
    return x * x


FORMS = (out_of_place, in_place, in_place_of_a_view, into_out, foreach, foreach_in_place, squared_by_itself)


@fails_on_stock
@both_dtypes
@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_product(form, dtype):
    (a, b), (x, y) = pair(dtype)
    with experimental.native_mul_context():
        z = form(x, y)
    assert casts(z) == 0
    assert z.dtype == dtype
    assert torch.equal(z.cpu(), form(a.double(), b.double()).to(dtype))


@fails_on_stock
def test_no_cast_between_products():
    (a, b), (x, y) = pair()
    with experimental.native_mul_context():
        z = (x * y).t() * x.t() * y.t()
    assert casts(z) == 0
    exact = a.double() * b.double() * a.double() * b.double()
    assert ((z.cpu().double() - exact.t()).abs() <= 3 * torch.finfo(bf16).eps / 2 * exact.t().abs()).all()


# ---- numbers


@fails_on_stock
@both_dtypes
def test_rounded_once_whatever_the_values(dtype):
    """Overflow, infinities, NaN, zeros of either sign; subnormal results as the device has them, on stock too."""
    info = torch.finfo(dtype)
    special = [0.0, -0.0, 1.0, -1.0, info.max, -info.max, info.tiny, 1 + info.eps, torch.inf, -torch.inf, torch.nan]
    numbers = torch.randn(500, generator=torch.Generator().manual_seed(1)).mul(10).exp2()
    a = torch.cat([torch.tensor(special), numbers]).to(dtype)
    x = a.to(DEVICE)
    stock = (x[:, None] * x).cpu()
    with experimental.native_mul_context():
        z = x[:, None] * x
    assert casts(z) == 0
    result, exact = z.cpu(), a[:, None].double() * a.double()
    assert torch.equal(result.isnan(), exact.isnan())
    normal = exact.abs() >= info.tiny
    assert torch.equal(result[normal], exact.to(dtype)[normal])
    assert torch.equal(result.nan_to_num(), stock.nan_to_num())


# ---- what stays as in stock


def times_a_number(x, y):
    return x * 2.7


def times_a_number_in_place(x, y):
    return x.clone().mul_(2.7)


def times_float32(x, y):
    return x * y.float()


def times_a_0d_float32(x, y):
    return x * y[0, 0].float()


def times_the_other_half(x, y):
    return x * y.to(f16 if y.dtype == bf16 else bf16)


def times_an_integer_tensor(x, y):
    return x * y.to(torch.int32)


def of_float32(x, y):
    return x.float() * y.float()


def of_integers(x, y):
    return x.to(torch.int8) * y.to(torch.int8)


def sum_of_both(x, y):
    return torch.addcmul(x, x, y) + x.square()


UNTOUCHED = (
    times_a_number,
    times_a_number_in_place,
    times_float32,
    times_a_0d_float32,
    times_the_other_half,
    times_an_integer_tensor,
    of_float32,
    of_integers,
    sum_of_both,
)


@fails_on_stock
@both_dtypes
@pytest.mark.parametrize("form", UNTOUCHED)
def test_everything_else_is_stock(form, dtype):
    _, (x, y) = pair(dtype)
    stock = ir(form(x, y)), hlo(form(x, y))
    with experimental.native_mul_context():
        assert (ir(form(x, y)), hlo(form(x, y))) == stock


@fails_on_stock
def test_a_tensor_that_holds_another_dtype_than_it_declares():
    """torch_xla's FSDP leaves such tensors behind: stock casts them, and so they stay."""

    def product():
        _, (x, y) = pair()
        torch_xla._XLAC._replace_xla_tensor(x, x.float() + 1)
        assert x.dtype == bf16
        return x * y

    stock = ir(product())
    with experimental.native_mul_context():
        assert ir(product()) == stock


@fails_on_stock
def test_errors_are_torchs():
    _, (x, y) = pair(shapes=((4, 6), (5, 6)))
    with experimental.native_mul_context(), pytest.raises(RuntimeError, match=r"size|shape|broadcast|dim1 == dim2"):
        x * y
    with experimental.native_mul_context(), pytest.raises(RuntimeError):
        x * y.cpu()


@fails_on_stock
def test_eager_mode():
    (a, b), (x, y) = pair()
    with experimental.eager_mode_context(True), experimental.native_mul_context():
        assert torch.equal((x * y).cpu(), rounded_once(a, b))


# ---- the choice


def is_native():
    """Whether a product traced here is, by its IR and by what is_native_mul says."""
    _, (x, y) = pair()
    native = casts(x * y) == 0
    assert experimental.is_native_mul() == native
    return native


@fails_on_stock
def test_blocks_nest_and_end():
    found = [is_native()]
    with experimental.native_mul_context():
        found.append(is_native())
        with experimental.native_mul_context(False):
            found.append(is_native())
            with experimental.native_mul_context(True):
                found.append(is_native())
            found.append(is_native())
        found.append(is_native())
    with pytest.raises(KeyError), experimental.native_mul_context():
        raise KeyError
    found.append(is_native())
    assert found == [False, True, False, True, False, True, False]


@fails_on_stock
def test_decorator():
    @experimental.native_mul_context()
    def native():
        return is_native()

    assert [native(), is_native(), native()] == [True, False, True]


@fails_on_stock
def test_process():
    try:
        experimental.native_mul(True)
        assert is_native()
        with experimental.native_mul_context(False):
            assert not is_native()
            experimental.native_mul(True)
            assert not is_native()
        assert is_native()
    finally:
        experimental.native_mul(False)
    assert not is_native()


@fails_on_stock
def test_blocks_are_of_one_thread():
    inside, outside, done = [], [], threading.Event()

    def with_block():
        with experimental.native_mul_context():
            inside.extend(is_native() for _ in range(20))
        outside.append(is_native())

    def without():
        while not done.is_set():
            outside.append(is_native())

    other = threading.Thread(target=without)
    threads = [threading.Thread(target=with_block) for _ in range(3)]
    for thread in (other, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    other.join()
    assert inside == [True] * 60
    assert len(outside) > 3 and not any(outside)


@fails_on_stock
def test_the_process_is_every_threads():
    found = []
    try:
        experimental.native_mul(True)
        thread = threading.Thread(target=lambda: found.append(is_native()))
        thread.start()
        thread.join()
    finally:
        experimental.native_mul(False)
    assert found == [True]


# ---- autograd


def products_of_backward(leaves):
    return casts(*(leaf.grad for leaf in leaves))


@fails_on_stock
@both_dtypes
def test_products_of_autograd(dtype):
    (a, b), (x, y) = pair(dtype)
    leaves = [t.requires_grad_() for t in (x, y)]
    with experimental.native_mul_context():
        (x * y).sum().backward()
    assert_expected_inline(
        ir(*(leaf.grad for leaf in leaves)).replace("bf16", "half").replace("f16", "half"),
        """\
%0 = half[4,6] xla::device_data()
%1 = half[] prim::Constant()
%2 = half[] aten::expand(%1)
%3 = half[4,6] aten::expand(%2)
%4 = half[4,6] aten::mul(%3, %0)
%5 = half[4,6] xla::device_data()
%6 = half[4,6] aten::mul(%3, %5)
return %4, %6
""",
    )
    assert torch.equal(x.grad.cpu(), b)
    assert torch.equal(y.grad.cpu(), a)


@fails_on_stock
@pytest.mark.parametrize(("forward", "backward"), [(False, True), (True, False)])
def test_a_backward_follows_its_own_block(forward, backward):
    """Whatever the forward's was. The engine's threads are not the one that made the block."""
    _, (x, y) = pair()
    leaves = [t.requires_grad_() for t in (x, y)]
    threads = set()
    with experimental.native_mul_context(forward):
        z = x * y
    assert casts(z) == (0 if forward else 3)
    z.register_hook(lambda grad: threads.add(threading.get_ident()))
    torch_xla.sync()
    with experimental.native_mul_context(backward):
        z.backward(torch.ones_like(z))
    assert (products_of_backward(leaves) == 0) == backward
    assert threads and threading.get_ident() not in threads


@fails_on_stock
def test_higher_derivatives():
    (_, b), (x, y) = pair()
    x.requires_grad_()
    y.requires_grad_()
    with experimental.native_mul_context():
        (grad,) = torch.autograd.grad((x * x * y).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(grad.sum(), x)
    assert casts(second) == 0
    torch.testing.assert_close(second.cpu().double(), 2 * b.double(), rtol=2 * torch.finfo(bf16).eps, atol=0)


@fails_on_stock
def test_a_checkpoint_recomputes_in_the_block_of_the_backward():
    _, (x, y) = pair()
    x.requires_grad_()
    with experimental.native_mul_context():
        z = torch.utils.checkpoint.checkpoint(lambda t: t * y * y, x, use_reentrant=False)
        z.sum().backward()
    assert casts(x.grad) == 0


@fails_on_stock
def test_torch_compile():
    (a, b), (x, y) = pair()
    traced = []

    @torch.compile(backend="openxla")
    def product(s, t):
        return s * t

    def run_in(enable):
        with experimental.native_mul_context(enable):
            before = torch_xla.debug.metrics.metric_data("CompileTime")[0]
            assert torch.equal(product(x, y).cpu(), rounded_once(a, b))
            traced.append(torch_xla.debug.metrics.metric_data("CompileTime")[0] - before)

    for enable in (False, True, False, True):
        run_in(enable)
    assert traced[0] > 0 and traced[1] > 0, "each block has a graph of its own"
    assert traced[2:] == [0, 0], "which is kept"


# ---- a training step


@fails_on_stock
def test_transformer():
    """The step of a bfloat16 transformer; with native-attention what is left is the roundings of its results."""
    found = {}
    model, *inputs = model_and_data(bf16)
    for enable in (False, True):
        model.zero_grad()
        with experimental.native_mul_context(enable):
            loss = loss_of(model, *inputs)
            forward = casts(loss)
            loss.backward()
            found[enable] = forward, casts(loss, *gradients(model))
    attention = hasattr(experimental, "narrow_attention")  # on pins without it, in float32 between casts
    # On stock 8 forward and 46 in all. Without native_mul topic `values` adds those of five layer_norms, two gelus and
    # the cross_entropy, which is one node where topic `cross-entropy` is.
    fewer = (2, 5) if "cross-entropy" in torch_xla._castoff.TOPICS else (0, 0)
    forward, all_casts, native = (28, 63, (2, 8)) if attention else (34, 71, (8, 16))
    assert found == {False: (forward - fewer[0], all_casts - fewer[1]), True: native}


@fails_on_stock
@pytest.mark.default_pin
@pytest.mark.slow
def test_the_step_is_bit_for_bit_stocks(tmp_path):
    """A product of two such numbers is exact in float32: it is rounded once either way.

    Without topic `values`, whose float32 functions end where native_mul begins.
    """
    files = [tmp_path / "native", tmp_path / "stock"]
    flags = "--xla_allow_excess_precision=false --xla_backend_optimization_level=0"
    for file, variable in zip(files, ("1", "0"), strict=True):
        program = Path(__file__).with_name("small_transformer.py")
        run(program, file, "bfloat16", XLA_NATIVE_MUL=variable, XLA_FLAGS=flags, CASTOFF_DISABLE="values")
    ours, stock = map(torch.load, files)
    assert ours["casts"] < stock["casts"] / 2
    for a, b in zip(ours["values"], stock["values"], strict=True):
        assert torch.equal(a, b)


# ---- in other processes

PRODUCT = """
import torch, torch_xla
from ir_text import ir
x = torch.ones(4, 6, dtype=torch.bfloat16, device=torch_xla.device())
torch_xla.sync()
print(ir(x * x))
"""
NATIVE = "%0 = bf16[4,6] xla::device_data()\n%1 = bf16[4,6] aten::mul(%0, %0)\nreturn %1\n"


@fails_on_stock
@pytest.mark.parametrize("value", ["1", "true"])
@pytest.mark.default_pin
@pytest.mark.slow
def test_environment(value):
    assert NATIVE in run("-c", PRODUCT, XLA_NATIVE_MUL=value)


@passes_on_stock
@pytest.mark.parametrize("value", ["0", ""])
@pytest.mark.default_pin
@pytest.mark.slow
def test_environment_that_leaves_stock(value):
    assert NATIVE not in run("-c", PRODUCT, XLA_NATIVE_MUL=value)


@fails_on_stock
@pytest.mark.default_pin
@pytest.mark.slow
def test_settings():
    assert NATIVE in run("-c", PRODUCT, XLA_NATIVE_MUL="1", XLA_IR_DEBUG="1", XLA_USE_32BIT_LONG="1")


@fails_on_stock
@pytest.mark.slow
def test_functionalization_off():
    chosen = "(kind or form or else or autograd or block or broadcasts) and not (in_place or into_out or written)"
    output = run_tests(__file__, "-k", chosen, XLA_DISABLE_FUNCTIONALIZATION="1")
    assert " passed" in output
    assert "failed" not in output


@fails_on_stock
@pytest.mark.default_pin
@pytest.mark.slow
def test_without_exact_casts():
    assert NATIVE in run("-c", PRODUCT, XLA_NATIVE_MUL="1", CASTOFF_DISABLE="exact-casts")


ASK_FOR_IT = "import torch_xla\ntorch_xla.experimental.native_mul(True)\n" + PRODUCT


@fails_on_stock
@pytest.mark.default_pin
@pytest.mark.slow
def test_disabled():
    """Stock behaviour, and a word to who asks for more."""
    output = run("-c", ASK_FOR_IT, CASTOFF_DISABLE="native-mul")
    assert "xla::cast" in output
    assert output.count("native_mul has no effect") == 1
    assert "no effect" not in run("-c", PRODUCT, CASTOFF_DISABLE="native-mul")


@fails_on_stock
@pytest.mark.slow
def test_other_builds_are_refused(tmp_path):
    output = run_with_another_xlac(tmp_path, build_id(), bytes(20), "-c", ASK_FOR_IT)
    assert "xla::cast" in output
    assert output.count("exact-casts and the topics that need it are off") == 1
    assert output.count("native_mul has no effect") == 1


@fails_on_stock
@pytest.mark.slow
def test_a_failing_self_test_leaves_stock_behaviour(tmp_path):
    """A library whose nodes print other text than their memory says, as one of another layout would."""
    output = run_with_another_xlac(tmp_path, b", xla_shape=\0", b", xla_sharp=\0", "-c", ASK_FOR_IT + "x * x\n")
    assert output.count("exact-casts and the topics that need it are off") == 1


SPMD = """
import numpy, torch, torch_xla, torch_xla.distributed.spmd as xs
from ir_text import ir
torch_xla.runtime.use_spmd()
torch_xla.experimental.native_mul(True)
mesh = xs.Mesh(numpy.arange(4), (4,), ("x",))
sharding = torch_xla._XLAC._get_xla_sharding_spec

def data(seed, *spec):
    cpu = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).bfloat16()
    t = cpu.to(torch_xla.device())
    xs.mark_sharding(t, mesh, spec)
    return cpu, t

(a, x), (b, y) = data(0, "x", None), data(1, "x", None)
z = x * y
print("device data", ir(z).count("cast"))
xs.mark_sharding(z, mesh, ("x", None))
print("result", ir(z).count("cast"), sharding(z))
w = x.relu()
xs.mark_sharding(w, mesh, ("x", None))
before = torch_xla._XLAC._get_xla_tensors_hlo([w]).count("sharding=")
product = w * w
print("operands keep theirs", sharding(w), torch_xla._XLAC._get_xla_tensors_hlo([product]).count("sharding=") >= before)
p = data(2, "x", None)[1].requires_grad_()
(p * x).sum().backward()
print("gradient", ir(p.grad).count("cast"))
torch_xla.sync()
print("values", torch.equal(z.cpu(), a * b), torch.equal(p.grad.cpu(), a), torch.equal(product.cpu(), a.relu() ** 2))
"""


@fails_on_stock
def test_spmd():
    output = forked("-c", SPMD, CPU_NUM_DEVICES="4").stdout
    assert_expected_inline(
        "".join(line + "\n" for line in output.splitlines() if line[:1].islower()),
        """\
device data 0
result 0 {devices=[4,1]0,1,2,3}
operands keep theirs {devices=[4,1]0,1,2,3} True
gradient 0
values True True True
""",
    )
