"""A two-layer transformer's training step, whose casts the tests and bench/exact_casts.py count.

``python small_transformer.py FILE [bfloat16]`` takes a step of one layer, under autocast or of a bfloat16 model,
and saves its loss and gradients.
"""

import os
import re
import sys

os.environ.setdefault("PJRT_DEVICE", "CPU")

import torch
import torch_xla
from ir_text import ir
from torch import nn
from torch.nn import functional

WIDTH, HEADS, TOKENS = 64, 4, 100
_CAST = re.compile(r"^(%\d+) = (\w+)\[.*?\] xla::cast\((%\d+)\)$")
_VIEW = re.compile(r"^(%\d+) = .* (?:aten::(?:permute|view|expand|split)|xla::(?:select|generic_slice))\((%\d+)\)$")
_DTYPE = re.compile(r"^(%\d+) = (\w+)\[")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


def model_and_data(dtype=torch.float32, layers=2):
    """A model, its input and its target on XLA, the same in every process."""
    torch.manual_seed(0)
    model = Transformer(layers).to("xla").to(dtype)
    tokens, target = torch.randint(0, TOKENS, (2, 4, 16)).to("xla")
    tokens, target = tokens.clone(), target.clone()
    torch_xla.sync()
    return model, tokens, target


def loss_of(model, tokens, target, amp=False):
    with torch.autocast("xla", dtype=torch.bfloat16, enabled=amp):
        return functional.cross_entropy(model(tokens).flatten(0, 1), target.flatten())


def gradients(model):
    return [p.grad for p in model.parameters()]


def casts(*tensors):
    """How many casts their pending IR has."""
    return ir(*tensors).count("xla::cast")


def round_trips(*tensors):
    """How many casts lead, across views, back to the type that a cast has just left."""
    dtypes, sources, operands = {}, {}, {}
    for line in ir(*tensors).splitlines():
        if match := _DTYPE.match(line):
            dtypes[match[1]] = match[2]
        if match := _CAST.match(line):
            sources[match[1]] = match[3]
        elif match := _VIEW.match(line):
            operands[match[1]] = match[2]
    count = 0
    for cast, operand in sources.items():
        source = operand
        while source in operands:
            source = operands[source]
        count += source in sources and dtypes[sources[source]] == dtypes[cast]
    return count


def main(path, dtype="float32"):
    model, *data = model_and_data(getattr(torch, dtype), layers=1)
    loss = loss_of(model, *data, amp=dtype == "float32")
    loss.backward()
    counts = {"round trips": round_trips(loss, *gradients(model)), "casts": casts(loss, *gradients(model))}
    torch.save({"values": [t.detach().cpu() for t in (loss, *gradients(model))], **counts}, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
