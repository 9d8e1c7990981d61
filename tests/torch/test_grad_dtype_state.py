"""``Tensor.grad_dtype`` is not lost where a leaf is copied, saved, loaded or converted."""

import copy
import io
import pickle

import pytest
import torch

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture
def module(device):
    module = torch.nn.Linear(3, 2, device=device, dtype=BF16)
    module.weight.grad_dtype = F32
    module.bias.grad_dtype = None
    return module


def backward(module, device, dtype=BF16):
    module(torch.ones(2, 3, device=device, dtype=dtype)).sum().backward()


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def saved_parameters(module):
    file = io.BytesIO()
    torch.save(dict(module.named_parameters()), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    other = torch.nn.Linear(3, 2)
    other.weight, other.bias = loaded["weight"], loaded["bias"]
    return other


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": saved,
    "parameters, weights_only": saved_parameters,
}


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("made", COPIES.values(), ids=COPIES)
class TestCopies:
    def test_have_it(self, module, made):
        other = made(module)
        assert other.weight is not module.weight
        assert (other.weight.grad_dtype, other.bias.grad_dtype) == (F32, None)
        assert torch.equal(other.weight.cpu(), module.weight.cpu())

    def test_train(self, module, made, device):
        other = made(module)
        backward(other, device)
        assert other.weight.grad.dtype == F32
        assert module.weight.grad is None


@pytest.mark.passes_on_stock
@pytest.mark.parametrize("made", COPIES.values(), ids=COPIES)
def test_copies_without(made, device):
    module = torch.nn.Linear(3, 2, device=device, dtype=BF16)
    other = made(module)
    assert torch.equal(other.weight.cpu(), module.weight.cpu())
    assert "grad_dtype" not in vars(other.weight)
    backward(other, device)
    assert other.weight.grad.dtype == BF16


@pytest.mark.passes_on_stock
def test_pickles_are_as_before(device):
    """Byte by byte, where no leaf has a grad_dtype."""
    weight = torch.nn.Parameter(torch.ones(2, dtype=BF16, device=device))
    function, arguments = weight.__reduce_ex__(2)[:2]
    assert function is torch._utils._rebuild_parameter
    assert len(arguments) == 3


@pytest.mark.fails_on_stock
def test_deepcopy_of_a_leaf_with_a_gradient(device):
    leaf = torch.ones(2, 3, device=device, dtype=BF16, requires_grad=True)
    leaf.grad_dtype = F32
    (leaf * 2).sum().backward()
    other = copy.deepcopy(leaf)
    assert (other.dtype, other.grad.dtype, other.grad_dtype) == (BF16, F32, F32)
    assert other.grad is not leaf.grad
    assert torch.equal(other.grad.cpu(), leaf.grad.cpu())


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict(module, assign, swap, device):
    values = {name: torch.full_like(p, 2) for name, p in module.named_parameters()}
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        module.load_state_dict(values, assign=assign)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert (module.weight.grad_dtype, module.bias.grad_dtype) == (F32, None)
    assert (module.weight == 2).all()
    backward(module, device)
    assert module.weight.grad.dtype == F32


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("how", ["data", "swap", "overwrite"])
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("with_gradient", [False, True])
def test_conversion(module, how, dtype, with_gradient, device):
    """The gradient keeps its dtype, which is the leaf's grad_dtype, and its value."""
    gradient = torch.full((2, 3), 1 + 2**-20, device=device)
    if with_gradient:
        module.weight.grad = gradient
    torch.__future__.set_swap_module_params_on_conversion(how == "swap")
    torch.__future__.set_overwrite_module_params_on_conversion(how == "overwrite")
    try:
        module.to(dtype)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert module.weight.dtype == dtype
    assert (module.weight.grad_dtype, module.bias.grad_dtype) == (F32, None)
    if with_gradient:
        assert module.weight.grad.dtype == F32
        assert torch.equal(module.weight.grad.cpu(), gradient.cpu())
    backward(module, device, dtype)
    assert module.weight.grad.dtype == F32


@pytest.mark.fails_on_stock
def test_to_another_device(module, device):
    if torch.device(device).type != "xla":
        module.to("meta")
        assert module.weight.grad_dtype == F32
        return
    module.weight.grad = torch.ones(2, 3, device=device)
    moved = module.cpu()
    assert (moved.weight.grad_dtype, moved.weight.grad.dtype) == (F32, F32)
    back = moved.to(device)
    assert (back.weight.grad_dtype, back.weight.grad.dtype) == (F32, F32)


@pytest.mark.fails_on_stock
def test_a_new_parameter_of_it_has_none(module):
    """As in torch 2.10 and later: it is another leaf."""
    assert module.weight.grad_dtype == F32
    assert torch.nn.Parameter(module.weight).grad_dtype == BF16
    assert module.weight.detach().grad_dtype == BF16
