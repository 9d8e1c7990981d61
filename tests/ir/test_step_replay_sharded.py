"""torch_xla.replay under SPMD on four virtual devices."""

import ast
import textwrap

import pytest
from other_process import forked

# test_step_replay.py says what fails on stock wheels.
pytestmark = pytest.mark.fails_on_stock

PROGRAM = """
import numpy, torch, torch_xla
import torch_xla.distributed.spmd as xs
from torch import nn
from torch.nn import functional as F
torch_xla.runtime.use_spmd()
XLA = torch_xla.device()
mesh = xs.Mesh(numpy.arange(4), (2, 2), ("fsdp", "model"))

def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4)).to(XLA)

def tensor_parallel():
    model = small()
    xs.mark_sharding(model[0].weight, mesh, ("model", None))
    xs.mark_sharding(model[3].weight, mesh, (None, "model"))
    return model

def fully_sharded():
    from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel
    return SpmdFullyShardedDataParallel(small(), mesh=mesh, shard_output=lambda output, mesh: None)

def batches(count, where=("fsdp", None)):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x, y = torch.randn(8, 16, generator=generator).to(XLA), torch.randint(4, (8,), generator=generator).to(XLA)
        xs.mark_sharding(x, mesh, where)
        xs.mark_sharding(y, mesh, where[:1])
        yield x, y

def step_of(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss
    return step

def shardings(*tensors):
    return torch_xla._XLAC._get_xla_sharding_specs(list(tensors))

def state(model):
    return [p.detach().cpu().tolist() for p in model.parameters()]

def trained(made, replay):
    torch_xla.manual_seed(3)
    model = made()
    step = step_of(model)
    step = torch_xla.replay(step) if replay else step
    losses = []
    for x, y in batches(8):
        losses.append(step(x, y))
        if not replay:
            torch_xla.sync()
    return step, [loss.item() for loss in losses], state(model), shardings(*model.parameters())
"""


def told(program):
    """What a program prints."""
    output = forked("-c", PROGRAM + textwrap.dedent(program), CPU_NUM_DEVICES="4").stdout
    return ast.literal_eval(output.strip().splitlines()[-1])


@pytest.mark.parametrize("made", ["tensor_parallel", "fully_sharded"])
def test_a_replayed_run_is_the_traced_one(made):
    equal, sharded, replayed = told(f"""
        traced, (step, *replayed) = trained({made}, False)[1:], trained({made}, True)
        print([list(traced) == replayed, sum("devices=" in each for each in traced[2]), step.report()["replayed"]])
    """)
    assert equal
    assert sharded >= 2
    assert replayed >= 4


def test_other_shardings_are_other_graphs():
    """Of an argument, and of a weight that is sharded anew between two calls."""
    counts, losses = told("""
        def losses_of(replay):
            model = small()
            step, found, counts = step_of(model), [], []
            torch_xla.manual_seed(3)
            step = torch_xla.replay(step) if replay else step
            for i, where in enumerate([("fsdp", None), ("model", None), ("fsdp", None), ("fsdp", None)]):
                if i == 3:
                    torch_xla._XLAC._xla_wait_device_ops([])  # mark_sharding() takes no data that is being computed
                    xs.mark_sharding(model[0].weight, mesh, ("model", None))
                for x, y in batches(5, where):
                    found.append(step(x, y))
                    if not replay:
                        torch_xla.sync()
                counts.append(step.report()["traced"] if replay else 0)
            return counts, [loss.item() for loss in found]
        (counts, replayed), (_, traced) = losses_of(True), losses_of(False)
        print([counts, [replayed, traced]])
    """)
    assert losses[0] == losses[1]
    first, second, third, fourth = counts
    assert first < 5
    assert first < second < first + 5
    assert third <= second + 2
    assert third < fourth < third + 5


def test_the_check_leaves_the_state():
    before, after, message = told("""
        class Hidden:
            __slots__ = ("factor",)
        hidden, total = Hidden(), torch.zeros(4, 4, device=XLA)
        hidden.factor = 2.0
        xs.mark_sharding(total, mesh, ("fsdp", "model"))
        step = torch_xla.replay(lambda x: total.copy_(total + x * hidden.factor), check_every=2)
        x = torch.ones(4, 4, device=XLA)
        for _ in range(5):
            step(x)
        hidden.factor = 5.0
        message = ""
        for _ in range(2):
            before = total.tolist(), shardings(total)
            try:
                step(x)
            except RuntimeError as error:
                message = str(error)
                break
        after = total.tolist(), shardings(total)
        print([before, after, message])
    """)
    assert "5.0 where 2.0" in message
    assert before == after


def test_values_that_are_read():
    """Of a sharded argument, of sharded state, and of random numbers."""
    equal, replayed = told("""
        def losses_of(replay):
            model = tensor_parallel()
            update = step_of(model)
            def step(x, y):
                if (x > 2).any() or model[3].weight.norm() > 1e3:
                    x = x * 0.5
                if torch.rand((), device=XLA) < 0.5:
                    x = x + 1
                return update(x, y)
            torch_xla.manual_seed(3)
            step, found = torch_xla.replay(step) if replay else step, []
            for x, y in batches(24):
                found.append(step(x, y))
                if not replay:
                    torch_xla.sync()
            return step, [loss.item() for loss in found], state(model)
        traced, (step, *replayed) = losses_of(False)[1:], losses_of(True)
        print([list(traced) == replayed, step.report()["replayed"]])
    """)
    assert equal
    assert replayed >= 8
