"""Traces forward and backward of transformer layers in bfloat16 to StableHLO, for bench/tpu_models.py.

    python bench/workers/tpu_layers.py FOLDER stock|castoff|"opted in"|flash_attention LAYER…

Runs in an environment with torch_xla and transformers, with PJRT_DEVICE=CPU, and writes FOLDER/LAYER for each layer.
The layers are transformers' own modules with its sdpa attention, and one that is written here; no dropout, nothing is
downloaded and nothing is computed. "opted in": `native_mul_context()`. "flash_attention" is that with torch_xla's
Pallas kernel in the place of `scaled_dot_product_attention`; CASTOFF_JAX names a folder of packages with jax, which
lowers it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import torch
import torch_xla
import transformers
from torch import nn
from torch.nn import functional
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.t5.modeling_t5 import T5Block
from transformers.models.vit.modeling_vit import ViTLayer

BATCH, TOKENS, WIDTH, HEADS = 4, 1024, 1024, 16
SIZES = {"hidden_size": WIDTH, "num_attention_heads": HEADS}
SDPA = {"attn_implementation": "sdpa"}

Layer = tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor], list[torch.Tensor]]
"""A module, a call of it, and what else the call differentiates besides parameters."""


def data(*sizes: int) -> torch.Tensor:
    """A bfloat16 tensor on XLA; its values are of no importance."""
    return torch.zeros(sizes, dtype=torch.bfloat16).to("xla")


class PreNorm(nn.Module):
    """A layer as people write it: one product for query, key and value, and torch's exact GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def pre_norm() -> Layer:
    layer = PreNorm()
    return layer, layer, []


def llama() -> Layer:
    """Causal, rotary positions, gated; as many key heads as query heads."""
    config = transformers.LlamaConfig(**SIZES, **SDPA, intermediate_size=2816, num_key_value_heads=HEADS)
    layer = LlamaDecoderLayer(config, 0)
    angles = (data(1, TOKENS, WIDTH // HEADS), data(1, TOKENS, WIDTH // HEADS))  # cosines and sines
    return layer, lambda x: layer(x, position_embeddings=angles), []


def gpt2() -> Layer:
    """Causal, GELU by tanh."""
    sizes = {"n_embd": WIDTH, "n_head": HEADS, "n_positions": TOKENS}
    layer = GPT2Block(transformers.GPT2Config(**sizes, **SDPA, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0), 0)
    return layer, layer, []


def bert() -> Layer:
    """Norms after the sums; exact GELU."""
    dropout = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    layer = BertLayer(transformers.BertConfig(**SIZES, **SDPA, **dropout, intermediate_size=4 * WIDTH))
    return layer, layer, []


def vit() -> Layer:
    """Norms before; exact GELU; 1,024 patches."""
    layer = ViTLayer(transformers.ViTConfig(**SIZES, **SDPA, intermediate_size=4 * WIDTH))
    return layer, layer, []


def t5() -> Layer:
    """An encoder's layer after the first: it is given the positions' bias, and differentiates it; ReLU."""
    sizes = {"d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 4 * WIDTH, "num_heads": HEADS, "dropout_rate": 0}
    layer = T5Block(transformers.T5Config(**sizes, **SDPA))
    bias = data(1, HEADS, TOKENS, TOKENS).requires_grad_()
    return layer, lambda x: layer(x, position_bias=bias)[0], [bias]


LAYERS: dict[str, Callable[[], Layer]] = {
    "pre-norm": pre_norm,
    "Llama": llama,
    "GPT-2": gpt2,
    "BERT": bert,
    "ViT": vit,
    "T5": t5,
}


def by_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> torch.Tensor:
    """scaled_dot_product_attention by torch_xla's Pallas kernel."""
    from torch_xla.experimental.custom_kernel import flash_attention

    sizes = (*query.shape[:-1], key.shape[-2])
    bias = None if attn_mask is None else attn_mask.expand(sizes)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    result: torch.Tensor = flash_attention(query, key, value, causal=is_causal, sm_scale=scale, ab=bias)
    return result


def jax_lowers_for_tpu() -> None:
    """Let jax.jit lower for a TPU that is not there: torch_xla calls it to lower the kernel."""
    import jax
    from jax._src import xla_bridge

    # The pin's libtpu reads no kernels of jax's newest format. With a TPU jax asks its libtpu for the version.
    xla_bridge.FORCE_FORWARD_COMPAT_LOWERING_PLATFORMS.add("tpu")
    real = jax.jit

    class Lowered:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.jitted = real(*args, **kwargs)

        def lower(self, *args: Any, **kwargs: Any) -> Any:
            return self.jitted.trace(*args, **kwargs).lower(lowering_platforms=("tpu",))

    def jit(*args: Any, **kwargs: Any) -> Any:
        of_torch_xla = {"static_argnums", "static_argnames"} <= kwargs.keys()
        return (Lowered if of_torch_xla else real)(*args, **kwargs)

    jax.jit = jit


@contextlib.contextmanager
def column(name: str) -> Iterator[None]:
    """Ask for what a column has."""
    if name in ("stock", "castoff"):
        yield
        return
    from torch_xla import experimental

    if name == "flash_attention":
        from torch_xla.experimental import custom_kernel

        sys.path.append(os.environ["CASTOFF_JAX"])  # the packages of an environment with jax, after torch's
        custom_kernel.jax_import_guard()
        jax_lowers_for_tpu()
        functional.scaled_dot_product_attention = by_kernel
    with experimental.native_mul_context():
        yield


def stablehlo(name: str) -> str:
    """Forward and backward of a layer: its result, and the gradients of its input and parameters."""
    layer, call, others = LAYERS[name]()
    layer.bfloat16().to("xla").train()
    x, grad = data(BATCH, TOKENS, WIDTH).requires_grad_(), data(BATCH, TOKENS, WIDTH)
    torch_xla.sync()
    result = call(x)
    result.backward(grad)
    grads = [tensor.grad for tensor in (x, *layer.parameters(), *others)]
    text: bytes = torch_xla._XLAC._get_stablehlo([result, *grads], "", [], False)
    return text.decode()


def main() -> None:
    folder, name, *layers = sys.argv[1:]
    # Initial values would take longer than all the rest.
    for fill in ("normal_", "uniform_", "kaiming_uniform_", "xavier_uniform_"):
        setattr(nn.init, fill, functools.partial(lambda tensor, *_, **__: tensor))
    with column(name):
        for layer in layers:
            (Path(folder) / layer).write_text(stablehlo(layer))


if __name__ == "__main__":
    main()
