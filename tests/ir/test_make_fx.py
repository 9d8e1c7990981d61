"""make_fx of functions of XLA tensors: patches/torch_xla/make-fx."""

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import fails_on_stock
from tensors import DEVICE
from torch.fx.experimental.proxy_tensor import make_fx

X = torch.arange(9.0).view(3, 3) / 7
OTHER = X.flip(0) - 0.5
WEIGHT = (X + 1).t().contiguous()


def written_in_part(x):
    x = torch.zeros_like(x).add_(x)
    x[0].copy_(x[1])
    x[1:2].mul_(3)
    return x * 2


def gradient_of_weight(x, weight):
    weight = weight if weight.requires_grad else weight.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((x @ weight).tanh().sum(), weight)
    return gradient


gradient = torch.func.grad(lambda x: (x.sin() ** 2).sum())

FUNCTIONS = {
    "views": lambda x: x.view(9)[2:5].reshape(3, 1).expand(3, 4),
    "writes": written_in_part,
    "grad": gradient,
    "vmap of grad": torch.func.vmap(gradient),
    "several results": lambda x: {"sum": x.sum(), "rows": list(x)},
    "autograd": lambda x: gradient_of_weight(x, WEIGHT.to(x.device)),
}


def same(found, expected):
    found, expected = map(torch.utils._pytree.tree_leaves, (found, expected))
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f.detach().cpu(), e.detach())


@fails_on_stock
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_the_graph_computes_the_function_of_its_argument(function):
    graph = make_fx(function)(X.to(DEVICE))
    same(graph(OTHER.to(DEVICE)), function(OTHER))


@fails_on_stock
def test_the_graph_has_the_argument():
    graph = make_fx(lambda x: x.t() * 2)(X.to(DEVICE))
    torch_xla.sync()
    ir(graph(OTHER.to(DEVICE))).expect("""\
%0 = f32[] xla::device_data()
%1 = f32[3,3] xla::device_data()
%2 = f32[3,3] aten::permute(%1)
%3 = f32[3,3] aten::mul(%2, %0)
return %3
""")


@fails_on_stock
def test_arguments_that_require_grad():
    weight = WEIGHT.to(DEVICE).requires_grad_()
    graph = make_fx(gradient_of_weight)(X.to(DEVICE), weight)
    same(graph(OTHER.to(DEVICE), weight), gradient_of_weight(OTHER, WEIGHT))


@fails_on_stock
def test_an_input_that_is_written_to():
    def add_one(x):
        return x.add_(1) * 2

    graph = make_fx(add_one)(X.to(DEVICE))
    x = OTHER.to(DEVICE)
    same(graph(x), (OTHER + 1) * 2)
    same(x, OTHER + 1)


@fails_on_stock
def test_a_module_that_the_function_holds():
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    expected = module(OTHER).relu()
    module = module.to(DEVICE)
    graph = make_fx(lambda x: module(x).relu())(X.to(DEVICE))
    same(graph(OTHER.to(DEVICE)), expected)


@fails_on_stock
def test_linearize():
    _, product = torch.func.linearize(lambda x: x.sin() * x, X.to(DEVICE))
    _, expected = torch.func.jvp(lambda x: x.sin() * x, (X,), (OTHER,))
    same(product(OTHER.to(DEVICE)), expected)


@pytest.mark.passes_on_stock
def test_fake_tensors_and_tensors_of_the_cpu_are_traced_as_before():
    same(make_fx(written_in_part)(X)(OTHER), written_in_part(OTHER))
    assert "mul" in make_fx(lambda x: x * 2, tracing_mode="fake")(X.to(DEVICE)).code
