"""Random numbers on XLA, their dtype and their seed: patches/torch_xla/random-numbers."""

import copy
import itertools
import pickle
import re

import pytest
import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from other_process import forked
from tensors import DEVICE, bf16, f16, f32

halves = pytest.mark.parametrize("dtype", (bf16, f16), ids=str)


@pytest.fixture(autouse=True)
def short_seed():
    """The seed is a chain of operators as long as what was drawn since the last sync."""
    torch_xla.sync()


def draws(tensor, operator):
    """The shape and operands' types of the nodes of one operator in a tensor's IR: "f32[4,4]"."""
    text = ir(tensor)
    return [
        (shape, re.search(rf"^{re.escape(first)} = (\w+)", text, re.MULTILINE)[1])
        for shape, first in re.findall(rf"= (\S+) aten::{operator}\((%\d+)", text)
    ]


@fails_on_stock
@halves
def test_the_mask_of_dropout_is_drawn_in_float32(dtype):
    dropped = F.dropout(torch.ones(4, 4, dtype=dtype, device=DEVICE), 0.1)
    assert "= f32[4,4] aten::bernoulli(" in ir(dropped)
    assert draws(dropped, "bernoulli") == [("f32[4,4]", "f32")]


@passes_on_stock
def test_float32_is_as_in_stock():
    x = torch.ones(4, 4, device=DEVICE)
    assert draws(F.dropout(x, 0.1), "bernoulli") == [("f32[4,4]", "f32")]
    assert draws(torch.rand(4, device=DEVICE), "uniform") == [("f32[4]", "f32")]


@fails_on_stock
@pytest.mark.parametrize("p", (0.004, 0.001), ids=str)
def test_bfloat16_dropout_drops_as_asked(p):
    x = torch.ones(300_000, dtype=bf16, device=DEVICE)
    dropped = (F.dropout(x, p) == 0).float().mean().item()
    assert abs(dropped - p) < 6 * (p * (1 - p) / 300_000) ** 0.5


@fails_on_stock
@halves
@pytest.mark.parametrize("low, high", ((0.0, 1.0), (-1.0, 2.0)))
def test_uniform_numbers_are_below_the_upper_bound(dtype, low, high):
    x = torch.empty(50_000, dtype=dtype, device=DEVICE).uniform_(low, high).cpu().float()
    assert x.min() >= low and x.max() < high
    assert abs(x.mean() - (low + high) / 2) < 0.03


@fails_on_stock
@halves
def test_uniform_numbers_are_those_that_torch_draws(dtype):
    found = torch.rand(100_000, dtype=dtype, device=DEVICE).cpu()
    expected = torch.rand(100_000, dtype=dtype)
    assert torch.equal(found.unique(), expected.unique())


@passes_on_stock
@halves
def test_normal_numbers(dtype):
    x = torch.randn(50_000, dtype=dtype, device=DEVICE).cpu().float()
    assert x.dtype == f32 and abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16), ids=str)
def test_normal_numbers_of_means_and_deviations(dtype):
    """Of shapes that are broadcast: 3 means, and a deviation for each row."""
    means, deviations = torch.tensor([[0.0, 10.0, 20.0]], dtype=dtype), torch.full((20_000, 1), 2.0, dtype=dtype)
    x = torch.normal(means.to(DEVICE), deviations.to(DEVICE)).cpu()
    assert x.dtype == dtype
    torch.testing.assert_close(x.float().mean(0), means[0].float(), rtol=0, atol=0.1)
    torch.testing.assert_close(x.float().std(0), torch.full((3,), 2.0), rtol=0, atol=0.1)


@fails_on_stock
@halves
def test_bernoulli_of_probabilities(dtype):
    p = torch.full((300_000,), 0.999, dtype=dtype, device=DEVICE)
    exact = p[0].item()
    drawn = torch.bernoulli(p)
    assert drawn.dtype == dtype
    assert abs(drawn.float().mean().item() - exact) < 6 * (exact * (1 - exact) / 300_000) ** 0.5 + 1e-9
    assert abs(torch.empty_like(p).bernoulli_(0.999).float().mean().item() - 0.999) < 6e-4


@fails_on_stock
def test_gradient_of_dropout_has_the_mask():
    x = torch.ones(10_000, dtype=bf16, device=DEVICE, requires_grad=True)
    y = F.dropout(x, 0.004)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    assert 0 < (y == 0).sum().item() < 200


# ---- seeds


@fails_on_stock
def test_manual_seed():
    def drawn(seed):
        torch.manual_seed(seed)
        return torch.rand(8, device=DEVICE).cpu()

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))
    assert torch.equal(drawn(-1), drawn(2**64 - 1))


@passes_on_stock
def test_seed():
    torch.manual_seed(3)
    first = torch.rand(8, device=DEVICE).cpu()
    torch.seed()
    assert not torch.equal(torch.rand(8, device=DEVICE).cpu(), first)


@passes_on_stock
def test_manual_seed_of_the_cpu_is_as_ever():
    torch.manual_seed(3)
    first = torch.rand(8)
    assert torch.equal(torch.manual_seed(3).initial_seed() * torch.ones(8), torch.full((8,), 3.0))
    assert torch.equal(torch.rand(8), first)


@fails_on_stock
@pytest.mark.default_pin
def test_a_seed_from_before_the_runtime_runs():
    program = """
import torch, torch_xla
torch.manual_seed({seed})
print(torch_xla._XLAC._xla_runtime_is_initialized())
print(torch.empty(2, device="xla").uniform_().tolist())
"""
    first, second, other = (forked("-c", program.format(seed=seed)).stdout for seed in (7, 7, 8))
    assert first == second != other
    assert first.startswith("False\n")


@passes_on_stock
@pytest.mark.default_pin
def test_a_seed_that_is_set_after_torchs():
    program = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
torch.manual_seed({seed})
xm.set_rng_state(5)
print(torch.empty(2, device="xla").uniform_().tolist())
"""
    first, other = (forked("-c", program.format(seed=seed)).stdout for seed in (7, 8))
    assert first == other


@fails_on_stock
@pytest.mark.default_pin
def test_the_state_is_the_seed_from_before_the_runtime_runs():
    program = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
torch.manual_seed(7)
print(xm.get_rng_state())
"""
    assert forked("-c", program).stdout == "7\n"


@passes_on_stock
def test_a_forked_child_does_not_touch_the_runtime():
    program = """
import os, torch, torch_xla
x = torch.rand(2, device="xla").cpu()
if os.fork() == 0:
    torch.manual_seed(1)
    print("seeded", flush=True)
    os._exit(0)
os.wait()
"""
    assert forked("-c", program).stdout == "seeded\n"


@fails_on_stock
def test_shapes_of_exponential_draws_of_one_seed():
    """torch_xla looks a shape up by a hash that is the same for each shape."""
    for shape in ((2, 3), (3,), (4, 5)):
        xm.set_rng_state(7)
        x = torch.empty(shape, device=DEVICE).exponential_(2.0)
        assert (x / 2).exp().shape == shape
    with pytest.raises(RuntimeError, match="expects lambda"):
        x.exponential_(0.0)


# ---- functions of torch.compile

COMPILED = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "rand": lambda x: torch.rand_like(x) + x,
    "several draws": lambda x: torch.randn_like(x) + torch.rand_like(x),
}


@fails_on_stock
@pytest.mark.parametrize("function", COMPILED.values(), ids=COMPILED.keys())
def test_a_compiled_function_draws_the_same_when_it_is_first_called(function):
    """And the same as without torch.compile, but that 2.8 draws several in another order."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="openxla")
    x, found = torch.ones(64, device=DEVICE), []
    for called in (compiled, compiled, function):
        torch.manual_seed(7)
        found.append([called(x).cpu(), called(x).cpu()])
        torch_xla.sync()
    assert all(map(torch.equal, *found[:2]))
    if function is not COMPILED["several draws"] or torch.__version__ >= "2.9":
        torch.testing.assert_close(found[0][0], found[2][0])


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16, f16), ids=str)
@pytest.mark.parametrize("p", [0.1, 0.75])
def test_dropout_in_a_compiled_function_scales_what_it_keeps(p, dtype):
    """On stock by 1 / p, in place of 1 / (1 - p): ten times as much for a p of 0.1, and in the gradient, too."""
    torch._dynamo.reset()
    x = torch.ones(20_000, device=DEVICE, dtype=dtype, requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x, p), backend="openxla")(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    kept = torch.tensor(1.0 / (1.0 - p), dtype=dtype)
    for found in (y.detach().cpu(), grad.cpu()):
        assert found.dtype == dtype
        torch.testing.assert_close(found[found != 0], kept.expand_as(found[found != 0]))
        assert abs((found != 0).double().mean().item() - (1 - p)) < 0.02
    assert torch.equal(y.cpu() == 0, grad.cpu() == 0)


@fails_on_stock
def test_native_dropout_of_none_of_all_and_in_evaluation():
    x = torch.arange(1.0, 5.0, device=DEVICE)
    for p, train, kept in ((0.0, True, True), (1.0, True, False), (0.5, False, True)):
        y, mask = torch.native_dropout(x, p, train)
        assert mask.dtype == torch.bool and mask.tolist() == [kept] * 4
        assert torch.equal(y.cpu(), x.cpu() * kept)


@fails_on_stock
def test_a_compiled_function_draws_other_numbers_than_those_that_are_pending():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.rand_like(x) * x, backend="openxla")
    x = torch.ones(64, device=DEVICE)
    compiled(x)
    torch.manual_seed(7)
    pending, drawn = torch.rand(64, device=DEVICE), compiled(x)
    torch.manual_seed(7)
    expected = [torch.rand(64, device=DEVICE) for _ in range(2)]
    assert torch.equal(pending.cpu(), expected[0].cpu()) and torch.equal(drawn.cpu(), expected[1].cpu())


# ---- torch.Generator(device="xla")


def generator(seed=7):
    return torch.Generator(device="xla").manual_seed(seed)


FROM_A_GENERATOR = {
    "rand": lambda g: torch.rand(64, generator=g, device=DEVICE),
    "randn": lambda g: torch.randn(64, generator=g, device=DEVICE, dtype=bf16),
    "randint": lambda g: torch.randint(0, 1000, (64,), generator=g, device=DEVICE),
    "randperm": lambda g: torch.randperm(64, generator=g, device=DEVICE),
    "normal": lambda g: torch.normal(0.0, 1.0, (64,), generator=g, device=DEVICE),
    "normal of means": lambda g: torch.normal(torch.zeros(64, device=DEVICE), 1.0, generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((256,), 0.5, device=DEVICE), generator=g),
    "bernoulli_": lambda g: torch.empty(256, device=DEVICE).bernoulli_(0.5, generator=g),
    "uniform_": lambda g: torch.empty(64, device=DEVICE).uniform_(-1, 1, generator=g),
    "exponential_": lambda g: torch.empty(64, device=DEVICE).exponential_(2.0, generator=g),
    "random_": lambda g: torch.empty(64, device=DEVICE, dtype=torch.int64).random_(1000, generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(1000, device=DEVICE), 64, generator=g),
    "multinomial of one": lambda g: torch.multinomial(torch.ones(64, 1000, device=DEVICE), 1, generator=g),
    "with replacement": lambda g: torch.multinomial(torch.ones(1000, device=DEVICE), 64, True, generator=g),
    "poisson": lambda g: torch.poisson(torch.full((64,), 9.0, device=DEVICE), generator=g),
    "xavier": lambda g: torch.nn.init.xavier_normal_(torch.empty(8, 8, device=DEVICE), generator=g),
}


@fails_on_stock
@pytest.mark.parametrize("draw", FROM_A_GENERATOR.values(), ids=FROM_A_GENERATOR.keys())
def test_numbers_of_a_generator(draw):
    """They depend on its seed alone, and differ from draw to draw."""
    g = generator()
    torch.manual_seed(1)
    first, second = draw(g).cpu(), draw(g).cpu()
    torch.manual_seed(2)
    assert first.device.type == "cpu" and not torch.equal(first, second)
    torch.rand(3, device=DEVICE)
    g.manual_seed(7)
    assert torch.equal(draw(g).cpu(), first)
    assert torch.equal(draw(g).cpu(), second)
    assert not torch.equal(draw(generator(8)).cpu(), first)


@fails_on_stock
def test_a_permutation_has_the_seed():
    def drawn(n, dtype):
        torch.manual_seed(9)
        return torch.randperm(n, device=DEVICE, dtype=dtype).cpu()

    for n, dtype in itertools.product((0, 1, 1000), (torch.int64, torch.int32, f32)):
        first = drawn(n, dtype)
        assert first.dtype == dtype and torch.equal(first.sort()[0], torch.arange(n, dtype=dtype))
        assert torch.equal(drawn(n, dtype), first)


@fails_on_stock
def test_a_generator_leaves_the_device_alone():
    def drawn(between):
        torch.manual_seed(3)
        found = [torch.rand(4, device=DEVICE)]
        between()
        return torch.cat([*found, torch.rand(4, device=DEVICE)]).cpu()

    assert torch.equal(drawn(lambda: None), drawn(lambda: torch.rand(4, generator=generator(), device=DEVICE)))


@fails_on_stock
def test_the_numbers_are_those_of_the_device_with_that_seed():
    torch.manual_seed(11)
    assert torch.equal(torch.rand(8, device=DEVICE).cpu(), torch.rand(8, generator=generator(11), device=DEVICE).cpu())


@fails_on_stock
def test_the_state_of_a_generator():
    g = generator(5)
    assert g.device == torch.device("xla:0") and g.initial_seed() == 5
    torch.rand(2, generator=g, device=DEVICE)
    state, copied, pickled = g.get_state(), copy.deepcopy(g), pickle.loads(pickle.dumps(g))
    expected = torch.rand(4, generator=g, device=DEVICE).cpu()
    for other in (torch.Generator(DEVICE), copied, pickled, g.clone_state()):
        other.set_state(state)
        assert other.initial_seed() == 5
        assert torch.equal(torch.rand(4, generator=other, device=DEVICE).cpu(), expected)
    assert g.seed() == g.initial_seed() != 5
    with pytest.raises(RuntimeError, match="expected the state of an XLA generator, 16 uint8"):
        g.set_state(torch.Generator().get_state())


@fails_on_stock
def test_a_copy_goes_on_by_itself():
    g = generator(5)
    copied = copy.deepcopy(g)
    assert torch.equal(
        torch.rand(4, generator=g, device=DEVICE).cpu(), torch.rand(4, generator=copied, device=DEVICE).cpu()
    )


@passes_on_stock
def test_other_generators():
    assert torch.Generator().device.type == torch.Generator(device="cpu").device.type == "cpu"
    assert torch.equal(
        torch.rand(2, generator=torch.Generator().manual_seed(1)),
        torch.rand(2, generator=torch.Generator("cpu").manual_seed(1)),
    )
    for wrong in ("nonsense", 3.5, "xl"):
        with pytest.raises((RuntimeError, TypeError)):
            torch.Generator(wrong)
    with pytest.raises(TypeError):
        torch.Generator("cpu", 1)


@fails_on_stock
def test_generators_of_another_device_are_refused():
    for draw in (torch.rand, torch.randperm):
        with pytest.raises(
            RuntimeError,
            match=r"found one of xla:0|Expected a 'cpu' generator|expected device=.xla. with a generator of XLA",
        ):
            draw(2, generator=generator())
    with pytest.raises(RuntimeError, match="device string"):
        torch.Generator("xla:nonsense")
