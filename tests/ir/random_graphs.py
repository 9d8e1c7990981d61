"""Random small programs over several tensors, written as lines of Python and run on the CPU and on XLA.

A program has inputs of equal and of different shapes, shares values between its lines, takes views, writes in place,
multiplies matrices, reduces; some have gradients, and most several results. Its numbers are small whole ones, so that
both devices compute the same values, and a value that differs comes from another program than the one written.
The seeds 0 to 7, 8 to 15, … are of programs that differ in which of the equally shaped inputs go where: what a key has
to tell apart.
"""

import gc
import os
import random

os.environ.setdefault("PJRT_DEVICE", "CPU")

import torch
import torch_xla

SIBLINGS = 8
EQUAL = 3  # inputs of one shape
SHAPES = [(2,), (1, 2), (2, 1), (3, 2)]
VALUES = [
    "{a} + {b}",
    "{a} - {b}",
    "{a} - {b}",
    "({a} * {b}).clamp(-9, 9)",
    "({a} * {b}).clamp(-9, 9)",
    "torch.where({a} > {b}, {a}, {c})",
    "torch.maximum({a}, {b})",
    "-{a}",
    "{a}.abs()",
    "{a} * 2 - 1",
    "{a}.t()",
    "{a}[:1]",
    "{a}[1]",
    "{a}.flip(0)",
    "{a}.reshape(-1).neg()",
    "{a}.expand(2, *{a}.shape) + {b}",
    "({a} @ {b}).clamp(-9, 9)",
    "({a} @ {b}).clamp(-9, 9)",
    "({a}.bfloat16().float() @ {b}.bfloat16().float()).clamp(-9, 9)",
    "({a}.half().float().t() @ {b}.half()[:2].float()).clamp(-9, 9)",
    "{a}.sum(0)",
    "{a}.sum(-1, keepdim=True)",
    "{a}.cumsum(0).clamp(-9, 9)",
    "{a}.amax(0)",
    "{a}.detach().sort(0)[0]",
    "torch.cat([{a}, {b}])",
    "torch.stack([{a}, {b}])",
]
WRITES = ["{a}.add_({b})", "{a}.sub_({b}[:1])", "{a}[0] = {b}", "{a}[:1].sub_({b})", "{a}.t().add_({b})"]


def accepts(line, names):
    """Execute a line; return whether that went well."""
    try:
        exec(line, names)
    except (RuntimeError, IndexError, TypeError):
        return False
    finally:
        names.pop("__builtins__", None)
    return True


class Program:
    """The program of a seed.

    Attributes:
        lines: Its lines; v0, v1, … are the inputs, then the values.
        expected: What its results are on the CPU.
    """

    def __init__(self, seed):
        self._operations, self._operands = random.Random(seed // SIBLINGS), random.Random(f"operands {seed}")
        self.seed, self.expected = seed, None
        while self.expected is None:  # a write may turn out to destroy what a gradient needs
            self._write()

    def _write(self):
        pick = self._operations
        shapes = [(2, 2)] * EQUAL + pick.sample(SHAPES, 2)
        self.inputs = [self._numbers(shape) for shape in shapes]
        self.with_grad = pick.random() < 0.3
        self.whole = pick.random() < 0.3
        self.lines = []
        names = self._start("cpu")
        for _ in range(pick.randint(2, 6)):
            self._add_line(names)
        values = [f"v{i}" for i in range(len(shapes), len(names) - 1)] or ["v0"]
        self.results = [values[-1], *pick.sample(values[:-1], min(len(values) - 1, pick.randint(0, 2)))]
        try:
            self.expected = self._finish(names)
        except RuntimeError:
            self.expected = None

    def _numbers(self, shape):
        count = torch.Size(shape).numel()
        return torch.tensor([float(self._operands.randint(-4, 4)) for _ in range(count)]).reshape(shape)

    def _start(self, device):
        moved = [tensor.clone().to(device).requires_grad_(self.with_grad) for tensor in self.inputs]
        return {"torch": torch, **{f"v{i}": tensor for i, tensor in enumerate(moved)}}

    def _add_line(self, names):
        """One more line that the CPU accepts."""
        new = f"v{len(names) - 1}"
        while True:
            writes = self._operations.random() < 0.15
            form = self._operations.choice(WRITES) if writes else f"{new} = {self._operations.choice(VALUES)}"
            a, b, c = (self._operand(len(names) - 1) for _ in range(3))
            line = form.format(a=a, b=b, c=c)
            if accepts(line, names) and (writes or names[new].dim() > 0):
                self.lines.append(line)
                return
            names.pop(new, None)

    def _operand(self, count):
        """A value so far; siblings have the same one, or another input of its shape."""
        at = self._operations.randrange(count)
        return f"v{self._operands.randrange(EQUAL) if at < EQUAL else at}"

    def _finish(self, names):
        results = [names[name] for name in self.results]
        if self.with_grad:
            weighted = [r.sum() * (i + 1) for i, r in enumerate(results) if r.requires_grad]
            leaves = [names[f"v{i}"] for i in range(len(self.inputs))]
            if weighted:
                grads = torch.autograd.grad(sum(weighted), leaves, allow_unused=True)
                results += [grad for grad in grads if grad is not None]
        return [result.detach() for result in results]

    def fault(self, device):
        """What is wrong with its results on XLA; None if nothing is."""
        names = self._start(device)
        try:
            torch_xla.sync()
            exec("\n".join(self.lines), names)
            results = self._finish(names)
            if self.whole:
                torch_xla.sync()  # all that is live, and not the results alone
            else:
                torch_xla._XLAC._xla_sync_multi(results, [])
            found = [result.cpu() for result in results]
        except (RuntimeError, ValueError) as error:  # "expected parameter 1 of size 32 but got buffer …"
            # A tensor that is live and has lost its graph fails in the next sync, be it another test's.
            names.clear()
            error.__traceback__ = None
            gc.collect()
            torch_xla._XLAC._clear_pending_irs(str(device))
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        for result, expected in zip(found, self.expected, strict=True):
            if result.shape != expected.shape or not torch.allclose(result, expected, rtol=1e-4, atol=1e-4):
                return f"found {result.tolist()}, expected {expected.tolist()}"
        return None

    def __str__(self):
        inputs = [f"v{i} = torch.tensor({tensor.tolist()})" for i, tensor in enumerate(self.inputs)]
        ends = f"results {', '.join(self.results)}{', and gradients' if self.with_grad else ''}"
        return "\n".join([f"seed {self.seed}", *inputs, *self.lines, ends])
