"""torch.inference_mode() on XLA: results, kinds of tensors, IR, and what autograd refuses, as on the CPU."""

import pytest
import torch
import torch_xla
from ir_text import ir

XLA = torch_xla.device()

PROGRAMS = {
    "view": lambda x, m: x.view(-1),
    "transpose": lambda x, m: x.t() + 1,
    "slice": lambda x, m: x[1:, ::2],
    "select": lambda x, m: x[0],
    "expand": lambda x, m: x[:1].expand(4, 4) * 2,
    "unbind": lambda x, m: x.unbind(0)[1],
    "split": lambda x, m: x.split(2, dim=1)[1],
    "diagonal": lambda x, m: x[:4, :4].diagonal(),
    "as_strided": lambda x, m: x.as_strided((2, 2), (4, 1)),
    "unsqueeze": lambda x, m: x.unsqueeze(0).squeeze(0).movedim(0, 1),
    "detach": lambda x, m: x.detach().view(2, -1),
    "linear": lambda x, m: m(x),
    "layer_norm": lambda x, m: torch.nn.functional.layer_norm(x, (4,), m.weight[0], m.bias),
    "attention": lambda x, m: torch.nn.functional.scaled_dot_product_attention(*[x.view(1, 1, 4, 4)] * 3),
    "attention with mask": lambda x, m: torch.nn.functional.scaled_dot_product_attention(
        *[x.view(1, 2, 2, 4)] * 3, is_causal=True
    ),
    "a view of an inference tensor": lambda x, m: (x + 1).view(-1)[2:],
    "einsum": lambda x, m: torch.einsum("ij,kj->ik", x, m.weight),
    "index": lambda x, m: x[torch.tensor([0, 2], device=x.device)],
}


def model_and_input(device):
    torch.manual_seed(0)
    linear = torch.nn.Linear(4, 4)
    return torch.randn(4, 4).to(device), linear.to(device)


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_kinds_are_the_cpus(name):
    def run(device):
        x, model = model_and_input(device)
        with torch.inference_mode():
            return PROGRAMS[name](x, model)

    found, expected = run(XLA), run("cpu")
    torch.testing.assert_close(found.cpu(), expected)
    if name != "detach":  # no view for autograd: on XLA an inference tensor
        assert found.is_inference() == expected.is_inference()


@pytest.mark.fails_on_stock
def test_the_ir_of_a_linear_is_that_without_grad():
    x, model = model_and_input(XLA)
    with torch.no_grad():
        expected = ir(model(x))
    with torch.inference_mode():
        found = ir(model(x))
    assert found == expected


@pytest.mark.fails_on_stock
def test_writes_through_views_of_normal_tensors_arrive():
    def run(device):
        cache = torch.zeros(4, 4, device=device)
        with torch.inference_mode():
            cache[1].add_(5)
            cache.view(-1)[2:4] = 7
            cache.t()[3].copy_(torch.ones(4, device=device))
            row = cache[2:3]
            row.mul_(0).sub_(1)
        cache[0].add_(1)
        return cache.cpu(), row.cpu(), cache._version

    found, expected = run(XLA), run("cpu")
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1]) and found[2] == expected[2]


@pytest.mark.fails_on_stock
def test_gradients_after_inference_mode():
    x, model = model_and_input(XLA)
    with torch.inference_mode():
        view = model.weight.t()
        model(x)
    (model(x) + x @ view).sum().backward()
    reference_x, reference = model_and_input("cpu")
    with torch.inference_mode():
        view = reference.weight.t()
    (reference(reference_x) + reference_x @ view).sum().backward()
    torch.testing.assert_close(model.weight.grad.cpu(), reference.weight.grad)


def test_an_inference_tensor_is_refused_where_the_cpu_refuses_it():
    for device in ("cpu", XLA):
        x, model = model_and_input(device)
        with torch.inference_mode():
            y = x + 1
        with pytest.raises(RuntimeError, match="nference"):
            y.add_(1)
        with pytest.raises(RuntimeError, match="nference"):
            model(y)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "openxla"])
def test_compiled(backend):
    x, model = model_and_input(XLA)
    compiled = torch.compile(lambda x: torch.relu(model(x)).view(2, -1), backend=backend)
    with torch.inference_mode():
        results = [compiled(x).cpu() for _ in range(2)]
    reference_x, reference = model_and_input("cpu")
    expected = torch.relu(reference(reference_x)).view(2, -1).detach()
    for result in results:
        torch.testing.assert_close(result, expected)
    torch._dynamo.reset()
