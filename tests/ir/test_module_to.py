"""Module.to("xla") keeps tied weights, and the parameters that optimizers hold (pytorch/xla#7042)."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
import torch_xla
from ir_text import ir

XLA = torch_xla.device()
IDS = torch.tensor([[0, 2, 1, 4], [3, 3, 0, 1]])


class Tied(torch.nn.Module):
    """An embedding and a head of one weight, and a buffer that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.body = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.embed(ids))) * self.scale)


def tied():
    torch.manual_seed(0)
    return Tied()


def train(model, optimizer, device, steps=4):
    for _ in range(steps):
        optimizer.zero_grad()
        model(IDS.to(device)).square().mean().backward()
        optimizer.step()
        torch_xla.sync()
    return [p.detach().cpu() for p in model.parameters()]


def trained_on_the_cpu(steps=4):
    model = tied()
    return train(model, torch.optim.AdamW(model.parameters(), lr=0.1), "cpu", steps)


@pytest.mark.fails_on_stock
def test_tied_weights_stay_tied():
    model, reference = tied().to("xla"), tied()
    assert model.head.weight is model.embed.weight
    for m, device in ((model, XLA), (reference, "cpu")):
        m(IDS.to(device)).square().mean().backward()
    torch.testing.assert_close(model.embed.weight.grad.cpu(), reference.embed.weight.grad)


@pytest.mark.fails_on_stock
def test_the_gradient_has_both_parts():
    model = tied().to("xla")
    model(IDS.to(XLA)).square().mean().backward()
    text = ir(model.embed.weight.grad)
    assert "aten::index_put" in text
    assert text.splitlines()[-2].split(" = ")[1].startswith("f32[5,4] aten::add("), text


@pytest.mark.fails_on_stock
def test_an_optimizer_made_before_trains():
    model = tied()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model.to("xla")
    assert all(p is q for p, q in zip(parameters, model.parameters(), strict=True))
    assert all(p.device.type == "xla" and p.is_leaf and type(p) is torch.nn.Parameter for p in parameters)
    torch.testing.assert_close(train(model, optimizer, XLA), trained_on_the_cpu())


@pytest.mark.fails_on_stock
def test_to_the_cpu_and_back():
    model = tied().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, XLA, 1)
    gradients = [p.grad for p in model.parameters()]
    model.cpu()
    assert all(p.device.type == "cpu" and p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    train(model, optimizer, "cpu", 1)
    model.to("xla").bfloat16().float()
    train(model, optimizer, XLA, 1)
    assert model.head.weight is model.embed.weight and model.embed.weight.grad.device == XLA


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_device_and_dtype_at_once(dtype):
    model = tied()
    model(IDS).sum().backward()
    grad = model.embed.weight.grad
    expected = grad.to(dtype)
    model.to("xla", dtype)
    assert model.head.weight is model.embed.weight and model.embed.weight.grad is grad
    assert model.embed.weight.dtype == grad.dtype == dtype and grad.device == XLA
    torch.testing.assert_close(grad.cpu(), expected)


@pytest.mark.fails_on_stock
def test_from_meta():
    with torch.device("meta"):
        model = Tied()
    model.to_empty(device="xla")
    assert model.head.weight is model.embed.weight and model.embed.weight.device == XLA


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_moved_without_grad(mode):
    model = tied()
    with mode():
        model.to("xla")
    weight = model.embed.weight
    assert model.head.weight is weight and weight.requires_grad and not weight.is_inference()
    model.head(model.embed(IDS.to(XLA))).sum().backward()  # a buffer moved in inference mode is an inference tensor
    assert weight.grad.device == XLA


@pytest.mark.fails_on_stock
def test_hooks_stay():
    model, seen = tied(), []
    weight = model.embed.weight
    weight.register_hook(lambda g: seen.append("tensor") or g * 2)
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p is weight))
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: seen.append("node"))
    model.to("xla")
    model(IDS.to(XLA)).sum().backward()
    torch_xla.sync()
    assert seen in (["tensor", "node", True], ["tensor", True, "node"])
    reference = tied()
    reference(IDS).sum().backward()
    torch.testing.assert_close(weight.grad.cpu(), reference.embed.weight.grad * 2)


@pytest.mark.fails_on_stock
def test_a_graph_that_was_built_before_is_refused():
    model = tied()
    loss = model(IDS).sum()
    model.to("xla")
    with pytest.raises(RuntimeError, match="device"):
        loss.backward()
    del loss
    model(IDS.to(XLA)).sum().backward()
    assert model.embed.weight.grad.device == XLA


@pytest.mark.fails_on_stock
def test_weak_references_and_attributes_stay():
    model = tied()
    weight = model.embed.weight
    weight.kind = "embedding"
    reference, by_weight = weakref.ref(weight), weakref.WeakKeyDictionary({model: 1})
    model.to("xla")
    assert reference() is model.embed.weight and model.embed.weight.kind == "embedding" and by_weight[model] == 1
    del model, weight
    gc.collect()
    assert reference() is None


@pytest.mark.fails_on_stock
def test_copies_of_a_moved_module_are_tied():
    model = tied().to("xla")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.head.weight is other.embed.weight and other.embed.weight is not model.embed.weight
        torch.testing.assert_close(other.embed.weight.cpu(), model.embed.weight.cpu())


@pytest.mark.fails_on_stock
def test_modules_of_special_kinds():
    lstm = torch.nn.LSTM(3, 4)
    weights = list(lstm.parameters())
    lazy = torch.nn.LazyLinear(2)
    normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3))
    original = normed.parametrizations.weight.original1
    listed = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2), requires_grad=False)])
    only = listed[0]
    for module in (lstm, lazy, normed, listed):
        module.to("xla")
    assert all(a is b for a, b in zip(weights, lstm._flat_weights, strict=True)) and weights[0].device == XLA
    assert lazy(torch.ones(1, 3, device=XLA)).shape == (1, 2) and lazy.weight.device == XLA
    assert normed.parametrizations.weight.original1 is original and original.device == XLA
    assert listed[0] is only and not only.requires_grad and only.device == XLA


@pytest.mark.passes_on_stock
def test_what_torch_was_asked_for_stays():
    weight = torch.nn.Linear(2, 2).to("xla").weight
    assert weight.requires_grad and weight.device == XLA
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        module = torch.nn.Linear(2, 2)
        before = module.weight
        assert module.to("xla").weight is not before and before.device.type == "cpu"
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def test_a_float32_gradient_of_a_bfloat16_weight_stays():
    model = torch.nn.Linear(2, 2).bfloat16()
    weight = model.weight
    weight.grad_dtype = torch.float32
    weight.grad = torch.full((2, 2), 1 + 2**-12)
    model.to("xla")
    assert model.weight is weight and weight.grad_dtype == weight.grad.dtype == torch.float32
    assert weight.grad[0, 0].item() == 1 + 2**-12


def test_a_gradient_with_a_graph_is_refused():
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).square().sum().backward(create_graph=True)
    with pytest.raises(RuntimeError, match="create_graph"):
        model.to("xla")
