"""The programs of bench/workers/tpu_corpus_programs.py as JAX programs, by torchax: StableHLO for bench/tpu_corpus.py.

    python bench/workers/tpu_corpus_jax.py FOLDER PROGRAM…

Runs with JAX_PLATFORMS=cpu in an environment with torch, transformers and timm; CASTOFF_JAX names a folder of packages
with the pin's jax, and PYTHONPATH one with TORCHAX, as torch_xla's wheels have an older one. torchax maps each operator
of torch to JAX's, but for attention without dropout, which is `jax.nn.dot_product_attention`. JAX differentiates what
comes of the forward pass; the optimizers' first step is written here. Writes FOLDER/PROGRAM for each program.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(os.environ["CASTOFF_JAX"])

import jax
import jax.numpy as jnp
import torch
import torchax
import tpu_corpus_programs as programs
from torch import Tensor, nn
from torchax.interop import jax_view, torch_view

TORCHAX = "0.0.13"

Arrays = dict[str, jax.Array]


class Arguments:
    """The arguments of a program, in the order in which it asks for them: zeros of their shapes, or what is given."""

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, given: Iterable[jax.Array] | None) -> None:
        self.given = iter(given) if given is not None else None
        self.shapes: list[jax.ShapeDtypeStruct] = []

    def take(self, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        self.shapes.append(jax.ShapeDtypeStruct(shape, dtype))
        return jnp.zeros(shape, dtype) if self.given is None else next(self.given)


arguments = Arguments()


def data(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch_view(arguments.take(sizes, torchax.ops.mappings.t2j_dtype(dtype)))


def to(module: nn.Module, target: Any, moved: Callable[..., nn.Module] = nn.Module.to) -> nn.Module:
    """As nn.Module.to, but for the device: there the parameters and buffers are arguments of the program."""
    if target != "xla":
        return moved(module, target)
    for each in module.modules():
        for held in (each._parameters, each._buffers):
            held.update({name: data(*t.shape, dtype=t.dtype) for name, t in held.items() if t is not None})
    return module


def gradients(call: Callable[..., Any], *leaves: Any) -> tuple[jax.Array, Any]:
    """The result of a function of arrays, and their gradients from one of it that is an argument."""
    result, pull = jax.vjp(call, *leaves)
    cotangent = arguments.take(result.shape, result.dtype) if result.ndim else jnp.ones((), result.dtype)
    return result, pull(cotangent)


def adamw(p: jax.Array, g: jax.Array) -> jax.Array:
    """The first step from moments of zero, as the programs take it."""
    first, second = 0.1 * g, 0.001 * g * g
    return p * (1 - 1e-5) - 1e-3 / 0.1 * first / (jnp.sqrt(second) / 0.001**0.5 + 1e-8)


def sgd(p: jax.Array, g: jax.Array) -> jax.Array:
    return p - 0.1 * g


def step(
    module: nn.Module,
    *inputs: Tensor,
    call: Callable[..., Any] | None = None,
    optimizer: Any = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Any:
    """As that of tpu_corpus_programs."""
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    module.to(dtype).to("xla").train()
    places = {f"{at}.{name}".lstrip("."): each for at, each in module.named_modules() for name in each._parameters}
    weights = {name: jax_view(places[name]._parameters[name.rpartition(".")[2]]) for name in trained}
    floats = {i: jax_view(x) for i, x in enumerate(inputs) if x.is_floating_point()}

    def forward(weights: Arrays, floats: dict[int, jax.Array]) -> jax.Array:
        for name, array in weights.items():
            places[name]._parameters[name.rpartition(".")[2]] = torch_view(array)
        given = [torch_view(floats[i]) if i in floats else x for i, x in enumerate(inputs)]
        result = (call or module)(*given)
        return jax_view(result[0] if isinstance(result, tuple) else result)

    result, (of_weights, of_inputs) = gradients(forward, weights, floats)
    if optimizer is None:
        return result, of_inputs, of_weights
    rule = adamw if optimizer is programs.AdamW else sgd
    return result, {name: rule(weights[name], of_weights[name]).astype(weights[name].dtype) for name in trained}


by_torchax = torch.nn.functional.scaled_dot_product_attention


def in_jax(query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any) -> Tensor:
    """JAX's attention, which has no dropout, where torchax has a formula of its own."""
    asked = dict(zip(("attn_mask", "dropout_p", "is_causal"), more, strict=False)) | named
    if asked.get("dropout_p"):
        return by_torchax(query, key, value, **asked)
    options = {name: asked[name] for name in ("is_causal", "scale") if name in asked}
    if (seen := asked.get("attn_mask")) is not None:
        mask = jax_view(seen)
        options["mask" if mask.dtype == bool else "bias"] = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    result = jax.nn.dot_product_attention(*(jax_view(t).swapaxes(1, 2) for t in (query, key, value)), **options)
    return torch_view(result.swapaxes(1, 2))


def attention(batch: int, heads: int, tokens: int, size: int, kv: int | None = None, **options: Any) -> Any:
    leaves = [jax_view(data(batch, n, tokens, size)) for n in (heads, kv or heads, kv or heads)]

    def forward(*arrays: jax.Array) -> jax.Array:
        return jax_view(torch.nn.functional.scaled_dot_product_attention(*torch_view(arrays), **options))

    return gradients(forward, *leaves)


def program(name: str) -> str:
    """Its StableHLO: traced once for what it asks for, and again with that as arguments."""
    environment = torchax.default_env()

    def run(key: jax.Array, given: Sequence[jax.Array] | None) -> Any:
        arguments.begin(given)
        with torch.no_grad(), environment, environment.override_property(prng=key):
            return jax.tree.map(jax_view, programs.PROGRAMS[name](), is_leaf=lambda x: isinstance(x, Tensor))

    key = jax.eval_shape(lambda: jax.random.key(0))
    jax.eval_shape(functools.partial(run, given=None), key)
    return jax.jit(run).lower(key, arguments.shapes).as_text()


def main() -> None:
    folder, *names = sys.argv[1:]
    if torchax.__version__ != TORCHAX:
        raise SystemExit(
            f"expected torchax {TORCHAX}, found {torchax.__version__}; run pip install --no-deps --target FOLDER "
            f"torchax=={TORCHAX}, and set PYTHONPATH=FOLDER"
        )
    programs.without_initial_values()
    torch.nn.functional.scaled_dot_product_attention = in_jax
    nn.Module.to = to  # type: ignore[method-assign, assignment]
    programs.torch_xla = types.SimpleNamespace(sync=lambda: None)
    for function in (data, step, attention):
        setattr(programs, function.__name__, function)
    for name in names:
        (Path(folder) / name).write_text(program(name), encoding="utf-8")


if __name__ == "__main__":
    main()
