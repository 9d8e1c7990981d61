"""Copies of computed tensors, of which one is then overwritten: patches/torch_xla/shared-buffers."""

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from other_process import forked
from tensors import DEVICE
from torch_xla.debug import metrics


def computed(start=0.0, dtype=torch.float32):
    tensor = torch.arange(start, start + 6).to(dtype).to(DEVICE)
    torch_xla.sync()
    return tensor


def written(x, y):
    x[:] = y
    return x


COPIES = {
    "copy_": lambda y: computed(9).copy_(y),
    "copy_ of a clone": lambda y: computed(9).copy_(y.clone()),
    "copy_ to zeros": lambda y: torch.zeros_like(y).copy_(y),
    "copy_ to a detached tensor": lambda y: (x := computed(9), x.detach().copy_(y.detach()))[0],
    "a slice": lambda y: written(computed(9), y),
    "to": lambda y: y.to(DEVICE, copy=True),
    "new_tensor": lambda y: y.new_tensor(y),
    "foreach": lambda y: (torch._foreach_copy_([x := computed(9)], [y]), x)[1],
    "a cast there and back": lambda y: y.double().float(),
    "there and back": lambda y: computed(9).copy_(y.double()),
}
UNSHARED_ON_STOCK = ("a cast there and back", "there and back")
WRITES = {
    "add_": lambda x: x.add_(1),
    "index": lambda x: x.index_fill_(0, torch.tensor([1], device=x.device), 7.0),
    "lerp_": lambda x: x.lerp_(x + 4, 0.5),
}


def found_and_expected(name, write, *, of_source):
    source = computed()
    copy = COPIES[name](source)
    torch_xla.sync()
    write(source if of_source else copy)
    torch_xla.sync()
    left, changed = (copy, source) if of_source else (source, copy)
    return (left.tolist(), changed.tolist()), (torch.arange(6.0).tolist(), write(torch.arange(6.0)).tolist())


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in UNSHARED_ON_STOCK else fails_on_stock) for n in COPIES]
)
def test_the_copy_is_written(name, write):
    found, expected = found_and_expected(name, write, of_source=False)
    assert found == expected


@passes_on_stock
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("name", COPIES)
def test_the_source_is_written(name, write):
    found, expected = found_and_expected(name, write, of_source=True)
    assert found == expected


@fails_on_stock
def test_a_target_network():
    results = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        model, target = (torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)) for _ in range(2))
        model, target = model.to(device), target.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        target.load_state_dict(model.state_dict())
        torch_xla.sync()
        for _ in range(2):
            x = torch.arange(12.0).view(4, 3).to(device)
            (model(x) - target(x).detach() + 1).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for average, parameter in zip(target.parameters(), model.parameters(), strict=True):
                    average.lerp_(parameter, 0.1)
            torch_xla.sync()
        results.append([t.cpu() for t in (*model.state_dict().values(), *target.state_dict().values())])
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


@passes_on_stock
@pytest.mark.parametrize("name", COPIES)
def test_a_source_that_is_copied_in_each_step(name):
    """Only the copy is written: the buffer of the source must not be donated."""
    source = computed()
    for _ in range(2):
        copy = COPIES[name](source)
        torch_xla.sync()
        assert (source.tolist(), copy.tolist()) == (torch.arange(6.0).tolist(),) * 2


@passes_on_stock
def test_the_ir():
    x, y = computed(9), computed()
    x.copy_(y)
    ir(x).expect("""\
%0 = f32[6] xla::device_data()
return %0
""")


@passes_on_stock
def test_a_copy_of_what_is_pending_has_its_node():
    x, y = computed(9), computed()
    x.copy_(y + 1)
    ir(x).expect("""\
%0 = f32[] prim::Constant()
%1 = f32[] prim::Constant()
%2 = f32[6] xla::device_data()
%3 = f32[6] aten::add(%2, %1, %0)
return %3
""")


@passes_on_stock
def test_a_tensor_of_the_cpu_is_copied_to_the_device_alone():
    x = computed(9)
    metrics.clear_all()
    x.copy_(torch.arange(6.0))
    torch_xla.sync()
    assert x.tolist() == torch.arange(6.0).tolist()
    assert metrics.metric_data("ExecuteTime") is None


def donated(write):
    """How many buffers a graph that is compiled for what is written may overwrite."""
    metrics.clear_all()
    write()
    torch_xla.sync()
    return metrics.metric_data("InputOutputAliasCount")[1]


@fails_on_stock
def test_a_buffer_is_donated_once_nobody_else_has_it():
    source = computed()
    copy = computed(9).copy_(source)
    torch_xla.sync(wait=True)
    assert donated(copy.neg_) == 0
    assert donated(copy.abs_) == 1
    assert copy.tolist() == source.tolist() == torch.arange(6.0).tolist()


@passes_on_stock
@pytest.mark.parametrize("of_source", [False, True], ids=["copy", "source"])
def test_the_buffer_of_a_copy_that_is_gone_is_donated(of_source):
    tensors = [computed()]
    tensors.append(computed(9).copy_(tensors[0]))
    torch_xla.sync(wait=True)
    written = tensors.pop(0 if of_source else 1)
    tensors.clear()
    assert donated(lambda: written.mul_(5)) == (0 if of_source else 1)


@fails_on_stock
def test_a_step_that_is_written_again_with_another_donation():
    """The same graph, once of a buffer that is shared and once of one that is not."""
    for shared in (False, True, False):
        source = computed()
        copy = computed(9).copy_(source) if shared else computed()
        torch_xla.sync(wait=True)
        copy.sub_(7)
        torch_xla.sync()
        assert source.tolist() == torch.arange(6.0).tolist()
        assert copy.tolist() == torch.arange(-7.0, -1.0).tolist()


@fails_on_stock
def test_copies_through_detached_tensors():
    weights, average = computed(), computed(9)
    average.detach().copy_(weights)
    torch_xla.sync()
    average.detach().add_(1)
    torch_xla.sync()
    assert (weights.tolist(), average.tolist()) == (list(range(6)), list(range(1, 7)))


def followed(copies, *, replayed):
    """Losses and weights of a model that a target network follows; before some steps, `copies` copies weights."""
    torch.manual_seed(0)
    model, target = (torch.nn.Linear(4, 4).to(DEVICE) for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(x):
        loss = (model(x) - target(x).detach() + 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(model.parameters()), 0.1)
        return loss

    run = torch_xla.replay(step) if replayed else step
    seen = []
    for i in range(8):
        if i in (0, 4, 6):
            seen.append(copies(model, target))
        x = torch.arange(8.0).view(2, 4).add(i).to(DEVICE)
        loss = run(x)
        torch_xla.sync()
        seen.append(loss)
    tensors = [t for one in seen for t in (one if isinstance(one, list) else [one])]
    return [t.detach().cpu() for t in (*tensors, *model.parameters(), *target.parameters())], run


def snapshot(model, target):
    return [torch.empty_like(p).copy_(p) for p in (*model.parameters(), *target.parameters())]


COPIED_BETWEEN_STEPS = {
    "the model's weights to the target": lambda model, target: target.load_state_dict(model.state_dict()) and [],
    "the target's weights to the model": lambda model, target: model.load_state_dict(target.state_dict()) and [],
    "snapshots that are kept": snapshot,
}


@fails_on_stock
@pytest.mark.parametrize("copies", COPIED_BETWEEN_STEPS.values(), ids=COPIED_BETWEEN_STEPS)
def test_replayed_steps(copies):
    """A replay donates the buffers that it writes, too."""
    expected, _ = followed(copies, replayed=False)
    found, step = followed(copies, replayed=True)
    assert step.report()["replayed"] >= 5
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


SHARDED = """
import numpy as np, torch, torch_xla, torch_xla.distributed.spmd as xs, torch_xla.runtime as xr
xr.use_spmd()
mesh = xs.Mesh(np.arange(4), (4,), ("data",))
def sharded(tensor, spec):
    xs.mark_sharding(tensor, mesh, spec)
    return tensor
split, whole = ("data", None), (None, None)
for of_copy, of_source in ((split, split), (split, whole), (whole, split)):
    source = sharded(torch.arange(16.0).view(8, 2).to("xla"), of_source)
    copy = sharded(torch.zeros(8, 2).to("xla"), of_copy)
    torch_xla.sync()
    copy.copy_(source)
    torch_xla.sync()
    copy.add_(1)
    torch_xla.sync()
    print(source.sum().item(), copy.sum().item(), *map(torch_xla._XLAC._get_xla_sharding_spec, (source, copy)))
"""


@passes_on_stock
def test_sharded_tensors():
    lines = forked("-c", SHARDED, CPU_NUM_DEVICES="4").stdout.splitlines()
    split, whole = "{devices=[4,1]0,1,2,3}", "{replicated}"
    assert lines == [f"120.0 136.0 {sharding} {sharding}" for sharding in (split, whole, split)]


# ---- a copy that has the node of the source's buffer, and takes the buffer when it is read

doubled = torch.compile(lambda x: x * 2, backend="openxla")
READS = {
    "a compiled function": doubled,
    "tolist": torch.Tensor.tolist,
    "str": str,
    "copy_": lambda x: torch.empty(x.shape).copy_(x),
    "numpy": lambda x: x.cpu().numpy(),
    "double": lambda x: x.to("cpu", torch.float64),
    "parameter": lambda x: torch.nn.Parameter(x).cpu(),
}


def left_by_a_write(source, copy, *, of_source):
    (source if of_source else copy).add_(1)
    torch_xla.sync()
    return source.tolist(), copy.tolist()


def written_on_the_cpu(x, *, of_source):
    return left_by_a_write(x, x.clone(), of_source=of_source)


of_either = pytest.mark.parametrize("of_source", [False, True], ids=["copy", "source"])


@fails_on_stock
@of_either
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_clone_that_was_read_is_written(read, of_source):
    source = computed()
    read(source)  # a function is compiled
    copy = source.clone()
    read(copy)
    torch_xla.sync()
    found = left_by_a_write(source, copy, of_source=of_source)
    assert found == written_on_the_cpu(torch.arange(6.0), of_source=of_source)


@passes_on_stock
@of_either
def test_a_clone_of_one_number_is_read(of_source):
    source = computed()[:1].clone()
    torch_xla.sync()
    copy = source.clone()
    assert copy.item() == 0
    found = left_by_a_write(source, copy, of_source=of_source)
    assert found == written_on_the_cpu(torch.zeros(1), of_source=of_source)


@fails_on_stock
def test_weights_of_the_last_step():
    """They are printed, and compared after the optimizer has changed the weights."""
    model = torch.nn.Linear(3, 2).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        seen = [weight.tolist() for weight in before.values()]
        model(torch.ones(4, 3, device=DEVICE)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        assert [weight.tolist() for weight in before.values()] == seen
        assert [weight.tolist() for weight in model.parameters()] != seen


@passes_on_stock
def test_a_clone_that_was_read_is_donated_once_nobody_else_has_it():
    copy = computed().clone()
    copy.tolist()
    torch_xla.sync(wait=True)
    assert donated(copy.atan_) == 1


# ---- operators that return a copy, which on stock is the argument

ITSELF = {
    "alias_copy": torch.alias_copy,
    "detach_copy": torch.detach_copy,
    "t_copy": torch.t_copy,
    "transpose_copy": lambda x: torch.transpose_copy(x, 0, -1),
}


@fails_on_stock
@pytest.mark.parametrize("copy", ITSELF.values(), ids=ITSELF)
def test_a_copy_is_not_its_argument(copy):
    for gradients in (torch.enable_grad, torch.inference_mode):
        with gradients():
            source = computed()
            held = copy(source)
            torch_xla.sync()
            found = left_by_a_write(source, held, of_source=False)
            assert found == written_on_the_cpu(torch.arange(6.0), of_source=False)
            assert left_by_a_write(source, held, of_source=True)[1] == found[1]


@passes_on_stock
def test_copies_have_the_gradients_and_the_nodes_of_views():
    x = computed().requires_grad_()
    copies = [copy(x) for name, copy in ITSELF.items() if name != "detach_copy"]
    torch.stack(copies).sum().backward()
    assert x.grad.tolist() == [3.0] * 6
    assert torch.transpose_copy(x.view(2, 3), 0, 1).tolist() == torch.t_copy(x.view(2, 3)).tolist()
    assert torch.transpose_copy(x.view(2, 3), 0, 1).shape == (3, 2)
    ir(x.detach()).expect("""\
%0 = f32[6] xla::device_data()
return %0
""")


@passes_on_stock
def test_a_tensor_with_a_detached_view_is_donated():
    x = computed()
    view = x.detach()
    assert donated(x.sinh_) == 1
    assert view.tolist() == x.tolist()


# ---- what is pending besides the arguments of a compiled function. On stock it is lost: at the end


@passes_on_stock
def test_an_argument_that_nothing_else_reads_is_donated():
    x = computed()
    doubled(x)
    metrics.clear_all()
    x.acosh_()
    doubled(x)
    assert metrics.metric_data("InputOutputAliasCount")[1] == 1


READ_BY_OTHERS = {
    "its old value": lambda x: (x + 1, x.add_(3)),
    "a clone": lambda x: (x.clone(), x.mul_(3)),
    "its new value": lambda x: (x.sub_(3), x + 1),
    "what it is computed by": lambda x: (h := x + 1, x.mul_(h), h * 2),
}


@fails_on_stock
@pytest.mark.parametrize("program", READ_BY_OTHERS.values(), ids=READ_BY_OTHERS)
def test_what_is_pending_besides_an_argument(program):
    x, expected = computed(), torch.arange(6.0)
    doubled(x)
    others = program(x)
    assert doubled(x).tolist() == (program(expected), expected * 2)[1].tolist()
    assert [other.tolist() for other in others] == [other.tolist() for other in program(torch.arange(6.0))]


TRAINING = """
import torch, torch_xla
results = []
for device in ("cpu", torch.device("xla")):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).to(device)
    run = model if device == "cpu" else torch.compile(model, backend="openxla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for i in range(4):
        run(torch.arange(6.0).view(2, 3).sub(i).to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    results.append([parameter.detach().cpu() for parameter in model.parameters()])
torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)
"""


@fails_on_stock
def test_training_without_syncs():
    """Momentum with weight decay is pending, and reads the weights that the next forward pass overwrites."""
    forked("-c", TRAINING)  # on stock what is lost ends later syncs, too
