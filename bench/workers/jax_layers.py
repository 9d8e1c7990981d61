"""The layers of bench/workers/tpu_layers.py in JAX, as people write them; their StableHLO for bench/tpu_models.py.

    python bench/workers/jax_layers.py FOLDER LAYER…

Runs in the TPU compiler's environment, which `castoff tpu environment` names, with JAX_PLATFORMS=cpu, and writes
FOLDER/LAYER for each layer. Parameters, activations and their gradients are bfloat16; attention is
`jax.nn.dot_product_attention`; norms are computed in float32 and rounded once, as flax does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

BATCH, TOKENS, WIDTH, HEADS = 4, 1024, 1024, 16
SIZE = WIDTH // HEADS

Sizes = dict[str, tuple[int, ...]]
Weights = dict[str, jax.Array]


def layer_norm(x: jax.Array, w: Weights, name: str) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return (centred * scale * w[name] + w[f"{name} shift"]).astype(x.dtype)


def rms_norm(x: jax.Array, w: Weights, name: str) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * w[name]).astype(x.dtype)


def linear(x: jax.Array, w: Weights, name: str) -> jax.Array:
    result = x @ w[name]
    return result + w[f"{name} shift"] if f"{name} shift" in w else result


def heads(x: jax.Array) -> jax.Array:
    return x.reshape(BATCH, TOKENS, HEADS, SIZE)


def attention(query: jax.Array, key: jax.Array, value: jax.Array, **options: object) -> jax.Array:
    result = jax.nn.dot_product_attention(heads(query), heads(key), heads(value), **options)
    return result.reshape(BATCH, TOKENS, WIDTH)


def separate(x: jax.Array, w: Weights, **options: object) -> jax.Array:
    return attention(linear(x, w, "q"), linear(x, w, "k"), linear(x, w, "v"), **options)


def fused(x: jax.Array, w: Weights, **options: object) -> jax.Array:
    return attention(*jnp.split(linear(x, w, "qkv"), 3, -1), **options)


def pre_norm(w: Weights, x: jax.Array) -> jax.Array:
    x = x + linear(fused(layer_norm(x, w, "norm1"), w), w, "out")
    up = linear(layer_norm(x, w, "norm2"), w, "up")
    return x + linear(jax.nn.gelu(up, approximate=False), w, "down")


def gpt2(w: Weights, x: jax.Array) -> jax.Array:
    x = x + linear(fused(layer_norm(x, w, "norm1"), w, is_causal=True), w, "out")
    up = linear(layer_norm(x, w, "norm2"), w, "up")
    return x + linear(jax.nn.gelu(up, approximate=True), w, "down")


def bert(w: Weights, x: jax.Array) -> jax.Array:
    x = layer_norm(x + linear(separate(x, w), w, "out"), w, "norm1")
    up = jax.nn.gelu(linear(x, w, "up"), approximate=False)
    return layer_norm(x + linear(up, w, "down"), w, "norm2")


def vit(w: Weights, x: jax.Array) -> jax.Array:
    x = x + linear(separate(layer_norm(x, w, "norm1"), w), w, "out")
    up = linear(layer_norm(x, w, "norm2"), w, "up")
    return x + linear(jax.nn.gelu(up, approximate=False), w, "down")


def rotated(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-second, first], -1) * sin


def llama(w: Weights, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    h = rms_norm(x, w, "norm1")
    query, key = (rotated(heads(linear(h, w, name)), cos[:, :, None], sin[:, :, None]) for name in "qk")
    x = x + linear(attention(query, key, linear(h, w, "v"), is_causal=True), w, "out")
    h = rms_norm(x, w, "norm2")
    return x + linear(jax.nn.silu(linear(h, w, "gate")) * linear(h, w, "up"), w, "down")


def t5(w: Weights, x: jax.Array) -> jax.Array:
    x = x + linear(separate(rms_norm(x, w, "norm1"), w, bias=w["bias"], scale=1.0), w, "out")
    return x + linear(jax.nn.relu(linear(rms_norm(x, w, "norm2"), w, "up")), w, "down")


def shifted(sizes: Sizes) -> Sizes:
    """The same, and for each a vector that is added."""
    return sizes | {f"{name} shift": size[-1:] for name, size in sizes.items()}


NORMS: Sizes = {"norm1": (WIDTH,), "norm2": (WIDTH,)}
FUSED: Sizes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH)}
SEPARATE: Sizes = dict.fromkeys(("q", "k", "v", "out"), (WIDTH, WIDTH))
WIDE: Sizes = {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
GATED: Sizes = {"gate": (WIDTH, 2816), "up": (WIDTH, 2816), "down": (2816, WIDTH)}
BIAS: Sizes = {"bias": (1, HEADS, TOKENS, TOKENS)}
ANGLES = ((1, TOKENS, SIZE), (1, TOKENS, SIZE))

# Of each layer: the function, the sizes of what it differentiates, those of what it does not.
LAYERS: dict[str, tuple[Callable[..., jax.Array], Sizes, tuple[tuple[int, ...], ...]]] = {
    "pre-norm": (pre_norm, shifted(NORMS | FUSED | WIDE), ()),
    "Llama": (llama, NORMS | SEPARATE | GATED, ANGLES),
    "GPT-2": (gpt2, shifted(NORMS | FUSED | WIDE), ()),
    "BERT": (bert, shifted(NORMS | SEPARATE | WIDE), ()),
    "ViT": (vit, shifted(NORMS | SEPARATE | WIDE), ()),
    "T5": (t5, NORMS | SEPARATE | WIDE | BIAS, ()),
}


def stablehlo(name: str) -> str:
    """Forward and backward of a layer: its result, and the gradients of its input and weights."""
    layer, sizes, others = LAYERS[name]

    def data(size: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(size, jnp.bfloat16)

    def step(weights: Weights, x: jax.Array, grad: jax.Array, *more: jax.Array) -> tuple[jax.Array, object]:
        result, backward = jax.vjp(lambda w, x: layer(w, x, *more), weights, x)
        return result, backward(grad)

    x = data((BATCH, TOKENS, WIDTH))
    weights = {key: data(size) for key, size in sizes.items()}
    traced = jax.jit(step).trace(weights, x, x, *map(data, others))
    text: str = traced.lower(lowering_platforms=("tpu",)).as_text()
    return text


def main() -> None:
    folder, *layers = sys.argv[1:]
    for layer in layers:
        (Path(folder) / layer).write_text(stablehlo(layer))


if __name__ == "__main__":
    main()
