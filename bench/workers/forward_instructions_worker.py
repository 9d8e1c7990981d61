"""Forward passes without gradients, whose tracing counts for callgrind: of single operators, or of models.

ENVIRONMENT/bin/python bench/workers/forward_instructions_worker.py models transformers/llama
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch_xla
from shared.callgrind import counted
from torch.nn import functional
from torch_xla.core import xla_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "programs"))

Call = Callable[[], object]


def calls() -> dict[str, Call]:
    """Calls of a forward pass as models make them."""

    def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.rand(shape).add(0.5).to(dtype).to("xla")

    a, b = tensor(4, 16, 32), tensor(4, 16, 32)
    h, k = a.bfloat16(), b.bfloat16()
    square, weight, bias = tensor(32, 32), tensor(64, 32), tensor(64)
    half_weight, half_bias = weight.bfloat16(), bias.bfloat16()
    scale, shift = tensor(32), tensor(32)
    half_scale, half_shift = scale.bfloat16(), shift.bfloat16()
    i, j = (torch.randint(1, 9, (4, 16)).to("xla") for _ in range(2))
    mask = a > 1
    logits, classes = tensor(8, 10), torch.randint(10, (8,)).to("xla")
    image, kernel = tensor(2, 3, 16, 16), tensor(8, 3, 3, 3)
    channels = [tensor(3) for _ in range(4)]
    query = tensor(2, 4, 16, 8)
    table = tensor(50, 32)
    cache, row = tensor(4, 16, 32), torch.tensor([3]).to("xla")
    return {
        "add": lambda: a + b,
        "add, a number": lambda: a + 1.5,
        "add, bfloat16": lambda: h + k,
        "add, mixed dtypes": lambda: h + b,
        "add, broadcast": lambda: a + scale,
        "add, int64": lambda: i + j,
        "sub": lambda: a - b,
        "rsub": lambda: 1 - a,
        "mul": lambda: a * b,
        "mul, a number": lambda: a * 0.5,
        "mul, bfloat16": lambda: h * k,
        "div": lambda: a / b,
        "div, a number": lambda: a / 8,
        "div, int64": lambda: i / j,
        "floor_divide, int64": lambda: i // j,
        "floor_divide, int64 by a number": lambda: i // 3,
        "remainder, int64 by a number": lambda: i % 3,
        "neg": lambda: -a,
        "pow 2": lambda: a**2,
        "pow 3": lambda: a**3,
        "rsqrt": a.rsqrt,
        "sqrt": a.sqrt,
        "exp": a.exp,
        "tanh": a.tanh,
        "sigmoid": a.sigmoid,
        "sin": a.sin,
        "relu": a.relu,
        "gelu": lambda: functional.gelu(a),
        "gelu, tanh": lambda: functional.gelu(a, approximate="tanh"),
        "gelu, bfloat16": lambda: functional.gelu(h),
        "silu": lambda: functional.silu(a),
        "silu, bfloat16": lambda: functional.silu(h),
        "hardswish": lambda: functional.hardswish(a),
        "softmax": lambda: a.softmax(-1),
        "softmax, bfloat16": lambda: h.softmax(-1),
        "softmax, bfloat16 to float32": lambda: h.softmax(-1, dtype=torch.float32),
        "log_softmax": lambda: a.log_softmax(-1),
        "layer_norm": lambda: functional.layer_norm(a, (32,), scale, shift),
        "layer_norm, bfloat16": lambda: functional.layer_norm(h, (32,), half_scale, half_shift),
        "group_norm": lambda: functional.group_norm(a, 4, None, None),
        "rms_norm": lambda: functional.rms_norm(a, (32,), scale),
        "batch_norm, evaluation": lambda: functional.batch_norm(image, *channels),
        "batch_norm, training": lambda: functional.batch_norm(image, *channels, training=True),
        "cross_entropy": lambda: functional.cross_entropy(logits, classes),
        "mse_loss": lambda: functional.mse_loss(a, b),
        "nll_loss": lambda: functional.nll_loss(logits, classes),
        "sum": a.sum,
        "sum of a dimension": lambda: a.sum(-1),
        "sum, bfloat16": lambda: h.sum(-1),
        "mean": lambda: a.mean(-1, keepdim=True),
        "mean, bfloat16": lambda: h.mean(-1, keepdim=True),
        "var": lambda: a.var(-1),
        "amax": lambda: a.amax(-1),
        "max of a dimension": lambda: a.max(-1),
        "argmax": lambda: a.argmax(-1),
        "argmin": lambda: a.argmin(-1),
        "topk": lambda: a.topk(4),
        "sort": lambda: a.sort(-1),
        "cumsum": lambda: a.cumsum(-1),
        "norm": lambda: torch.linalg.vector_norm(a, dim=-1),
        "any": mask.any,
        "linear": lambda: functional.linear(a, weight, bias),
        "linear, bfloat16": lambda: functional.linear(h, half_weight, half_bias),
        "linear without bias": lambda: functional.linear(a, weight),
        "matmul": lambda: a @ square,
        "matmul of batches": lambda: a @ b.transpose(1, 2),
        "bmm": lambda: torch.bmm(a, b.mT),
        "einsum": lambda: torch.einsum("bnd,bmd->bnm", a, b),
        "conv2d": lambda: functional.conv2d(image, kernel),
        "scaled_dot_product_attention": lambda: functional.scaled_dot_product_attention(query, query, query),
        "max_pool2d": lambda: functional.max_pool2d(image, 2),
        "avg_pool2d": lambda: functional.avg_pool2d(image, 2),
        "adaptive_avg_pool2d": lambda: functional.adaptive_avg_pool2d(image, 1),
        "interpolate, nearest": lambda: functional.interpolate(image, scale_factor=2),
        "interpolate, bilinear": lambda: functional.interpolate(image, scale_factor=2, mode="bilinear"),
        "pad": lambda: functional.pad(a, (1, 1)),
        "embedding": lambda: functional.embedding(i, table),
        "index_select": lambda: table.index_select(0, i[0]),
        "gather": lambda: a.gather(0, i[:, :, None]),
        "index": lambda: a[:, i[0]],
        "scatter_add": lambda: logits.scatter_add(1, i[:, :8], logits),
        "index_copy_": lambda: cache.index_copy_(1, row, a[:, :1]),
        "masked_fill": lambda: a.masked_fill(mask, 0.0),
        "where": lambda: torch.where(mask, a, b),
        "where, a number": lambda: torch.where(mask, a, 0.0),
        "gt, a number": lambda: a > 1,
        "eq, int64": lambda: i == j,
        "logical_and": lambda: mask & mask,
        "clamp": lambda: a.clamp(0, 1),
        "maximum": lambda: torch.maximum(a, b),
        "cast to bfloat16": a.bfloat16,
        "cast to float32": h.float,
        "clone": a.clone,
        "view": lambda: a.view(4, 512),
        "reshape": lambda: a.reshape(4, 16, 4, 8),
        "transpose": lambda: a.transpose(1, 2),
        "permute": lambda: a.permute(2, 0, 1),
        "contiguous of transposed": lambda: a.transpose(1, 2).contiguous(),
        "expand": lambda: a[:, None].expand(4, 3, 16, 32),
        "unsqueeze": lambda: a[:, None],
        "slice": lambda: a[:, 1:5],
        "slice that is written": lambda: cache[:, :1].copy_(a[:, :1]),
        "select": lambda: a[:, 0],
        "chunk": lambda: a.chunk(2, -1),
        "split": lambda: a.split(8, -1),
        "cat": lambda: torch.cat((a, b), -1),
        "stack": lambda: torch.stack((a, b)),
        "repeat": lambda: a.repeat(1, 2, 1),
        "roll": lambda: a.roll(1, 1),
        "flip": lambda: a.flip(-1),
        "tril": square.tril,
        "zeros_like": lambda: torch.zeros_like(a),
        "full": lambda: torch.full((4, 4), 1.5, device="xla"),
        "arange": lambda: torch.arange(16, device="xla"),
        "one_hot": lambda: functional.one_hot(classes, 10),
        "rand": lambda: torch.rand(4, 4, device="xla"),
        "dropout": lambda: functional.dropout(a, 0.1),
        "bincount": lambda: torch.bincount(classes, minlength=10),
        "add_": lambda: cache.add_(b),
        "mul_, a number": lambda: cache.mul_(1.0),
        "copy_": lambda: cache.copy_(b),
        "zero_": cache.zero_,
    }


def count(name: str, call: Call, *, warm: int, calls: int) -> None:
    for _ in range(warm):
        call()
        torch_xla.sync()
        xla_model.wait_device_ops()
    numbers = range(calls)
    with counted(name):
        for _ in numbers:
            call()
    torch_xla.sync()
    xla_model.wait_device_ops()


def model(name: str) -> Call:
    import model_zoo
    from runner import prepare

    prepare(("transformers",))
    built, batch = model_zoo.built(model_zoo.architectures()[name])
    built = built.to("xla").eval()
    batch = {key: value.to("xla") for key, value in batch.items()}
    return lambda: built(**batch)


def main() -> None:
    kind, *rest = sys.argv[1:]  # names of models, or how many calls of each operator
    with counted("nothing"):  # the first one looks the functions up
        pass
    gc.freeze()  # what is there is not looked at before each part
    with torch.no_grad():
        if kind == "models":
            for name in rest:
                count(name, model(name), warm=2, calls=1)
        else:
            for name, call in calls().items():
                for time in ("once", "again"):  # a table of the allocator's or of Python's grows in one of them
                    count(f"{name}|{time}", call, warm=1, calls=int(rest[0]))


if __name__ == "__main__":
    main()
