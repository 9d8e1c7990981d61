"""torch_xla.amp.MasterWeights, and what torch.optim's own optimizers do with float32 gradients of bfloat16 weights."""

import copy
import itertools
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch_xla
from distributed_checkpoint import ALONE
from ir_text import ir
from marks import fails_on_stock
from tensors import DEVICE, bf16, f16, f32, random
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch_xla.experimental.distributed_checkpoint import prime_optimizer

OPTIMIZERS = {
    name: getattr(torch.optim, name)
    for name in torch.optim.__all__
    if name != "Optimizer" and isinstance(getattr(torch.optim, name), type)
}
OPTIONS = [{}, {"momentum": 0.9}, {"momentum": 0.9, "centered": True}, {"foreach": True}, {"fused": True}]
OPTIONS += [{"capturable": True}, {"amsgrad": True}]
FLOAT32_STATE = {"Adafactor", "LBFGS", "Muon", "SGD"}


def master_weights(*arguments, **options):
    from torch_xla.amp import MasterWeights  # not on stock

    return MasterWeights(*arguments, **options)


def wide_grads(module):
    from torch_xla.amp import wide_grads

    return wide_grads(module)


def accepted(options):
    """The optimizers that can be made with ``options``."""
    for name, optimizer_class in OPTIMIZERS.items():
        try:
            optimizer_class([torch.zeros(2, 2)], **options)
        except (TypeError, ValueError, RuntimeError):
            continue
        yield name


CASES = [(name, options) for options in OPTIONS for name in accepted(options)]
IDS = [f"{name}-{'-'.join(options)}" for name, options in CASES]


def weights(*shapes, device=DEVICE, dtype=bf16):
    return [random(*shape, seed=i).to(dtype).to(device).requires_grad_() for i, shape in enumerate(shapes)]


def network(device=DEVICE):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(bf16)
    return module.to(device)


def batches(count, device=DEVICE):
    return [random(5, 6, seed=seed).to(device) for seed in range(count)]


def train(module, optimizer, inputs, scheduler=None):
    for x in inputs:
        optimizer.zero_grad()
        module(x).float().square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        torch_xla.sync()


def bits(optimizer):
    """Everything that a step depends on, on the CPU."""
    moved = copy.deepcopy(optimizer.state_dict())
    for state in moved["state"].values():
        for name, value in state.items():
            state[name] = value.cpu() if isinstance(value, torch.Tensor) else value
    return moved


def assert_same(found, expected):
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for i, state in expected["state"].items():
        assert found["state"][i].keys() == state.keys()
        for name, value in state.items():
            other = found["state"][i][name]
            if isinstance(value, torch.Tensor):
                assert other.dtype == value.dtype
                assert torch.equal(other, value)
            else:
                assert other == value


# ---- the step


@fails_on_stock
def test_a_step_has_one_cast_for_each_parameter():
    module = network()
    wide_grads(module)
    optimizer = master_weights(module.parameters(), torch.optim.AdamW, lr=1e-2)
    train(module, optimizer, batches(1))
    module(batches(1)[0]).float().square().mean().backward()
    torch_xla.sync()
    optimizer.step()
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq", "master")]
    text = ir(*module.parameters(), *moments)
    assert text.count("xla::cast") == len(list(module.parameters())) == 4
    assert "bf16[8,6] xla::cast" in text


@fails_on_stock
def test_the_graph_of_a_step():
    [w] = weights((4, 2))
    w.grad_dtype = f32
    w.grad = random(4, 2, dtype=f32).to(DEVICE)
    optimizer = master_weights([w], torch.optim.SGD, lr=0.5, momentum=0.5)
    optimizer.step()
    w.grad = random(4, 2, dtype=f32).to(DEVICE)
    torch_xla.sync()
    optimizer.step()
    ir(w).expect("""\
%0 = f32[] xla::device_data()
%1 = f32[] prim::Constant()
%2 = f32[4,2] xla::device_data()
%3 = f32[] xla::device_data()
%4 = f32[4,2] xla::device_data()
%5 = f32[4,2] aten::mul(%4, %3)
%6 = f32[4,2] aten::add(%5, %2, %1)
%7 = f32[4,2] xla::device_data()
%8 = f32[4,2] aten::add(%7, %6, %0)
%9 = bf16[4,2] xla::cast(%8)
return %9
""")


@fails_on_stock
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_every_optimizer_works_as_on_float32(name, options):
    """Parameters that begin as bfloat16 numbers, and float32 gradients: the same float32 numbers come out."""
    if "capturable" in options:
        pytest.skip("capturable wants an accelerator that it knows, and XLA is none")
    shapes = [(4, 3), (2, 5)] if name == "Muon" else [(4, 3), (5,)]
    exact, narrow = weights(*shapes, dtype=f32, device="cpu"), weights(*shapes, device="cpu")
    gradients = [[random(*shape, dtype=f32, seed=seed) for shape in shapes] for seed in range(3)]
    if name == "SparseAdam":
        gradients = [[g.to_sparse() for g in step] for step in gradients]
    optimizers = [OPTIMIZERS[name](exact, **options), master_weights(narrow, OPTIMIZERS[name], **options)]
    for step in gradients:
        for parameters, optimizer in zip((exact, narrow), optimizers, strict=True):
            for p, g in zip(parameters, step, strict=True):
                p.grad_dtype = f32
                p.grad = g.to(p.device)
            optimizer.step((lambda: torch.tensor(1.0)) if name == "LBFGS" else None)
    for p, q in zip(exact, narrow, strict=True):
        assert torch.equal(optimizers[1].state[q]["master"], p)
        assert torch.equal(q, p.to(bf16))


@fails_on_stock
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_torch_optim_refuses_or_keeps_float32_state(name, options):
    shapes = [(4, 3)]
    [w] = weights(*shapes, device="cpu")
    w.grad_dtype = f32
    w.grad = random(4, 3, dtype=f32)
    optimizer = OPTIMIZERS[name]([w], **{"lr": 0.5, **options})
    before = w.detach().clone()
    if name not in FLOAT32_STATE or "fused" in options:
        with pytest.raises(RuntimeError, match=rf"MasterWeights\(params, torch\.optim\.\w+\.{name}, …\)"):
            optimizer.step()
        assert torch.equal(w, before)
        return
    for _ in range(2):
        optimizer.step((lambda: torch.tensor(1.0)) if name == "LBFGS" else None)
    of_parameter = [v for v in optimizer.state[w].values() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    assert all(value.dtype == f32 for value in of_parameter)
    assert not torch.equal(w, before)


@fails_on_stock
@pytest.mark.parametrize("backend", ["openxla", "aot_eager"])
def test_a_compiled_step(backend):
    results = []
    for compiled in (False, True):
        torch._dynamo.reset()
        module = network()
        wide_grads(module)
        optimizer = master_weights(module.parameters(), torch.optim.AdamW, lr=1e-2)
        step = torch.compile(optimizer.step, backend=backend) if compiled else optimizer.step
        for x in batches(4):
            optimizer.zero_grad()
            module(x).float().square().mean().backward()
            torch_xla.sync()
            step()
        results.append([optimizer.state[p]["master"].cpu() for p in module.parameters()])
    for plain, compiled in zip(*results, strict=True):
        assert torch.allclose(plain, compiled, rtol=0, atol=1e-6)


@fails_on_stock
def test_a_bfloat16_gradient_is_widened():
    [w] = weights((4, 3))
    optimizer = master_weights([w], torch.optim.SGD, lr=0.5)
    start, grad = w.detach().cpu().float(), random(4, 3, seed=3)
    w.grad = grad.to(DEVICE)
    optimizer.step()
    assert torch.equal(optimizer.state[w]["master"].cpu(), start - 0.5 * grad.float())


@fails_on_stock
def test_small_updates_are_not_lost():
    """1 + 1e-3 is 1 in bfloat16."""
    w = torch.ones(3, dtype=bf16, device=DEVICE, requires_grad=True)
    optimizer = master_weights([w], torch.optim.SGD, lr=1e-3)
    for _ in range(8):
        w.grad = -torch.ones(3, dtype=bf16, device=DEVICE)
        optimizer.step()
    assert torch.equal(w.detach().cpu(), torch.full((3,), 1.008).bfloat16())


# ---- what a user does with an optimizer


@fails_on_stock
def test_groups_schedulers_clipping_and_tied_weights():
    narrow, exact = network(), network().float()
    for module in (narrow, exact):
        module.tied = module[0]
    wide_grads(narrow)
    results = []
    for module, make in (
        (exact, torch.optim.AdamW),
        (narrow, lambda p, **kw: master_weights(p, torch.optim.AdamW, **kw)),
    ):
        groups = [
            {"params": module[0].parameters(), "weight_decay": 0.1},
            {"params": module[2].parameters(), "lr": 3e-3},
        ]
        optimizer = make(groups, lr=1e-2)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[1e-2, 3e-3], total_steps=10)
        for seed in range(5):
            optimizer.zero_grad(set_to_none=seed % 2 == 0)
            for i, p in enumerate(module.parameters()):
                p.grad = random(*p.shape, dtype=f32, seed=10 * seed + i).to(DEVICE)
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
        results.append([(group["lr"], group["betas"], group["weight_decay"]) for group in optimizer.param_groups])
    assert results[0] == results[1]
    for p, q in zip(exact.parameters(), narrow.parameters(), strict=True):
        assert torch.equal(optimizer.state[q]["master"].cpu(), p.detach().cpu())
    assert len(optimizer.state) == 4


@fails_on_stock
def test_names_and_a_group_that_comes_later():
    module = network()
    optimizer = master_weights(module[0].named_parameters(), torch.optim.AdamW)
    optimizer.add_param_group({"params": list(module[2].named_parameters()), "lr": 0.5})
    assert [group["param_names"] for group in optimizer.param_groups] == [["weight", "bias"]] * 2
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 0.5]
    train(module, optimizer, batches(1))
    assert set(optimizer.state) == set(module.parameters())
    assert optimizer.param_groups[0]["params"][0] is module[0].weight


@fails_on_stock
def test_closures():
    """LBFGS moves the parameters between the evaluations of one step."""
    losses = {}
    for dtype in (f32, bf16):
        [w] = weights((4, 3), dtype=dtype, device="cpu")
        target = random(4, 3, seed=5)
        optimizer = torch.optim.LBFGS([w], lr=0.5) if dtype == f32 else master_weights([w], torch.optim.LBFGS, lr=0.5)
        seen = losses[dtype] = []

        def closure(w=w, target=target, optimizer=optimizer, seen=seen):
            optimizer.zero_grad()
            loss = (w.float() - target.float()).square().sum()
            loss.backward()
            seen.append(loss.item())
            return loss

        first = optimizer.step(closure)
        assert first.item() == seen[0]
    assert losses[bf16][-1] < 1e-2 * losses[bf16][0]
    assert abs(losses[bf16][1] - losses[f32][1]) < 1e-2 * losses[f32][1]


@fails_on_stock
def test_gradient_scaler():
    module = network("cpu").to(f16)
    module[0].bias.grad_dtype = f32
    wide_grads(module)
    optimizer = master_weights(module.parameters(), torch.optim.SGD, lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    start = [p.detach().float() for p in module.parameters()]
    for seed, bad in ((0, False), (1, True)):
        optimizer.zero_grad()
        gradients = [random(*p.shape, dtype=f32, seed=seed) for p in module.parameters()]
        scaler.scale(torch.ones(()))
        for p, g in zip(module.parameters(), gradients, strict=True):
            p.grad = g * 8 * (float("inf") if bad else 1)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if not bad:
            expected = [p - g for p, g in zip(start, gradients, strict=True)]
        for p, value in zip(module.parameters(), expected, strict=True):
            assert torch.equal(optimizer.state[p]["master"], value)
    assert scaler.get_scale() == 4.0


@fails_on_stock
def test_syncfree_optimizers_take_found_inf():
    from torch_xla.amp import syncfree

    module = network()
    wide_grads(module)
    optimizer = master_weights(module.parameters(), syncfree.AdamW, lr=1e-2)
    module(batches(1)[0]).float().square().mean().backward()
    before = [p.detach().cpu() for p in module.parameters()]
    optimizer.step(found_inf=torch.ones((), device=DEVICE))
    assert all(torch.equal(p.detach().cpu(), b) for p, b in zip(module.parameters(), before, strict=True))
    optimizer.step(found_inf=torch.zeros((), device=DEVICE))
    assert not any(torch.equal(p.detach().cpu(), b) for p, b in zip(module.parameters(), before, strict=True))


@fails_on_stock
def test_parameters_that_were_changed_keep_the_change():
    w = torch.ones(4, dtype=bf16, device=DEVICE, requires_grad=True)
    optimizer = master_weights([w], torch.optim.SGD, lr=1e-3)

    def step():
        w.grad = -torch.ones(4, dtype=bf16, device=DEVICE)
        optimizer.step()

    step()
    with torch.no_grad():
        w[1] = 5  # the others keep what their copies have more than they
    step()
    expected = torch.tensor([1, 5, 1, 1], dtype=f32) + torch.tensor([2, 1, 2, 2]) * torch.tensor(1e-3)
    assert torch.allclose(optimizer.state[w]["master"].cpu(), expected, rtol=0, atol=1e-6)


@fails_on_stock
def test_loaded_weights_are_trained_on():
    """As after load_state_dict of a pretrained model, behind the optimizer's back."""
    module, other = network(), network()
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1)
    optimizer = master_weights(module.parameters(), torch.optim.SGD, lr=0.0)
    module.load_state_dict(other.state_dict())
    train(module, optimizer, batches(1))
    for p, q in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.detach().cpu(), q.detach().cpu())


@fails_on_stock
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_of_model_and_optimizer_go_on_alike(copied):
    module = network("cpu")
    wide_grads(module)
    optimizer = master_weights(module.parameters(), torch.optim.AdamW, lr=1e-2)
    train(module, optimizer, batches(2, "cpu"))
    optimizer.zero_grad()
    other_module, other = copied((module, optimizer))
    wide_grads(other_module)
    for pair in ((module, optimizer), (other_module, other)):
        train(*pair, batches(2, "cpu"))
    assert_same(bits(other), bits(optimizer))


@fails_on_stock
@pytest.mark.parametrize("error", ["class", "differentiable", "group"])
def test_errors(error):
    [w] = weights((4, 3))
    if error == "class":
        with pytest.raises(TypeError, match=r"expected a class of torch\.optim\.Optimizer"):
            master_weights([w], torch.optim.AdamW([w]))
    elif error == "differentiable":
        with pytest.raises(ValueError, match="differentiable=False"):
            master_weights([w], torch.optim.AdamW, differentiable=True)
    else:
        with pytest.raises(ValueError, match="parameter group"):
            master_weights([w], torch.optim.AdamW).load_state_dict({"state": {}, "param_groups": []})


# ---- checkpoints


def resumed_by_state_dict(module, optimizer, fresh_module, fresh, folder):
    torch.save((module.state_dict(), bits(optimizer)), folder / "checkpoint.pt")
    weights, state = torch.load(folder / "checkpoint.pt", weights_only=False)
    fresh_module.load_state_dict(weights)
    fresh.load_state_dict(state)


def resumed_the_other_way_round(module, optimizer, fresh_module, fresh, folder):
    fresh.load_state_dict(bits(optimizer))
    fresh_module.load_state_dict(module.state_dict())


def resumed_by_dcp(module, optimizer, fresh_module, fresh, folder):
    for save, m, o in ((True, module, optimizer), (False, fresh_module, fresh)):
        of_model, of_optimizer = get_state_dict(m, o)
        state = {"model": of_model, "optimizer": of_optimizer}
        if save:
            dcp.save(state, checkpoint_id=folder, **ALONE)
        else:
            dcp.load(state, checkpoint_id=folder, **ALONE)
            set_state_dict(m, o, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


RESUMES = [resumed_by_state_dict, resumed_the_other_way_round, resumed_by_dcp]


@fails_on_stock
@pytest.mark.parametrize("resume", RESUMES)
@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor"])
def test_a_resumed_training_is_the_same_to_the_bit(name, device, resume, tmp_path):
    device = DEVICE if device == "xla" else "cpu"

    def new():
        module = network(device)
        wide_grads(module)
        return module, master_weights(module.parameters(), OPTIMIZERS[name], lr=1e-2)

    module, optimizer = new()
    train(module, optimizer, batches(3, device))
    optimizer.zero_grad()
    fresh_module, fresh = new()
    with torch.no_grad():
        for p in fresh_module.parameters():
            p.zero_()
    resume(module, optimizer, fresh_module, fresh, tmp_path)
    torch_xla.sync()  # what was loaded is not computed again in the first step, whose last bits depend on its graph
    for pair in ((module, optimizer), (fresh_module, fresh)):
        train(*pair, batches(3, device))
    found, expected = bits(fresh), bits(optimizer)
    if resume is resumed_by_dcp:  # which takes the options of groups through tensors and lists
        found["param_groups"] = expected["param_groups"]
    assert_same(found, expected)
    for p, q in zip(fresh_module.parameters(), module.parameters(), strict=True):
        assert torch.equal(p.detach().cpu(), q.detach().cpu())


@fails_on_stock
def test_a_checkpoint_of_the_optimizer_alone():
    """Without masters in it: they start from the parameters."""
    [w], [q] = weights((4, 3)), weights((4, 3))
    alone = torch.optim.AdamW([q])
    q.grad = random(4, 3).to(DEVICE)
    alone.step()
    optimizer = master_weights([w], torch.optim.AdamW)
    optimizer.load_state_dict(alone.state_dict())
    assert optimizer.state[w]["exp_avg"].dtype == f32
    assert torch.equal(optimizer.state[w]["master"].cpu(), w.detach().float().cpu())


@fails_on_stock
def test_prime_optimizer():
    module = network()
    wide_grads(module)
    optimizer = prime_optimizer(master_weights(module.parameters(), torch.optim.AdamW))
    assert all(state["exp_avg"].dtype == f32 for state in optimizer.state.values())


@fails_on_stock
def test_float32_parameters_have_no_copy():
    narrow, exact = weights((4, 3), dtype=bf16)[0], weights((4, 3), dtype=f32)[0]
    optimizer = master_weights([narrow, exact], torch.optim.AdamW)
    for p in (narrow, exact):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert "master" not in optimizer.state[exact]
    assert optimizer.state[narrow]["master"].dtype == f32
    assert exact.grad is not None
    torch_xla.sync()
    assert "cast" not in ir(exact + 0)


@fails_on_stock
def test_gradients_are_let_go():
    [w] = weights((4, 3))
    w.grad_dtype = f32
    optimizer = master_weights([w], torch.optim.SGD, lr=1.0)
    w.grad = torch.ones(4, 3, device=DEVICE)
    optimizer.step()
    assert all(p.grad is None for p in itertools.chain(*(g["params"] for g in optimizer.optimizer.param_groups)))
