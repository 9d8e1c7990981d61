"""A bfloat16 transformer with float32 weight gradients, on all devices of a slice, that survives being killed.

    PJRT_DEVICE=CPU CPU_NUM_DEVICES=4 python examples/cluster/train.py --checkpoints DIR --steps 40

The same program runs on every host; jobset.yaml, slurm.sbatch and ssh.sh beside it start it. One SPMD program
spans all devices: the batch is split over them, and so is each weight, its gradient and its optimizer state.
Every few steps all of it goes to --checkpoints, a folder that all hosts see, by torch.distributed.checkpoint.
Started again with the same arguments it goes on from the newest whole checkpoint, and its losses are those of a
run that was never interrupted: DIR/loss.jsonl has one line for each step.
"""

import argparse
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.distributed.xla_backend  # registers xla://
import torch_xla.runtime as xr
from torch.nn import functional
from torch_xla.amp import wide_grads
from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner

VOCABULARY, LENGTH = 64, 32
KEPT = 2  # checkpoints: the newest may be the one that a kill cuts short


class Block(torch.nn.Module):
    """One layer of the transformer: causal attention, then two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_hidden = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.projections = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.hidden = torch.nn.Linear(width, 4 * width, bias=False)
        self.back = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        projected = self.projections(self.before_attention(x)).unflatten(2, (3, self.heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.back(functional.gelu(self.hidden(self.before_hidden(x))))


class Transformer(torch.nn.Module):
    """Predicts the next token. Shards its activations, as the sharding of the weights says too little of them."""

    def __init__(self, width: int, layers: int, heads: int, mesh: xs.Mesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.tokens, self.places = torch.nn.Embedding(VOCABULARY, width), torch.nn.Embedding(LENGTH, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens (batch, length) to logits (batch, length, vocabulary) in float32."""
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            xs.mark_sharding(x, self.mesh, ("data", None, None))
            x = block(x)
        return self.head(self.norm(x)).float()


class Training:
    """The weights, twice, and the optimizer.

    A step of 1e-3 of a bfloat16 number rounds to nothing, so the optimizer has float32 copies of the weights.
    """

    def __init__(self, width: int, layers: int, heads: int, mesh: xs.Mesh) -> None:
        torch.manual_seed(0)
        model = Transformer(width, layers, heads, mesh)
        masters = [weight.detach().clone() for weight in model.parameters()]
        self.model = model.bfloat16().to("xla")
        wide_grads(self.model)
        self.weights = list(self.model.parameters())
        self.masters = [torch.nn.Parameter(master.to("xla")) for master in masters]
        self.moments = [torch.zeros_like(master) for master in masters for _ in range(2)]
        self.moments = [moment.to("xla") for moment in self.moments]
        for tensor in (*self.weights, *self.masters, *self.moments):
            xs.mark_sharding(tensor, mesh, ("data", *[None] * (tensor.dim() - 1)))
        self.optimizer = torch.optim.AdamW(self.masters, lr=3e-3)
        for number, master in enumerate(self.masters):
            self.optimizer.state[master] = {
                "step": torch.zeros(()),
                "exp_avg": self.moments[2 * number],
                "exp_avg_sq": self.moments[2 * number + 1],
            }
        # Of one process, a steady step is not traced again. Several trace each step.
        self.run = torch_xla.replay(self.traced_step) if is_alone() else self.traced_step
        torch_xla.sync()

    def step(self, tokens: torch.Tensor) -> float:
        """Take one step and return the loss before it."""
        loss = self.run(tokens)
        if not is_alone():
            torch_xla.sync()  # as a replayed step does
        return loss.item()

    def traced_step(self, tokens: torch.Tensor) -> torch.Tensor:
        """The step, whose graph runs when it is over."""
        logits = self.model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        for master, weight in zip(self.masters, self.weights, strict=True):
            assert weight.grad.dtype == torch.float32
            master.grad = weight.grad
        self.optimizer.step()
        with torch.no_grad():
            for master, weight in zip(self.masters, self.weights, strict=True):
                weight.copy_(master)
        self.optimizer.zero_grad()
        self.model.zero_grad()
        return loss

    def state(self, step: int) -> dict[str, object]:
        """What a checkpoint holds: everything but the weights, which are the masters rounded."""
        tensors = {f"master.{number}": master.detach() for number, master in enumerate(self.masters)}
        tensors |= {f"moment.{number}": moment for number, moment in enumerate(self.moments)}
        return {**tensors, "step": step}

    def restore(self, folder: Path) -> int:
        """Take everything from a checkpoint, and return how many steps had been taken."""
        state = self.state(0)
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder), planner=SPMDLoadPlanner(), no_dist=is_alone())
        with torch.no_grad():
            for number, (master, weight) in enumerate(zip(self.masters, self.weights, strict=True)):
                master.copy_(state[f"master.{number}"])
                weight.copy_(master)
        for number, moment in enumerate(self.moments):
            moment.copy_(state[f"moment.{number}"])
        for known in self.optimizer.state.values():
            known["step"].fill_(float(state["step"]))
        torch_xla.sync()
        return state["step"]


def is_alone() -> bool:
    """Whether this is the only process: one host, or devices of the CPU."""
    return xr.process_count() == 1


def batch(step: int, size: int, mesh: xs.Mesh) -> torch.Tensor:
    """The tokens of a step, the same in each run: sequences that go up by a constant.

    Here every host makes the whole batch. Where that is too much, let each read its own rows and give them to
    torch_xla.distributed.spmd.ShardingSpec(…, minibatch=True).
    """
    random = torch.Generator().manual_seed(step)
    start, stride = torch.randint(0, VOCABULARY, (2, size, 1), generator=random)
    tokens = ((start + stride * torch.arange(LENGTH + 1)) % VOCABULARY).to("xla")
    xs.mark_sharding(tokens, mesh, ("data", None))
    return tokens


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints, oldest first. torch writes .metadata last and by one rename."""
    return sorted(path.parent for path in folder.glob("step-*/.metadata"))


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint, the same on all hosts: the first one looks, as a shared folder may lag."""
    found = [next(reversed(checkpoints(folder)), None)]
    if not is_alone():
        dist.broadcast_object_list(found, src=0)
    return found[0]


def save(training: Training, step: int, folder: Path) -> None:
    """Write a checkpoint, each host its own shards, and let go of old ones."""
    target = folder / f"step-{step:08}"
    writer = dcp.FileSystemWriter(target)
    dcp.save(training.state(step), storage_writer=writer, planner=SPMDSavePlanner(), no_dist=is_alone())
    if xr.process_index() == 0:
        for old in checkpoints(folder)[:-KEPT]:
            shutil.rmtree(old)


def curve(file: Path, start: int) -> Iterator[None]:
    """Write the losses that are sent to it to a file, a JSON line each, after those of the steps before start."""
    before = file.read_text(encoding="utf-8").splitlines()[:start] if file.exists() else []
    with file.open("w", encoding="utf-8") as out:
        out.writelines(f"{line}\n" for line in before)
        for step in itertools.count(start):
            loss = yield
            line = json.dumps({"step": step, "loss": loss})
            out.write(f"{line}\n")
            out.flush()
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all hosts see")
    parser.add_argument("--steps", type=int, default=200, help="how many in all (%(default)s)")
    parser.add_argument("--every", type=int, default=10, help="steps from one checkpoint to the next (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="sequences in a step, on all devices (%(default)s)")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    options = parser.parse_args()

    xr.use_spmd()
    if not is_alone():
        dist.init_process_group("gloo", init_method="xla://")
    devices = xr.global_runtime_device_count()
    mesh = xs.Mesh(np.arange(devices), (devices,), ("data",))
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    training = Training(options.width, options.layers, options.heads, mesh)
    found = newest(options.checkpoints)
    start = training.restore(found) if found else 0
    is_first = xr.process_index() == 0
    if is_first:
        print(f"{devices} devices, {xr.process_count()} processes, from step {start}", flush=True)
        losses = curve(options.checkpoints / "loss.jsonl", start)
        next(losses)
    heartbeat = os.environ.get("CASTOFF_HEARTBEAT")
    for step in range(start, options.steps):
        loss = training.step(batch(step, options.batch, mesh))
        if heartbeat:
            Path(heartbeat).touch()  # the image's health check looks at it
        if is_first:
            losses.send(loss)
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            save(training, step + 1, options.checkpoints)


if __name__ == "__main__":
    main()
