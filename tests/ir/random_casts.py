"""Random programs of casts, views, in-place writes and arithmetic, for a comparison between processes.

``python random_casts.py FILE FIRST COUNT`` runs the programs of the seeds FIRST, FIRST+1, … and pickles, for
each, dtype, shape and bytes of every tensor of it, and how many casts their IR has.
"""

import os
import pickle
import random
import sys
from pathlib import Path

os.environ.setdefault("PJRT_DEVICE", "CPU")

import torch
import torch_xla

FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
SPECIAL = torch.tensor([-0.0, float("inf"), -float("inf"), float("nan"), 1e-39, 1e-6, 65504.0, 3.0e38])


def same_kind(dtype):
    return FLOATS if dtype in FLOATS else INTEGERS


class Program:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors = [self.data() for _ in range(3)]
        torch_xla.sync()

    def data(self):
        shape = [self.random.randint(1, 4) for _ in range(self.random.randint(1, 3))]
        dtype = self.random.choice(2 * FLOATS + INTEGERS)
        if dtype not in FLOATS:
            low, high = (0, 2) if dtype == torch.bool else (0, 256) if dtype == torch.uint8 else (-128, 128)
            return torch.randint(low, high, shape, generator=self.generator).to(dtype).to("xla")
        values = torch.randn(shape, generator=self.generator) * 10 ** torch.randn(shape, generator=self.generator)
        special = SPECIAL[torch.randint(0, len(SPECIAL), shape, generator=self.generator)]
        chosen = torch.rand(shape, generator=self.generator) < 0.2
        return torch.where(chosen, special, values).to(dtype).to("xla")

    def pick(self):
        return self.random.choice(self.tensors)

    def view(self, t, expands=True):
        d = t.dim()
        views = [lambda: t.unsqueeze(self.random.randint(0, d)), t.squeeze, lambda: t.reshape(-1)]
        if d:
            dim = self.random.randrange(d)
            start = self.random.randrange(t.shape[dim]) if t.shape[dim] else 0
            views += [
                lambda: t.permute(*self.random.sample(range(d), d)),
                lambda: t.narrow(dim, start, t.shape[dim] - start),
                lambda: t.flip(dim),
                lambda: t[::2],
            ]
        if d >= 2:
            views += [t.diagonal, lambda: t.transpose(0, -1), lambda: t.select(0, 0)]
        if expands and d < 4:
            views.append(lambda: t[None].expand(2, *t.shape))
        return self.random.choice(views)()

    def cast(self):
        t = self.pick()
        u = t.to(self.random.choice(same_kind(t.dtype)))
        for _ in range(self.random.randint(0, 3)):
            u = self.view(u)
        back = t.dtype if self.random.random() < 0.8 else self.random.choice(same_kind(t.dtype))
        self.tensors += [u.to(back), u]

    def write(self):
        t = self.pick().clone()
        self.tensors.append(t.to(self.random.choice(same_kind(t.dtype))).to(t.dtype))
        if t.dtype != torch.bool:
            (self.view(t, expands=False) if t.numel() else t).add_(1)
        self.tensors.append(t)

    def copy(self):
        t = self.pick()
        into = torch.zeros(t.shape, dtype=self.random.choice(same_kind(t.dtype)), device="xla")
        self.tensors.append(into.copy_(t))

    def arithmetic(self):
        t, u = self.pick(), self.pick()
        if t.shape == u.shape and t.dtype in FLOATS and u.dtype in FLOATS:
            self.tensors.append(t * u if self.random.random() < 0.5 else t + u)

    def run(self):
        steps = [self.cast, self.cast, self.cast, self.write, self.copy, self.arithmetic, torch_xla.sync]
        for _ in range(self.random.randint(5, 12)):
            self.random.choice(steps)()
        casts = torch_xla._XLAC._get_xla_tensors_text(self.tensors).count("xla::cast")
        values = [(str(t.dtype), tuple(t.shape), t.contiguous().flatten().tolist()) for t in self.on_cpu()]
        return casts, [(dtype, shape, repr(items)) for dtype, shape, items in values]

    def on_cpu(self):
        torch_xla.sync()
        return [t.cpu() for t in self.tensors]


def run(seed):
    """The result of one program; what stock itself fails to compile is to fail in either process."""
    try:
        return Program(seed).run()
    except RuntimeError as error:
        return 0, [(str(error).splitlines()[0], (), "")]


def main(path, first, count):
    results = [run(seed) for seed in range(int(first), int(first) + int(count))]
    Path(path).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
