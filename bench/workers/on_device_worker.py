"""Milliseconds and graphs of each step of small programs. Run by on_device_steps.py, with torch_xla.

ENVIRONMENT/bin/python bench/workers/on_device_worker.py
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn
from torch_xla.debug import metrics

STEPS = 100


def segmentation() -> Callable[[], object]:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Upsample(scale_factor=3, mode="bilinear"),
        nn.Conv2d(16, 5, 1),
        nn.Upsample(size=(64, 64), mode="bilinear"),
    ).to("xla")
    images, labels = torch.rand(4, 3, 64, 64).to("xla"), torch.randint(5, (4, 64, 64)).to("xla")
    return trained(net, lambda: nn.functional.cross_entropy(net(images), labels))


def trained(net: Any, loss_of: Callable[[], Any]) -> Callable[[], object]:
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def step() -> object:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return step


def sampling() -> Callable[[], object]:
    embedding, head = nn.Embedding(1000, 64).to("xla"), nn.Linear(64, 1000).to("xla")
    token = torch.zeros(8, 1, dtype=torch.int64).to("xla")

    def step() -> object:
        with torch.no_grad():
            chances = head(embedding(token)[:, 0]).softmax(-1)
            token.copy_(torch.multinomial(chances, 2)[:, :1])
        return token

    return step


def sampled(count: int, samples: int) -> Callable[[], object]:
    weights = torch.rand(8, count).to("xla")
    return lambda: torch.multinomial(weights * 2, samples)


def poisson() -> Callable[[], object]:
    net, x = nn.Linear(16, 8).to("xla"), torch.rand(8, 16).to("xla")

    def step() -> object:
        with torch.no_grad():
            return torch.poisson(net(x).exp())

    return step


def counted() -> Callable[[], object]:
    router, x = nn.Linear(16, 8).to("xla"), torch.rand(1000, 16).to("xla")

    def step() -> object:
        with torch.no_grad():
            return torch.bincount(router(x).argmax(-1), minlength=8)

    return step


def ctc() -> Callable[[], object]:
    net = nn.Linear(32, 20).to("xla")
    sounds, targets = torch.rand(40, 8, 32).to("xla"), torch.randint(1, 20, (8, 12)).to("xla")
    return trained(
        net, lambda: nn.functional.ctc_loss(net(sounds).log_softmax(-1), targets, [40] * 8, list(range(5, 13)))
    )


def warped() -> Callable[[], object]:
    net = nn.Linear(8, 6).to("xla")
    images, features = torch.rand(8, 3, 32, 32).to("xla"), torch.rand(8, 8).to("xla")

    def loss() -> Any:
        grid = nn.functional.affine_grid(net(features).reshape(8, 2, 3), [8, 3, 32, 32], align_corners=False)
        return nn.functional.grid_sample(images, grid, align_corners=False).square().mean()

    return trained(net, loss)


PROGRAMS = {
    "a segmentation net with bilinear upsampling": segmentation,
    "a sampled token, `multinomial` of two": sampling,
    "`multinomial` of 2 of 1,000": lambda: sampled(1000, 2),
    "`multinomial` of 50 of 1,000": lambda: sampled(1000, 50),
    "`multinomial` of 2 of 32,000": lambda: sampled(32000, 2),
    "64 counts, `poisson`": poisson,
    "1,000 choices of 8 experts, `bincount`": counted,
    "a step with `ctc_loss`": ctc,
    "a step with `grid_sample`": warped,
}


def measure() -> dict[str, dict[str, float]]:
    found = {}
    for name, program in PROGRAMS.items():
        torch.manual_seed(0)
        step = program()

        def timed(step: Callable[[], object] = step) -> float:
            begin = time.perf_counter()
            result = step()
            torch_xla.sync(wait=True)
            xm.wait_device_ops()
            del result
            return (time.perf_counter() - begin) * 1000

        for _ in range(5):
            timed()
        metrics.clear_all()
        times = [timed() for _ in range(STEPS)]
        runs = metrics.metric_data("ExecuteTime")
        found[name] = {"graphs": (runs[0] if runs else 0) / STEPS, "milliseconds": statistics.median(times)}
    return found


if __name__ == "__main__":
    print(json.dumps(measure()))
