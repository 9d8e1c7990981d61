"""Reductions over all dimensions by an empty list, and dimension 0 of 0-d tensors: patches/torch_xla/reduce-all."""

import pytest
import torch
from expecttest import assert_expected_inline
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE


def outcome(function, *cpu, grad=False):
    """What a function gives on the CPU and on XLA: results, or gradients of their sums."""
    sides = []
    for device in ("cpu", DEVICE):
        tensors = [t.detach().clone().to(device) for t in cpu]
        if grad:
            tensors[0].requires_grad_()
        results = function(*tensors)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        if grad:
            results = torch.autograd.grad(results[0].mul(2).sum(), tensors[0])
        sides.append([r.detach().cpu() for r in results])
    return sides


def assert_same(function, *cpu, **options):
    expected, found = outcome(function, *cpu, **options)
    for e, f in zip(expected, found, strict=True):
        assert (f.dtype, f.shape) == (e.dtype, e.shape)
        torch.testing.assert_close(f, e, equal_nan=True)


X = torch.tensor([[0.5, -3.0, 2.0], [4.0, 1.5, -0.25]])
EMPTY_LISTS = {
    "amax": lambda x: x.amax(),
    "amax of ()": lambda x: x.amax(()),
    "amin keepdim": lambda x: x.amin(keepdim=True),
    "sum": lambda x: x.sum(()),
    "sum keepdim": lambda x: x.sum((), keepdim=True),
    "sum dtype": lambda x: x.sum((), dtype=torch.float64),
    "mean": lambda x: x.mean(()),
    "std": lambda x: x.std(()),
    "var": lambda x: x.var(()),
    "var_mean": lambda x: torch.var_mean(x, dim=()),
    "std_mean": lambda x: torch.std_mean(x, dim=()),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=()),
}


@fails_on_stock
@pytest.mark.parametrize("name", EMPTY_LISTS)
def test_empty_list_of_dimensions(name):
    assert_same(EMPTY_LISTS[name], X)


@fails_on_stock
@pytest.mark.parametrize("name", ["amax", "std", "vector_norm"])
def test_gradients_over_all_dimensions(name):
    assert_same(EMPTY_LISTS[name], X, grad=True)


@fails_on_stock
def test_scale_of_a_quantization():
    ir(X.to(DEVICE).abs().amax()).expect("""\
%0 = f32[2,3] xla::device_data()
%1 = f32[2,3] aten::abs(%0)
%2 = f32[] aten::amax(%1)
return %2
""")


@passes_on_stock
def test_the_rest_is_as_in_stock():
    x = X.to(DEVICE)
    assert_expected_inline(
        ir(
            x.amax(1),
            x.sum(),
            x.sum((0, 1)),
            x.mean(-1),
            torch.softmax(x, 0),
            x.gather(1, x.long().argmax(1, keepdim=True)),
        ),
        """\
%0 = f32[2,3] xla::device_data()
%1 = f32[2] aten::amax(%0)
%2 = f32[] aten::sum(%0)
%3 = f32[] aten::sum(%0)
%4 = f32[2] aten::mean(%0)
%5 = f32[2,3] aten::softmax(%0)
%6 = s64[2,3] xla::cast(%0)
%7 = s64[2,1] aten::argmax(%6)
%8 = f32[2,1] aten::gather(%0, %7)
return %1, %2, %3, %4, %5, %8
""",
    )


S, Z = torch.tensor(3.5), torch.tensor(0)
UNARY = [
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "cumsum",
    "cumprod",
    "cummax",
    "softmax",
    "log_softmax",
    "sort",
    "argsort",
    "all",
    "any",
    "logsumexp",
    "squeeze",
    "nanmean",
    "max",
    "min",
]
OF_0D = {
    **{name: lambda dim, s, name=name: getattr(s, name)(dim=dim) for name in UNARY},
    "sum keepdim": lambda dim, s: s.sum(dim, keepdim=True),
    "max keepdim": lambda dim, s: s.max(dim, keepdim=True),
    "std": lambda dim, s: s.std(dim),
    "var": lambda dim, s: s.var(dim, unbiased=False),
    "var_mean": lambda dim, s: torch.var_mean(s, dim, unbiased=False),
    "norm": lambda dim, s: s.norm(2, dim),
    "flip": lambda dim, s: s.flip(dim),
    "topk": lambda dim, s: s.topk(1, dim),
    "kthvalue": lambda dim, s: s.kthvalue(1, dim),
    "gather": lambda dim, s: s.gather(dim, Z.to(s.device)),
    "index_select": lambda dim, s: s.index_select(dim, Z.to(s.device)),
    "index_select of one": lambda dim, s: s.index_select(dim, Z.view(1).to(s.device)),
    "scatter": lambda dim, s: s.scatter(dim, Z.to(s.device), s * 2),
    "scatter value": lambda dim, s: s.scatter(dim, Z.to(s.device), 2.0),
    "scatter_add": lambda dim, s: s.scatter_add(dim, Z.to(s.device), s * 2),
    "scatter_reduce": lambda dim, s: s.scatter_reduce(dim, Z.to(s.device), s * 2, "sum"),
    "index_add": lambda dim, s: s.index_add(dim, Z.to(s.device), s * 2),
    "index_copy": lambda dim, s: s.index_copy(dim, Z.to(s.device), s * 2),
    "index_fill": lambda dim, s: s.index_fill(dim, Z.to(s.device), 2.0),
}


@fails_on_stock
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dim", (0, -1))
@pytest.mark.parametrize("name", sorted(OF_0D.keys() - {"cummax"}))
def test_a_dimension_of_a_0d_tensor(name, dim):
    assert_same(lambda s: OF_0D[name](dim, s), S)


@pytest.mark.fails_on_stock("2.9", "2.8", "2.7")
@pytest.mark.parametrize("dim", (0, -1))
def test_cummax_of_a_0d_tensor(dim):
    assert_same(lambda s: OF_0D["cummax"](dim, s), S)


@fails_on_stock
@pytest.mark.parametrize("name", ["sum", "prod", "amax", "max", "softmax", "log_softmax", "cumsum", "sort", "gather"])
def test_gradients_of_a_0d_tensor(name):
    def first(s):
        result = OF_0D[name](0, s)
        return result if isinstance(result, torch.Tensor) else result[0]

    assert_same(first, S, grad=True)


@passes_on_stock
def test_other_dimensions_of_a_0d_tensor_are_refused():
    with pytest.raises((RuntimeError, IndexError)):
        S.to(DEVICE).sum(1)
