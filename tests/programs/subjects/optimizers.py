"""Programs: optimizers."""

import copy

import torch
from options import options
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def adam_capturable(device):
    """Adam with capturable=True and a learning rate that is a tensor, so that nothing is compiled again."""
    model = nn.Linear(4, 3).to(device)
    lr = torch.tensor(1e-2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, capturable=device.type != "cpu")
    x = torch.randn(8, 4).to(device)
    for step in range(3):
        lr.fill_(1e-2 / (step + 1))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def adamw_amsgrad(device):
    """AdamW with amsgrad and maximize, in two groups of parameters."""
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
    groups = [{"params": model[0].parameters(), "lr": 1e-2}, {"params": model[2].parameters(), "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, amsgrad=True, maximize=True)
    x = torch.randn(8, 4).to(device)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def adamw_foreach(device):
    """foreach=True, and clip_grad_norm_ with it."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    x, norms = torch.randn(8, 4).to(device), []
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True))
        optimizer.step()
    return list(model.parameters()), norms


def adamw_fused(device):
    """fused=True, which is the default of transformers' Trainer."""
    model = nn.Linear(4, 3).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    x = torch.randn(8, 4).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def all_of_torch(device):
    """A step or three of every other optimizer of torch."""
    kinds = ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")
    results = []
    start = torch.randn(5, 4)
    x = torch.randn(8, 4).to(device)
    for kind in kinds:
        weight = nn.Parameter(start.to(device).clone())
        optimizer = getattr(torch.optim, kind)([weight])
        for _ in range(3):
            optimizer.zero_grad()
            (x @ weight.t()).square().mean().backward()
            optimizer.step()
        results.append(weight)
    return results


@options(tolerance=2e-2)
def bfloat16_parameters(device):
    """AdamW of bfloat16 parameters: moments and the step's rounding."""
    model = nn.Linear(16, 8).bfloat16().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(8, 16).bfloat16().to(device)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    moments = [optimizer.state[p]["exp_avg_sq"].dtype for p in model.parameters()]
    return list(model.parameters()), [str(dtype) for dtype in moments]


def clip_and_skip_non_finite(device):
    """Steps with gradients that are not finite are skipped, as a GradScaler does it."""
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    skipped = 0
    for scale in (1.0, float("inf"), 2.0, float("nan")):
        optimizer.zero_grad()
        (model(torch.ones(2, 4).to(device)).mean() * scale).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        else:
            skipped += 1
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    return skipped, list(model.parameters())


def ema_of_weights(device):
    """An exponential moving average of a model, as torch.optim.swa_utils makes it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(8, 4).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) * x).mean().backward()
        optimizer.step()
        average.update_parameters(model)
    return dict(average.state_dict())


def gradient_accumulation(device):
    """Four micro-batches, a loss divided by four, one step; the same as one batch."""
    model = nn.Linear(6, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(8, 6)
    for micro in batch.chunk(4):
        (model(micro.to(device)).square().mean() / 4).backward()
    gradient = model.weight.grad.clone()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return gradient, model.weight, model.weight.grad


def gradient_penalty(device):
    """A gradient penalty: the gradient of a gradient's norm, through leaky ReLU and softplus."""
    model = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 1)).to(
        device
    )
    x = torch.randn(6, 4).to(device).requires_grad_()
    [gradient] = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    penalty = (gradient.norm(dim=1) - 1).square().mean()
    penalty.backward()
    return penalty, [p.grad for p in model.parameters() if p.grad is not None]


@options(tolerance=1e-3)
def lbfgs(device):
    """LBFGS with a closure and a line search, whose conditions read the loss."""
    weight = nn.Parameter(torch.zeros(3).to(device))
    x, y = torch.randn(10, 3).to(device), torch.randn(10).to(device)
    optimizer = torch.optim.LBFGS([weight], max_iter=5, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = (x @ weight - y).square().mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    return loss, weight


def schedules(device):
    """A chain of warm-up and cosine, one-cycle, and reduction on a plateau that reads a loss of the device."""
    rates = []
    for make in (
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(o, 5)], milestones=[3]
        ),
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=10),
        lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    ):
        weight = nn.Parameter(torch.ones(3).to(device))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        schedule = make(optimizer)
        for _ in range(6):
            loss = weight.detach().sum() * 0 + 1
            optimizer.step()
            schedule.step(loss) if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else schedule.step()
            rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates


def sgd_with_momentum(device):
    """SGD with Nesterov momentum, weight decay and a schedule."""
    model = nn.Linear(4, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    x = torch.randn(8, 4).to(device)
    for _ in range(5):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        schedule.step()
    return list(model.parameters()), optimizer.param_groups[0]["lr"]


def state_dict_round_trip(device):
    """An optimizer's state is saved in the middle and loaded into a new one: training goes on as if nothing was."""
    model = nn.Linear(4, 3).to(device)
    x = torch.randn(8, 4).to(device)

    def train(optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    first = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(first, 2)
    torch.save(first.state_dict(), "optimizer.pt")
    second = torch.optim.AdamW(model.parameters(), lr=1.0)
    second.load_state_dict(torch.load("optimizer.pt", weights_only=True))
    state = copy.deepcopy(second.state_dict()["state"][0])
    train(second, 2)
    devices = {value.device.type == device.type for key, value in state.items() if key != "step"}
    return list(model.parameters()), devices == {True}
