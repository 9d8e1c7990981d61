"""A small GPT, trained with 64 micro-batches a step in five ways. Run by training.py with patched wheels.

python training_gpt.py losses KIND STEPS SEED…   for each seed a line of JSON: its losses
python training_gpt.py gradients SEED…           for each seed a line of JSON: errors of gradients
python training_gpt.py check                     a line of JSON: errors of the gradients of a smaller model
python training_gpt.py tpu KIND FOLDER           writes a larger model's micro-step and optimizer step as StableHLO

The text comes from a small grammar, new at each step, so a step's loss is one of text that was not seen before. All
kinds of one seed begin with the same weights and see the same text.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_DEVICE", "CPU")

import torch
import torch_xla
from torch import nn
from torch.nn import functional
from torch_xla.amp import MasterWeights, wide_grads

ALPHABET = " .,+=?0123456789abcdefghijklmnopqrstuvwxyz"
MICRO_BATCHES = 64
NUMBERS = (1, 4, 16, 64)
KINDS = ("float32", "bfloat16", "masters", "buffer", "wide")
GRADIENTS = ("float32", "bfloat16", "buffer", "wide")  # masters has bfloat16's
RATE, WARM_UP = 3e-3, 5


@dataclass(frozen=True)
class Size:
    """Of a model and of a micro-batch."""

    width: int
    depth: int
    heads: int
    sequences: int
    length: int
    vocabulary: int = len(ALPHABET)


SMALL = Size(width=64, depth=4, heads=4, sequences=1, length=32)
CHECK = Size(width=32, depth=1, heads=2, sequences=2, length=16)
TPU = Size(width=1024, depth=1, heads=16, sequences=8, length=512, vocabulary=1024)


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and beside a residual path."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv, self.out = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Characters to the logits of the next ones."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding, self.positions = (
            nn.Embedding(size.vocabulary, size.width),
            nn.Embedding(size.length, size.width),
        )
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.depth))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary)
        self.register_buffer("places", torch.arange(size.length))
        for name, p in self.named_parameters():
            if p.dim() == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * size.depth) if residual else 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions(self.places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean of a micro-batch, sequences × (length + 1), in the logits' dtype or float32."""
        logits = self(tokens[:, :-1]).flatten(0, 1)
        return functional.cross_entropy(
            logits if logits.dtype == torch.float64 else logits.float(), tokens[:, 1:].flatten()
        )


def sentences(seed: int) -> Iterator[str]:
    """Sentences with what a model can learn by degrees: spelling, agreement in number, copying, and sums."""
    draw = random.Random(seed)
    names = ("anna", "boris", "clara", "dmitri", "edith", "farid", "greta", "hugo")
    nouns = ("dog", "cat", "farmer", "teacher", "river", "stone", "garden", "letter", "window", "machine")
    verbs = ("see", "follow", "like", "hear", "find", "need", "draw", "cover")
    adjectives = ("small", "old", "quiet", "green", "heavy", "strange")
    while True:
        form = draw.randrange(3)
        if form == 0:
            a, b = draw.randrange(50), draw.randrange(50)
            yield f"{a}+{b}={a + b}. "
        elif form == 1:
            first, second = draw.sample(names, 2)
            verb = draw.choice(verbs)
            yield f"does {first} {verb} {second}? yes, {first} {verb}s {second}. "
        else:
            many = draw.random() < 0.5
            subject, verb = draw.choice(nouns) + "s" * many, draw.choice(verbs) + "s" * (not many)
            yield f"the {draw.choice(adjectives)} {subject} {verb} a {draw.choice(adjectives)} {draw.choice(nouns)}. "


def micro_batches(seed: int, size: Size) -> Iterator[torch.Tensor]:
    """Tokens, sequences × (length + 1), of a text without end."""
    wanted, text = size.sequences * (size.length + 1), ""
    for sentence in sentences(seed):
        text += sentence
        while len(text) >= wanted:
            yield torch.tensor([ALPHABET.index(c) for c in text[:wanted]]).view(size.sequences, -1)
            text = text[wanted:]


@dataclass
class Training:
    """A way of training a model that is on XLA."""

    model: GPT
    leaves: list[torch.Tensor]  # what has the accumulated gradients, in the order of the parameters
    optimizer: torch.optim.Optimizer
    step: Callable[[], Any]


def training(kind: str, model: GPT) -> Training:
    """``model``, whose weights are float32 and on the CPU, made to be trained in this way."""
    model = copy.deepcopy(model).to(torch.float32 if kind == "float32" else torch.bfloat16).to("xla")
    weights = list(model.parameters())
    options: dict[str, Any] = {"lr": RATE, "betas": (0.9, 0.95)}
    if kind == "buffer":
        return with_buffers(model, weights, options)
    if kind == "wide":
        wide_grads(model)
    if kind in {"wide", "masters"}:
        optimizer: torch.optim.Optimizer = MasterWeights(weights, torch.optim.AdamW, **options)
    else:
        optimizer = torch.optim.AdamW(weights, **options)

    def step() -> None:
        optimizer.step()  # looked up each time: a scheduler replaces it

    return Training(model, weights, optimizer, step)


def with_buffers(model: GPT, weights: list[torch.Tensor], options: dict[str, Any]) -> Training:
    """What people write by hand: float32 copies, whose gradients are buffers that hooks add to."""
    copies = [w.detach().float() for w in weights]
    optimizer = torch.optim.AdamW(copies, **options)

    def add_to(buffer_of: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def hook(weight: torch.Tensor) -> None:
            buffer_of.grad += weight.grad.float()
            weight.grad = None

        return hook

    for weight, its_copy in zip(weights, copies, strict=True):
        weight.register_post_accumulate_grad_hook(add_to(its_copy))

    @torch.no_grad()
    def step() -> None:
        optimizer.step()
        for weight, its_copy in zip(weights, copies, strict=True):
            weight.copy_(its_copy)

    return Training(model, copies, optimizer, step)


def accumulate(trained: Training, tokens: torch.Tensor, total: torch.Tensor) -> None:
    """A micro-step: its gradients are added to those of the leaves, and its loss to ``total``."""
    loss = trained.model.loss(tokens)
    (loss / MICRO_BATCHES).backward()
    total += loss.detach()


def zeros(trained: Training, kind: str) -> list[torch.Tensor]:
    """What a step begins with: a loss and gradients, of the dtype that they accumulate in."""
    dtype = torch.bfloat16 if kind in {"bfloat16", "masters"} else torch.float32
    return [torch.zeros((), device="xla"), *(torch.zeros(p.shape, dtype=dtype, device="xla") for p in trained.leaves)]


class MicroStep:
    """A micro-step that is traced once and then run by the key of its graph: tracing would take most of the time.

    It is the graph that torch_xla makes of ``accumulate``; torch.compile's bridge to XLA runs graphs in this way.
    """

    def __init__(self, trained: Training, kind: str, tokens: torch.Tensor) -> None:
        self.weights = list(trained.model.parameters())
        self.start = zeros(trained, kind)
        total, *gradients = zeros(trained, kind)
        tokens = tokens.to("xla")
        self._give(trained, gradients)
        torch_xla.sync(wait=True)
        known = [*self.weights, tokens, total, *gradients]
        places = {torch_xla._XLAC._xla_get_tensor_id(t): i for i, t in enumerate(known)}
        accumulate(trained, tokens, total)
        results = [total, *(p.grad for p in trained.leaves)]
        ids, values = torch_xla._XLAC._get_tensors_xla_device_data_node(results)
        self.inputs = [(places.get(i), value) for i, value in zip(ids, values, strict=True)]
        if missing := set(range(len(known))) - {place for place, _ in self.inputs}:
            raise RuntimeError(f"expected a graph that reads all weights and accumulators, found one without {missing}")
        self.key = torch_xla._XLAC._get_graph_hash(results)
        torch_xla._XLAC._xla_warm_up_cache(results, [])
        self._give(trained, [None] * len(trained.leaves))

    @staticmethod
    def _give(trained: Training, gradients: Sequence[torch.Tensor | None]) -> None:
        for p, grad in zip(trained.leaves, gradients, strict=True):
            p.grad = grad

    def __call__(self, tokens: torch.Tensor, state: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the loss and the gradients after one more micro-batch."""
        known = [*self.weights, tokens.to("xla"), *state]
        arguments = [value if place is None else known[place] for place, value in self.inputs]
        return list(torch_xla._XLAC._run_cached_graph(self.key, arguments))


def rate(step: int, steps: int) -> float:
    """Of the learning rate: a short rise, and half a cosine down to a tenth."""
    after = max(0, step - WARM_UP) / max(1, steps - WARM_UP)
    return min(1.0, (step + 1) / WARM_UP) * (0.55 + 0.45 * math.cos(math.pi * after))


def losses(kind: str, model: GPT, seed: int, steps: int, size: Size = SMALL) -> tuple[list[float], GPT]:
    """The loss of each step, a mean over its micro-batches, and the trained model."""
    trained, text = training(kind, model), micro_batches(seed, size)
    micro_step = MicroStep(trained, kind, next(text))
    schedule = torch.optim.lr_scheduler.LambdaLR(trained.optimizer, lambda step: rate(step, steps))
    found = []
    for _ in range(steps):
        state = micro_step.start
        for _ in range(MICRO_BATCHES):
            state = micro_step(next(text), state)
        for p, grad in zip(trained.leaves, state[1:], strict=True):
            p.grad = grad
        trained.step()
        schedule.step()
        trained.optimizer.zero_grad()
        torch_xla.sync()
        found.append(round(state[0].item() / MICRO_BATCHES, 6))
    return found, trained.model


def sums(kind: str, model: GPT, batches: list[torch.Tensor], *, apart: bool = False) -> dict[int, list[torch.Tensor]]:
    """The gradients after some numbers of micro-batches, float64 on the CPU.

    With ``apart`` each micro-batch has a gradient of its own, and float64 adds them.
    """
    trained = training(kind, model)
    micro_step = MicroStep(trained, kind, batches[0])
    state, found = micro_step.start, {}
    exact = [torch.zeros(p.shape, dtype=torch.float64) for p in trained.leaves]
    for number, tokens in enumerate(batches, 1):
        state = micro_step(tokens, micro_step.start if apart else state)
        if apart:
            exact = [total + grad.cpu().double() for total, grad in zip(exact, state[1:], strict=True)]
        if number in NUMBERS:
            found[number] = exact if apart else [grad.cpu().double() for grad in state[1:]]
    return found


def exact_sums(model: GPT, batches: list[torch.Tensor]) -> dict[int, list[torch.Tensor]]:
    """The same of a float64 model on the CPU."""
    model, found = copy.deepcopy(model).double(), {}
    for number, tokens in enumerate(batches, 1):
        (model.loss(tokens) / MICRO_BATCHES).backward()
        if number in NUMBERS:
            found[number] = [p.grad.clone() for p in model.parameters()]
    return found


def part(name: str) -> str:
    """Which part of the model a parameter is of."""
    return f"block {int(name.split('.')[1]) + 1}" if name.startswith("blocks") else "ends"


def errors(model: GPT, found: list[torch.Tensor], exact: list[torch.Tensor]) -> dict[str, float]:
    """The relative error of all gradients, and of those of each part of the model."""
    squares: dict[str, list[float]] = {}
    for (name, _), a, b in zip(model.named_parameters(), found, exact, strict=True):
        for key in ("all", part(name)):
            total = squares.setdefault(key, [0.0, 0.0])
            total[0] += (a - b).square().sum().item()
            total[1] += b.square().sum().item()
    return {key: float(f"{math.sqrt(wrong / right):.3e}") for key, (wrong, right) in squares.items()}


def gradient_errors(model: GPT, batches: list[torch.Tensor]) -> dict[str, dict[str, Any]]:
    """Errors of the sums of gradients of each kind, at the same weights, which are bfloat16 numbers.

    "network": against a float64 network. "sum": against a float64 sum of the float32 gradients that each micro-batch
    has in the same bfloat16 network, so of nothing but how gradients are made and added.
    """
    model = copy.deepcopy(model).bfloat16().float()
    network, of_bfloat16 = exact_sums(model, batches), sums("wide", model, batches, apart=True)
    found: dict[str, dict[str, Any]] = {"network": {}, "sum": {}}
    for kind in GRADIENTS:
        gradients = sums(kind, model, batches)
        for against, exact in (("network", network), ("sum", of_bfloat16)):
            if (kind, against) != ("float32", "sum"):
                found[against][kind] = {n: errors(model, gradients[n], exact[n]) for n in gradients}
    return found


def of_seed(seed: int, size: Size) -> GPT:
    torch.manual_seed(seed)
    return GPT(size)


def report(**found: object) -> None:
    print(json.dumps(found), flush=True)


def write_tpu_programs(kind: str, folder: Path) -> None:
    """A micro-step and an optimizer step, neither of which is run."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from castoff.tpu.trace import program_of

    trained = training(kind, of_seed(0, TPU))

    def give_gradients() -> torch.Tensor:
        total, *gradients = zeros(trained, kind)
        for p, grad in zip(trained.leaves, gradients, strict=True):
            p.grad = grad
        torch_xla.sync()
        return total

    give_gradients()
    trained.step()  # which makes the optimizer's state
    total = give_gradients()
    tokens = torch.zeros(TPU.sequences, TPU.length + 1, dtype=torch.long).to("xla")
    torch_xla.sync()
    accumulate(trained, tokens, total)
    (folder / "micro-step").write_bytes(program_of([total, *(p.grad for p in trained.leaves)])[0])
    del total  # or the next sync computes it
    give_gradients()
    trained.step()
    states = [t for state in trained.optimizer.state.values() for t in state.values()]
    candidates = [*trained.model.parameters(), *trained.leaves, *states]
    tensors = {id(t): t for t in candidates if isinstance(t, torch.Tensor) and t.device.type == "xla"}
    (folder / "optimizer step").write_bytes(program_of(list(tensors.values()))[0])


def main() -> None:
    what, *arguments = sys.argv[1:]
    torch_xla.device()  # before a backward pass on the CPU: autograd counts the devices at its first
    if what == "losses":
        kind, steps, *seeds = arguments
        for seed in map(int, seeds):
            report(seed=seed, losses=losses(kind, of_seed(seed, SMALL), seed, int(steps))[0])
    elif what == "gradients":
        for seed in map(int, arguments):
            _, trained = losses("float32", of_seed(seed, SMALL), seed, 10)
            text = micro_batches(1000 + seed, SMALL)
            report(seed=seed, errors=gradient_errors(trained.cpu(), [next(text) for _ in range(MICRO_BATCHES)]))
    elif what == "check":
        text = micro_batches(0, CHECK)
        report(errors=gradient_errors(of_seed(0, CHECK), [next(text) for _ in range(MICRO_BATCHES)]))
    else:
        kind, folder = arguments
        write_tpu_programs(kind, Path(folder))
        report()


if __name__ == "__main__":
    main()
