"""wide-reductions on the TPU compiler: float32 sums cost no more estimated cycles than stock's sums."""

import pytest
import torch
import torch.nn.functional as F
from device_data import data

N = 4096
PROGRAMS = {
    "softmax": lambda x: x.softmax(1),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(N, dtype=torch.int64).to(x.device)),
    "layer_norm": lambda x: F.layer_norm(x, (N,)),
    "mean": lambda x: x.mean(1),
    "mean to float32": lambda x: x.mean(1, dtype=torch.float32),
    "cumsum": lambda x: x.cumsum(1),
}
STOCK = {
    "v5e": (977472, 917743, 541191, 439038, 439020, 1257331),
    "v5p": (423736, 408002, 214455, 212540, 212534, 900886),
    "v6e": (634048, 607447, 290563, 380546, 380537, 874355),
}
"""Estimated cycles of the programs on stock wheels, with the compiler of pin 2.9."""


@pytest.mark.passes_on_stock
def test_4096_squared_costs_no_more_cycles_than_stock(tpu_hlo, topology):
    cycles = {name: tpu_hlo(program(data(N, N)), topology).estimated_cycles for name, program in PROGRAMS.items()}
    limits = dict(zip(PROGRAMS, STOCK[topology.split(":")[0]], strict=True))
    assert cycles.keys() == limits.keys()
    assert {name: count for name, count in cycles.items() if not 0 < count <= limits[name]} == {}


@pytest.mark.fails_on_stock
def test_a_mean_takes_half_of_stocks_cycles(tpu_hlo, topology):
    limit = STOCK[topology.split(":")[0]][3]
    assert tpu_hlo(data(N, N).mean(1), topology).estimated_cycles < 0.6 * limit


@pytest.mark.passes_on_stock
@pytest.mark.parametrize("dim", [0, 1])
def test_a_sum_of_bfloat16_is_that_of_float32(tpu_hlo, topology, dim):
    """The same program: what sums of bfloat16 lose on XLA:CPU they do not lose on a TPU."""
    narrow = tpu_hlo(data(N, N).sum(dim), topology)
    wide = tpu_hlo(data(N, N).float().sum(dim).bfloat16(), topology)
    assert narrow.text == wide.text and "reduce[add bf16]" in narrow.text


LOSSES = {
    "mse": F.mse_loss,
    "L1": F.l1_loss,
    "written": lambda x, target: (x - target).square().mean(),
    "mse of float32": lambda x, target: F.mse_loss(x.float(), target.float()),
}
STOCK_STEPS = {
    "v5e": (227977, 227977, 227977, 305005),
    "v5p": (126454, 126454, 126454, 153543),
    "v6e": (108146, 108488, 108488, 136838),
}
"""Estimated cycles of stock's steps with these losses, with the compiler of pin 2.9."""


def step(loss):
    """A linear that a loss reads, and the gradients of all."""
    x, weight, bias = (data(*sizes).requires_grad_() for sizes in ((4096, 1024), (1024, 1024), (1024,)))
    result = loss(F.linear(x, weight, bias), data(4096, 1024))
    return [result.detach(), *torch.autograd.grad(result, (x, weight, bias))]


def cycles_of_steps(tpu_hlo, topology):
    """With each loss: what it takes, and stock."""
    stock = STOCK_STEPS[topology.split(":")[0]]
    found = {name: tpu_hlo(step(loss), topology).estimated_cycles for name, loss in LOSSES.items()}
    return {name: (cycles, was) for (name, cycles), was in zip(found.items(), stock, strict=True)}


@pytest.mark.passes_on_stock
def test_a_loss_and_the_gradient_of_a_bias_cost_no_more_cycles_than_stock(tpu_hlo, topology):
    """The compiler fuses the two sums, of float32 as they are."""
    cycles = cycles_of_steps(tpu_hlo, topology)
    assert {name: (now, was) for name, (now, was) in cycles.items() if now > 1.01 * was} == {}


@pytest.mark.fails_on_stock
def test_a_loss_of_widened_numbers_is_no_pass_of_its_own(tpu_hlo, topology):
    now, was = cycles_of_steps(tpu_hlo, topology)["mse of float32"]
    assert now < 0.85 * was


STOCK_ATTENTION = {"v5e": 554347, "v5p": 545376, "v6e": 345848}
"""Estimated cycles of stock's attention of 77 tokens, with the compiler of pin 2.9."""


def attention_of_77_tokens():
    """As CLIP's text encoder has it: the gradients of the linears of query, key and value."""
    width, heads = 768, 12
    x = data(32, 77, width)
    trained = [data(*sizes).requires_grad_() for sizes in [(width, width), (width,)] * 3]
    query, key, value = (
        F.linear(x, weight, bias).unflatten(-1, (heads, -1)).transpose(1, 2)
        for weight, bias in zip(trained[::2], trained[1::2], strict=True)
    )
    result = F.scaled_dot_product_attention(query, key, value)
    return torch.autograd.grad(result, trained, data(*result.shape))


@pytest.mark.fails_on_stock
def test_the_biases_of_attention_take_no_pass_of_their_own(tpu_hlo, topology):
    cycles = tpu_hlo(attention_of_77_tokens, topology).estimated_cycles
    assert cycles < 0.96 * STOCK_ATTENTION[topology.split(":")[0]]
