"""torch_xla.replay of steps that read values of the device: each replay reads them, and has the graph that fits."""

import re

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn
from torch.nn import functional as F

XLA = torch_xla.device()
CALLS = 16

# test_step_replay.py says what fails on stock wheels.
pytestmark = pytest.mark.fails_on_stock


def ones(*shape):
    return torch.ones(*shape, device=XLA)


class Program:
    """Has `self.x` as its state; `argument` gives what the i-th call gets, on the CPU."""

    def __init__(self):
        self.x = ones(2, 3)

    def argument(self, i):
        return torch.full((2, 3), 1.0)

    def state(self):
        return [self.x]


def alternating(i):
    """Zeros and ones: each value for two calls at least, and for the last ones in any order."""
    return (0, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 1, 0, 1, 1)[i]


class Masked(Program):
    """Has another graph for a batch with padding."""

    def argument(self, i):
        return torch.tensor([[1, 1, 1], [1, 1, 1 - alternating(i)]])

    def step(self, mask):
        if mask.all():
            self.x.add_(1)
        else:
            self.x.add_(mask).mul_(2)
        return self.x.sum()


class Warned(Masked):
    """Asks what is in an argument, as transformers does."""

    def step(self, mask):
        if 0 in mask[:, [-1, 0]]:
            self.x.mul_(2)
        return self.x + mask


class OfState(Program):
    """What is read depends on the state alone, which the step changes."""

    def step(self, y):
        if (self.x > 4).any():
            self.x.sub_(3)
        else:
            self.x.add_(y)
        return self.x * 2


class Assigned(Program):
    """The state that is read is another tensor after each call."""

    def step(self, y):
        self.x = self.x + y
        if self.x.sum() > 36:
            self.x = self.x * 1.5
        return self.x


class Counted(Program):
    """The state itself is read, before and after it is changed."""

    def __init__(self):
        self.x = torch.zeros((), dtype=torch.int64, device=XLA)

    def step(self, y):
        before = self.x.item()
        self.x.add_(1).remainder_(3)
        return y + before * 10 + self.x.item()


class Random(Program):
    """What is read is drawn."""

    def step(self, y):
        if torch.rand((), device=XLA) < 0.5:
            self.x.add_(torch.rand_like(self.x))
        return F.dropout(self.x + y, 0.5)


class Twice(Program):
    """What is read first decides what is read next."""

    def argument(self, i):
        return torch.tensor([alternating(i), alternating((i * 3) % CALLS), i % 2])

    def step(self, flags):
        kind = int(flags[1] + 2 * flags[2]) if flags[0].item() else 5 + (not bool(flags[2]))
        self.x.mul_(0.5).add_(kind)
        return self.x.clone()


class Looped(Program):
    """Reads the same thing again and again, of tensors that it changes meanwhile."""

    def argument(self, i):
        return torch.tensor(1.0 + 2 * alternating(i))

    def step(self, y):
        x, times = self.x * 0 + y, 0
        while x.sum().item() < 50:
            x.mul_(2)
            times += 1
        self.x.copy_(x)
        return x, times


class Changed(Program):
    """An argument is changed before it is read, through a view of it."""

    def argument(self, i):
        return torch.full((2, 3), float(alternating(i)))

    def step(self, y):
        y[0].add_(1)
        row = y.view(-1)[:2]
        y.mul_(3)
        if float(row[0]) == 6:
            self.x.add_(row.sum())
        return y


class Kinds(Program):
    """Each kind of a read, of each kind of a number."""

    def argument(self, i):
        return torch.tensor([alternating(i), 2])

    def step(self, y):
        found = [y.tolist(), y[0].item(), int(y[0]), float(y[0]), bool(y[0]), torch.is_nonzero(y[0]), 2 in y]
        found += [y.to(dtype)[0].item() for dtype in (torch.bfloat16, torch.int8, torch.bool, torch.float16)]
        found += [y.to(torch.complex64)[0].item(), (y[0] / 0).item() != 0, range(5)[y[0].to(torch.uint8)]]
        found += [(-0.0 * (1 - y[0].float())).item()]
        self.x.add_(sum(map(float, found[1:3])))
        return [*map(str, found), self.x + y[0]]


class Gradients(Program):
    """Gradients that are kept, and what autograd computes, are read."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2).to(XLA)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    def argument(self, i):
        return torch.full((2, 3), 1.0 + 9 * alternating(i))

    def step(self, y):
        if self.model.bias.grad is not None and self.model.bias.grad.norm() > 2:
            self.model.bias.grad.mul_(0.5)
        loss = self.model(y).square().mean()
        loss.backward()
        if not torch.isfinite(loss):
            raise ValueError("expected a finite loss")
        if self.model.weight.grad.norm() > 20:
            self.optimizer.zero_grad()
        self.optimizer.step()
        return loss

    def after(self):
        self.scheduler.step()

    def state(self):
        return [*self.model.parameters(), *[p.grad for p in self.model.parameters() if p.grad is not None]]


class Rates(Gradients):
    """A number of the optimizer is sent to the device, and read there."""

    def step(self, y):
        rate = torch.tensor(self.optimizer.param_groups[0]["lr"], device=XLA)
        loss = self.model(y).square().mean() * (1 if rate * y.sum() > 0.5 else 2)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class Constant(Program):
    """Nothing that is read depends on anything."""

    def step(self, y):
        positions = torch.arange(3, device=XLA)
        if (positions.diff() == 1).all() and torch.tensor([1, 2], device=XLA).tolist() == [1, 2]:
            self.x.add_(y)
        return self.x + positions


class Returned(Program):
    """What is read is returned."""

    def argument(self, i):
        return torch.tensor([alternating(i)])

    def step(self, y):
        return {"text": f"found {y.item()}", "number": y.item(), "x": self.x.add_(1)}


PROGRAMS = {kind.__name__: kind for kind in Program.__subclasses__()} | {"Warned": Warned, "Rates": Rates}


def run(program, step, sync):
    torch_xla.sync()
    xm.set_rng_state(1234)
    results = []
    for i in range(CALLS):
        results.append(step(program.argument(i).to(XLA)))
        if sync:
            torch_xla.sync()
        if hasattr(program, "after"):
            program.after()
    leaves = torch.utils._pytree.tree_leaves((results, program.state()))
    return [leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replayed_run_is_the_traced_one(name):
    traced, replayed = PROGRAMS[name](), PROGRAMS[name]()
    step = torch_xla.replay(replayed.step)
    expected = run(traced, traced.step, sync=True)
    found = run(replayed, step, sync=False)
    assert [i for i, pair in enumerate(zip(expected, found, strict=True)) if not equal(*pair)] == []
    report = step.report()
    assert report["refused"] == []
    assert report["replayed"] >= 4, report


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_check_agrees(name):
    program = PROGRAMS[name]()
    step = torch_xla.replay(program.step, check_every=1)
    run(program, step, sync=False)
    assert step.report()["checked"] >= 4
    assert step.report()["replayed"] == 0


def calls(step, *arguments):
    replayed = torch_xla.replay(step)
    for argument in arguments:
        replayed(argument.to(XLA))
    return replayed


def tensors(*values):
    return [torch.tensor(value) for value in values]


def scaled(x):
    return x * x.sum().item()


def test_a_value_that_stays_is_a_constant_of_the_graph():
    report = calls(scaled, *tensors(*[[2.0, 1.0]] * 5)).report()
    assert (report["traced"], report["replayed"]) == (2, 3)


def test_a_number_that_changes_is_refused_with_its_line():
    with pytest.raises(RuntimeError, match=r"changes from call to call: item\(\) at .*_reads.py:\d+, in scaled"):
        calls(scaled, *tensors([2.0], [3.0]))


def test_a_number_may_change_now_and_then():
    report = calls(scaled, *tensors(*[[2.0]] * 3, *[[3.0]] * 3, [2.0], [3.0])).report()
    assert (report["traced"], report["replayed"], report["graphs"]) == (4, 4, 2)


def test_too_many_values_are_refused_with_their_line():
    def step(x):
        return x * int(x)

    with pytest.raises(RuntimeError, match=r"more than 8 graphs.*reads other values.*__int__\(\) at .*_reads.py"):
        calls(step, *tensors(*range(12)))


def test_a_step_raises_what_it_raises_when_traced():
    x = ones(2)

    def step(y):
        x.add_(y)
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        return x

    replayed = calls(step, *tensors(*[[1.0, 1.0]] * 5))
    with pytest.raises(ValueError, match="not finite"):
        replayed(torch.tensor([float("nan"), 1.0]).to(XLA))
    assert replayed.report()["replayed"] == 3


def test_nothing_is_read_if_the_value_depends_on_nothing(monkeypatch):
    from torch_xla._step_replay import device

    program = Constant()
    replayed = calls(program.step, *[program.argument(0)] * 4)
    monkeypatch.setattr(device, "to_cpu", lambda tensors: pytest.fail("read"))
    replayed(program.argument(0).to(XLA))
    assert replayed.report()["replayed"] == 3


def test_a_value_is_read_once_for_all_graphs(monkeypatch):
    from torch_xla._step_replay import device

    program = Masked()
    replayed = calls(program.step, *[program.argument(i) for i in range(8)])
    ran = []
    monkeypatch.setattr(device, "run", lambda graph, tensors, run=device.run: ran.append(graph) or run(graph, tensors))
    for i in (0, 3):
        replayed(program.argument(i).to(XLA))
    assert replayed.report()["graphs"] == 2
    assert len(ran) == 2


def many(x):
    return x + len((x * ones(2000)).tolist())


def copied(x):
    return x + x.cpu().sum().item()


def masked(x):
    return x + len(x[x > 0].tolist())


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (copied, r"cpu\(\) at .*in copied"),
        (many, r"tolist\(\) at .*in many"),
        (masked, r"executes a graph: aten::nonzero ran on the CPU, in __getitem__\(\) at .*in masked"),
    ],
)
def test_other_reads_are_refused(step, reason):
    with pytest.raises(RuntimeError, match="cannot be replayed") as caught:
        calls(step, *[torch.ones(1)] * 3)
    assert re.search(reason, str(caught.value)), caught.value


def test_the_state_that_was_read_is_donated_and_not_kept():
    x = ones(2)
    torch_xla.sync()

    def step(y):
        if (x.sum() * 0 + y).item() == 0:
            x.add_(1)
        return y

    replayed, counts = calls(step, *[torch.zeros(1)] * 2), []
    for _ in range(6):
        torch._functionalize_sync(x)
        before = torch._from_functional_tensor(x)
        replayed(torch.zeros(1, device=XLA))
        with pytest.raises(RuntimeError, match=r"[Dd]onated|HasValue|deleted"):
            before.cpu()
        counts.append(len(torch_xla._XLAC._check_device_tensor_need_materialization(str(XLA))))
    assert replayed.report()["replayed"] >= 5
    assert replayed.report()["inputs"] == 1
    assert len(set(counts[1:])) == 1
    assert x.tolist() == [9, 9]


def test_models_of_transformers_with_and_without_padding():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}

    class Model(Gradients):
        def __init__(self):
            torch.manual_seed(0)
            config = transformers.BertConfig(vocab_size=16, pad_token_id=0, **sizes)
            self.model = transformers.BertForSequenceClassification(config).to(XLA).train()
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

        def argument(self, i):
            ids = torch.arange(8).view(2, 4) + 1 + i % 3
            ids[0, 3] *= 1 - alternating(i)
            return ids

        def step(self, ids):
            labels = ids[:, 0] % 2
            loss = self.model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss

    traced, replayed = Model(), Model()
    step = torch_xla.replay(replayed.step)
    expected, found = run(traced, traced.step, sync=True), run(replayed, step, sync=False)
    assert all(map(equal, expected, found))
    assert step.report()["replayed"] == CALLS - 5, step.report()
