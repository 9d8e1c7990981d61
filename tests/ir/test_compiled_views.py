"""torch.compile(backend="openxla") of functions whose inputs are views of one tensor: as in eager mode on the CPU."""

import importlib
import warnings

import pytest
import torch
import torch_xla
from ir_text import ir

pytestmark = pytest.mark.filterwarnings("ignore:castoff. a function compiled")


def slices(device):
    cache = torch.zeros(4, 3, device=device)
    return cache, list(cache)


def halves(device):
    cache = torch.arange(8.0, device=device)
    return cache, [cache[:4], cache[4:]]


def base_and_half(device):
    cache = torch.arange(8.0, device=device)
    return cache, [cache, cache[4:]]


def base_and_columns(device):
    cache = torch.arange(8.0, device=device).view(2, 4)
    return cache, [cache, cache.t()[1:]]


def write_each(*views):
    for factor, view in enumerate(views, 1):
        view.add_(factor).mul_(factor)
    return views[0] + 1


def write_last(first, last):
    last.add_(1)
    return first * 2


def overwritten(first, last):
    last[:] = 5
    torch.add(first, 1, out=last)
    return first * 2


CASES = [
    (slices, write_each),
    (halves, write_each),
    (halves, write_last),
    (halves, overwritten),
    (base_and_half, write_last),
    (base_and_columns, write_last),
]


def ran(function, make, device, backend):
    """The tensor that the views are of, and the result, after two calls."""
    torch._dynamo.reset()
    cache, views = make(device)
    compiled = torch.compile(function, backend=backend) if backend else function
    compiled(*views)
    result = compiled(*views)
    return cache.tolist(), result.tolist()


@pytest.mark.fails_on_stock
@pytest.mark.parametrize(("make", "function"), CASES, ids=[f"{f.__name__}-{make.__name__}" for make, f in CASES])
def test_writes_are_those_of_eager_mode(make, function):
    assert ran(function, make, torch_xla.device(), "openxla") == ran(function, make, "cpu", None)


@pytest.mark.fails_on_stock
def test_gradients_are_those_of_eager_mode():
    def gradient(device, compile_fn):
        torch._dynamo.reset()
        leaf = torch.arange(8.0, device=device, requires_grad=True)
        base = leaf * 1
        compile_fn(write_last)(base[:4], base[4:]).sum().backward()
        return leaf.grad.tolist(), base.tolist()

    compiled = gradient(torch_xla.device(), lambda f: torch.compile(f, backend="openxla"))
    assert compiled == gradient("cpu", lambda f: f)


def test_functions_that_only_read_are_compiled():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in (torch.add, lambda a, b: (a * b).add_(1)):
            assert ran(function, halves, torch_xla.device(), "openxla") == ran(function, halves, "cpu", None)


@pytest.mark.fails_on_stock
def test_the_ir_of_a_written_slice():
    torch._dynamo.reset()
    cache, views = base_and_half(torch_xla.device())
    torch_xla.sync()
    torch.compile(write_last, backend="openxla")(*views)
    text = ir(cache)
    assert "xla::unselect" in text and "aten::add" in text  # the second half of the cache and not the first


@pytest.mark.fails_on_stock
def test_a_warning_says_so_once(monkeypatch):
    monkeypatch.setattr("torch._compiled_views._warned", False)
    with pytest.warns(UserWarning, match="runs uncompiled") as seen:
        ran(write_last, halves, torch_xla.device(), "openxla")
        ran(write_each, slices, torch_xla.device(), "openxla")
    assert len([w for w in seen if "uncompiled" in str(w.message)]) == 1


@pytest.mark.fails_on_stock
def test_a_graph_that_fails_on_fake_tensors_is_left_to_the_backend():
    compiled_views = importlib.import_module("torch._compiled_views")

    def graph(*inputs):
        raise NotImplementedError

    inputs = [torch.empty(2, device=torch_xla.device())]
    assert not compiled_views._writes_to({compiled_views._memory(inputs[0])}, graph, inputs)


RETURNS = {
    "detached": lambda x: x.detach(),
    "beside a result": lambda x: (x * 2, x.detach(), x),
    "twice": lambda x: (x.detach(), x.detach(), x + 1),
    "beside a view": lambda x: (x.t(), x.detach(), x.sum()),
}


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("name", RETURNS)
def test_an_argument_is_returned(name):
    def ran_twice(device, backend):
        torch._dynamo.reset()
        function = torch.compile(RETURNS[name], backend=backend)
        x = torch.arange(4.0).view(2, 2).to(device)
        results = [function(x), function(x)]
        torch.utils._pytree.tree_leaves(results)[0].add_(1)
        return torch.utils._pytree.tree_map(torch.Tensor.tolist, [results, x])

    assert ran_twice(torch_xla.device(), "openxla") == ran_twice("cpu", "eager")


def copied(a, b):
    a.copy_(b)


def copied_and_zeroed(a, b):
    a.copy_(b)
    b.zero_()


def exchanged(a, b):
    before = a.clone()
    a.copy_(b)
    b.copy_(before)


def copied_and_read(a, b):
    a.copy_(b)
    return a * 2, b


def read_from_a_copy(a, b):
    return torch.ops.aten.copy(a, b) * 2


def assigned_whole(a, b):
    a[:] = b
    return b.clone()


@pytest.mark.fails_on_stock
@pytest.mark.parametrize(
    "function", [copied, copied_and_zeroed, exchanged, copied_and_read, read_from_a_copy, assigned_whole]
)
def test_an_argument_is_copied_to_another(function):
    def ran_twice(device, backend):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend)
        a, b = torch.zeros(2, 2).to(device), torch.arange(4.0).view(2, 2).to(device)
        results = [compiled(a, b)]
        b.add_(1)
        results.append(compiled(a, b))
        a.add_(1)
        return torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.tolist, [results[1], a, b])

    assert ran_twice(torch_xla.device(), "openxla") == ran_twice("cpu", "eager")
