"""The host's processor time for a step, traced or replayed, in ms: the least of 40 calls.

Run by step_replay.py, with torch_xla or jax.

python step_replay_worker.py gpt traced       (or replayed; gpt, llama, bert, resnet, decode)
python step_replay_worker.py 600 jax          what jax.jit takes to dispatch a step of as many arrays
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

WARM, CALLS = 5, 40
WIDTH, HEADS, TOKENS, BATCH, WORDS = 64, 4, 16, 2, 128


def attention(qkv: Any, causal: bool) -> Any:
    from torch.nn import functional

    q, k, v = qkv.view(BATCH, -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)


def transformer(layers: int, norm: str, gated: bool, causal: bool, dropout: float) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = (getattr(nn, norm)(WIDTH) for _ in range(2))
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.gate = nn.Linear(WIDTH, 4 * WIDTH) if gated else None
            self.drop = nn.Dropout(dropout)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.drop(self.out(attention(self.qkv(self.n1(x)), causal)))
            h = self.n2(x)
            h = functional.silu(self.gate(h)) * self.up(h) if gated else functional.gelu(self.up(h))
            return x + self.drop(self.down(h))

    blocks = [Block() for _ in range(layers)]
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, getattr(nn, norm)(WIDTH), nn.Linear(WIDTH, WORDS))


def resnet50() -> Any:
    import torch
    from torch import nn

    class Bottleneck(nn.Module):
        def __init__(self, before: int, width: int, stride: int) -> None:
            super().__init__()
            shapes = ((before, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
            layers: list[nn.Module] = []
            for i, (inner, outer, size, step) in enumerate(shapes):
                layers += [nn.Conv2d(inner, outer, size, step, size // 2, bias=False), nn.BatchNorm2d(outer)]
                layers += [nn.ReLU()] if i < 2 else []
            self.body = nn.Sequential(*layers)
            self.short: nn.Module = nn.Identity()
            if stride > 1 or before != 4 * width:
                projection = nn.Conv2d(before, 4 * width, 1, stride, bias=False)
                self.short = nn.Sequential(projection, nn.BatchNorm2d(4 * width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.body(x) + self.short(x))

    width, layers = 8, [nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    for stage, count in enumerate((3, 4, 6, 3)):
        for i in range(count):
            layers.append(Bottleneck(width, 8 << stage, 2 if stage and not i else 1))
            width = 4 * (8 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def training(model: Any, optimizer: Any, batch: tuple) -> tuple[Callable, Callable[[], tuple]]:
    from torch.nn import functional

    def step(x: Any, y: Any) -> Any:
        loss = functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, lambda: tuple(tensor.to("xla") for tensor in batch)


def decoding() -> tuple[Callable, Callable[[], tuple]]:
    import torch

    weights = [torch.randn(WIDTH, WIDTH).to("xla") for _ in range(8)]
    caches = [torch.zeros(TOKENS, WIDTH).to("xla") for _ in range(8)]
    positions = iter(range(1 << 30))

    def step(x: Any, position: Any) -> Any:
        for weight, cache in zip(weights, caches, strict=True):
            cache.index_copy_(0, position, x @ weight)
            x = torch.softmax(x @ cache.t(), -1) @ cache
        return x

    return step, lambda: (torch.ones(1, WIDTH).to("xla"), torch.tensor([next(positions) % TOKENS]).to("xla"))


def program(name: str) -> tuple[Callable, Callable[[], tuple]]:
    import torch

    torch.manual_seed(0)
    words = tuple(torch.randint(WORDS, (BATCH, TOKENS)) for _ in range(2))
    if name == "decode":
        return decoding()
    if name == "resnet":
        model = resnet50().to("xla")
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return training(model, optimizer, (torch.randn(2, 3, 16, 16), torch.randint(10, (2,))))
    forms = {
        "gpt": (12, "LayerNorm", False, True, 0.0),
        "llama": (8, "RMSNorm", True, True, 0.0),
        "bert": (8, "LayerNorm", False, False, 0.1),
    }
    model = transformer(*forms[name]).to("xla")
    return training(model, torch.optim.AdamW(model.parameters(), lr=1e-3), words)


def of_torch(name: str, mode: str) -> dict[str, float]:
    import host_time
    import torch_xla
    import torch_xla.core.xla_model as xm

    step, batch = program(name)
    replayed = torch_xla.replay(step) if mode == "replayed" else None
    seconds, loss = [], None
    for i in range(WARM + CALLS):
        arguments = batch()
        torch_xla._XLAC._xla_wait_device_ops([])
        if replayed is None:
            cost, loss = host_time.of_step(lambda values=arguments: step(*values), torch_xla.sync)
        else:
            cost, loss = host_time.of_step(lambda: None, lambda values=arguments: replayed(*values))
        if i >= WARM:
            seconds.append(cost)
        xm.wait_device_ops()
    found = {"ms": min(seconds) * 1e3, "last": loss.float().sum().item()}
    if replayed is not None:
        report = replayed.report()
        assert report["replayed"] >= CALLS, report
        found["arrays"] = report["inputs"]
    return found


def of_jax(arrays: int) -> dict[str, float]:
    import jax

    step = jax.jit(lambda xs: [x + 1 for x in xs], donate_argnums=0)
    xs = [jax.numpy.ones((4, 4)) for _ in range(arrays)]
    seconds = []
    for _ in range(WARM + CALLS):
        started = time.thread_time()
        xs = step(xs)
        seconds.append(time.thread_time() - started)
        jax.block_until_ready(xs)
    return {"ms": min(seconds[WARM:]) * 1e3}


if __name__ == "__main__":
    what, how = sys.argv[1:]
    print(json.dumps(of_jax(int(what)) if how == "jax" else of_torch(what, how)))
