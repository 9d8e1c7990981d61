"""Random training programs, each made of a number: the model, the optimizer, the schedule, and what a step does beside.

Imported by replay_sweep_worker.py, in an environment with torch_xla. Sizes are a few elements: what differs between the
programs is which operators, state and numbers a step has.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

XLA = torch.device("xla")
WIDTH, CLASSES, TOKENS = 8, 3, 4
CALLS = 20

SGD, ADAM, ADAMW, RMSPROP = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop
OPTIMIZERS: tuple[tuple[Any, dict], ...] = (
    (SGD, {"lr": 0.05}),
    (SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.1}),
    (SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (ADAM, {"lr": 0.01}),
    (ADAM, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    (ADAM, {"lr": 0.01, "maximize": True, "eps": 1e-3}),
    (ADAMW, {"lr": 0.01}),
    (ADAMW, {"lr": 0.01, "betas": (0.8, 0.95), "foreach": True}),
    (ADAMW, {"lr": 0.01, "fused": True}),
    (ADAMW, {"lr": 0.01, "capturable": True}),
    (RMSPROP, {"lr": 0.01}),
    (RMSPROP, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    (torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.1}),
    (torch.optim.Adadelta, {"lr": 0.5}),
    (torch.optim.Adamax, {"lr": 0.01}),
    (torch.optim.NAdam, {"lr": 0.01}),
    (torch.optim.RAdam, {"lr": 0.01}),
    (torch.optim.ASGD, {"lr": 0.01}),
    (torch.optim.Rprop, {"lr": 0.01}),
)

SCHEDULES: tuple[Callable | None, ...] = (
    None,
    None,
    lambda o: lr_scheduler.StepLR(o, 6, 0.5),
    lambda o: lr_scheduler.CosineAnnealingLR(o, 15),
    lambda o: lr_scheduler.OneCycleLR(o, 0.1, CALLS + 1, cycle_momentum="betas" in o.defaults),
    lambda o: lr_scheduler.LambdaLR(o, lambda count: min(1.0, (count + 1) / 5)),
    lambda o: lr_scheduler.ExponentialLR(o, 0.95),
    lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(o, 16)], milestones=[4]
    ),
)


class Attention(nn.Module):
    """Self-attention of two heads; causal, dropped and masked or not."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.causal, self.dropout = dice.random() < 0.5, dice.choice((0.0, 0.2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(len(x), -1, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=dropout)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Residual(nn.Module):
    def __init__(self, inner: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm = inner, norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.norm(x))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.inner = kind(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]


class Mean(nn.Module):
    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(self.dims)


def activation(dice: random.Random) -> nn.Module:
    kinds = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.LeakyReLU, nn.Softplus, nn.Mish, nn.Hardswish, nn.ELU)
    return dice.choice(kinds)()


def vectors(dice: random.Random) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(dice.randint(1, 3)):
        norm = dice.choice((nn.LayerNorm, nn.BatchNorm1d, nn.RMSNorm, nn.Identity))
        layers += [nn.Linear(WIDTH, WIDTH), norm(WIDTH), activation(dice), nn.Dropout(dice.choice((0.0, 0.1, 0.5)))]
    return layers


def tokens(dice: random.Random) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Embedding(16, WIDTH)]
    for _ in range(dice.randint(1, 2)):
        inner = dice.choice((lambda: Attention(dice), Gated, lambda: Recurrent(nn.LSTM), lambda: Recurrent(nn.GRU)))
        layers.append(Residual(inner(), dice.choice((nn.LayerNorm, nn.RMSNorm))(WIDTH)))
        layers.append(nn.Dropout(dice.choice((0.0, 0.1))))
    return [*layers, Mean(1)]


def images(dice: random.Random) -> list[nn.Module]:
    norm = dice.choice(
        (lambda: nn.BatchNorm2d(WIDTH), lambda: nn.GroupNorm(2, WIDTH), lambda: nn.InstanceNorm2d(WIDTH))
    )
    layers: list[nn.Module] = [nn.Conv2d(2, WIDTH, 3, padding=1)]
    for _ in range(dice.randint(1, 2)):
        convolution = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=dice.choice((1, 2, WIDTH)), bias=dice.random() < 0.5)
        layers.append(Residual(nn.Sequential(convolution, activation(dice)), norm()))
    pooled = dice.choice(
        (nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Identity())
    )
    return [*layers, pooled, nn.Dropout2d(dice.choice((0.0, 0.2))), Mean(2, 3)]


TRUNKS: dict[str, Callable] = {"vectors": vectors, "tokens": tokens, "images": images}


class Program:
    """One random program on the device; equal numbers make equal programs with equal weights."""

    def __init__(self, number: int) -> None:
        dice = random.Random(number)
        self.kind = dice.choice(tuple(TRUNKS))
        torch.manual_seed(number)
        self.body = nn.Sequential(*TRUNKS[self.kind](dice))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.model = nn.ModuleList([self.body, self.head]).to(XLA)
        self.loss_kind = dice.choice(("cross entropy", "smoothed", "mean square", "huber", "binary"))
        self._take_optimizer(dice)
        self.clip = dice.choice((None, None, "norm", "value"))
        self.micro_batches = dice.choice((1, 1, 1, 2))
        self.average = copy.deepcopy(self.model) if dice.random() < 0.2 else None
        self.autocast, self.checkpoint = dice.random() < 0.25, dice.random() < 0.15
        self.zero_first, self.to_none = dice.random() < 0.3, dice.random() < 0.8
        self.penalty, self.noise = dice.random() < 0.15, dice.random() < 0.15
        self.returned = dice.choice(("loss", "dictionary", "outputs"))
        self.evaluates, self.last_is_smaller = dice.random() < 0.25, dice.random() < 0.2

    def _take_optimizer(self, dice: random.Random) -> None:
        kind, options = dice.choice(OPTIMIZERS)
        groups: Any = self.model.parameters()
        if dice.random() < 0.3:
            groups = [{"params": self.body.parameters()}, {"params": self.head.parameters(), "lr": 0.02}]
        if dice.random() < 0.15:
            next(self.body.parameters()).requires_grad_(requires_grad=False)
        self.optimizer = kind(groups, **options)
        schedule = dice.choice(SCHEDULES)
        self.scheduler = schedule(self.optimizer) if schedule else None

    def batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(1)
        found = []
        for i in range(CALLS):
            size = 4 if self.last_is_smaller and i % 7 == 6 else 8
            shape = {"vectors": (size, WIDTH), "tokens": (size, TOKENS), "images": (size, 2, 4, 4)}[self.kind]
            x = torch.randint(16, shape, generator=generator)
            x = x if self.kind == "tokens" else x / 8 - 1 + torch.randn(shape, generator=generator) / 8
            found.append((x.to(XLA), torch.randint(CLASSES, (size,), generator=generator).to(XLA)))
        return found

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        if self.noise and self.kind != "tokens":
            x = x + 0.1 * torch.randn_like(x)
        with torch.autocast("xla", dtype=torch.bfloat16, enabled=self.autocast):
            if self.checkpoint and self.model.training:
                first = self.body[0](x)
                return self.head(checkpoint(self.body[1:], first, use_reentrant=False))
            return self.head(self.body(x))

    def loss(self, y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        y = y.float()
        hot = F.one_hot(labels, CLASSES).float()
        losses: dict[str, Callable] = {
            "cross entropy": lambda: F.cross_entropy(y, labels),
            "smoothed": lambda: F.cross_entropy(y, labels, label_smoothing=0.1),
            "mean square": lambda: F.mse_loss(y, hot),
            "huber": lambda: F.huber_loss(y, hot, delta=0.5),
            "binary": lambda: F.binary_cross_entropy_with_logits(y, hot),
        }
        found = losses[self.loss_kind]()
        if self.penalty:
            found = found + 1e-3 * sum(p.square().sum() for p in self.model.parameters())
        return found

    def step(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        if self.zero_first:
            self.optimizer.zero_grad(set_to_none=self.to_none)
        found: dict[str, Any] = {}
        for part, part_labels in zip(x.chunk(self.micro_batches), labels.chunk(self.micro_batches), strict=True):
            found["outputs"] = self.outputs(part)
            found["loss"] = self.loss(found["outputs"], part_labels) / self.micro_batches
            found["loss"].backward()
        if self.clip == "norm":
            found["norm"] = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        elif self.clip == "value":
            nn.utils.clip_grad_value_(self.model.parameters(), 0.05)
        self.optimizer.step()
        if not self.zero_first:
            self.optimizer.zero_grad(set_to_none=self.to_none)
        if self.average is not None:
            with torch.no_grad():
                for slow, fast in zip(self.average.parameters(), self.model.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)
        return found if self.returned == "dictionary" else found.get(self.returned, found["loss"])

    def evaluation(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.outputs(x).float().softmax(-1)

    def state(self) -> list[torch.Tensor]:
        modules = [self.model] + ([self.average] if self.average is not None else [])
        found = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        found += [p.grad for p in self.model.parameters() if p.grad is not None]
        for state in self.optimizer.state.values():
            found += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return found
