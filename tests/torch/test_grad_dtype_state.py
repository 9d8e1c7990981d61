"""``Tensor.grad_dtype`` where a leaf is copied, saved, loaded or converted: it is kept, or its loss is warned of."""

import copy
import io
import pickle
import warnings

import pytest
import torch

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

pytestmark = pytest.mark.since("2.6", "calls of castoff in copies and conversions")


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


@pytest.fixture
def not_warned(monkeypatch):
    """The warning is given once in a process."""
    monkeypatch.setattr(torch._grad_dtype, "_warned_of_loss", False)


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("made", COPIES.values(), ids=COPIES)
def test_copies_have_none_and_it_is_said(module, made, not_warned, device):
    """As in torch 2.10 to 2.15, which say nothing."""
    with pytest.warns(UserWarning, match=r"the grad_dtype (torch.float32|None) of a tensor of shape .*wide_grads"):
        other = made(module)
    assert (other.weight.grad_dtype, other.bias.grad_dtype) == (BF16, BF16)
    assert torch.equal(other.weight.cpu(), module.weight.cpu())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(module)


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
def test_load_state_dict(module, assign, swap, not_warned, device):
    values = {name: torch.full_like(p, 2) for name, p in module.named_parameters()}
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            module.load_state_dict(values, assign=assign)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert (module.weight == 2).all()
    kept = module.weight.grad_dtype == F32
    assert kept == (not assign and not swap)
    assert any("is not part of its copy" in str(w.message) for w in found) != kept


@pytest.mark.fails_on_stock
@pytest.mark.parametrize(
    ("dtype", "with_gradient"), [(F16, False), (BF16, False), (F16, True), (BF16, True), (F32, True)]
)
def test_conversion(module, dtype, with_gradient, device):
    """In place, a gradient keeps its dtype, which is the leaf's grad_dtype, and its value. Upstream's is cast."""
    gradient = torch.full((2, 3), 1 + 2**-20, device=device)
    if with_gradient:
        module.weight.grad = gradient
    module.to(dtype)
    assert module.weight.dtype == dtype
    assert (module.weight.grad_dtype, module.bias.grad_dtype) == (F32, None)
    if with_gradient:
        assert module.weight.grad.dtype == F32
        assert torch.equal(module.weight.grad.cpu(), gradient.cpu())
    backward(module, device, dtype)
    assert module.weight.grad.dtype == F32


@pytest.mark.fails_on_stock
def test_new_parameters_on_another_device(module, not_warned, device):
    other = torch.device("cpu" if torch.device(device).type == "xla" else "meta")
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with pytest.warns(UserWarning, match="is not part of its copy"):
            module.to(other)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert module.weight.grad_dtype == BF16


@pytest.mark.fails_on_stock
def test_a_gradient_goes_along_to_another_device(module, device):
    """With the grad_dtype that it needs. Trainers move a model with its last gradients."""
    other = torch.device("cpu" if torch.device(device).type == "xla" else "meta")
    module.weight.grad = torch.full((2, 3), 1 + 2**-20, device=device)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        module.to(other)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert module.weight.device.type == module.weight.grad.device.type == other.type
    assert (module.weight.dtype, module.weight.grad.dtype, module.weight.grad_dtype) == (BF16, F32, F32)
    assert other.type == "meta" or (module.weight.grad == 1 + 2**-20).all()


@pytest.mark.fails_on_stock
def test_a_new_parameter_of_it_has_none(module):
    """As in torch 2.10 and later: it is another leaf."""
    assert module.weight.grad_dtype == F32
    assert torch.nn.Parameter(module.weight).grad_dtype == BF16
    assert module.weight.detach().grad_dtype == BF16
