"""The programs of bench/tpu_corpus.py: layers, losses and steps as people write them, traced to StableHLO.

    python bench/workers/tpu_corpus_programs.py FOLDER stock|castoff|"opted in" PROGRAM…

Runs with PJRT_DEVICE=CPU in an environment with torch_xla, transformers and timm, and writes FOLDER/PROGRAM for each.
Values are of no importance: nothing is computed or downloaded.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import timm
import torch
import torch_xla
import transformers
from timm.layers import SwiGLU
from timm.models.convnext import ConvNeXtBlock
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.vision_transformer import Block as TimmBlock
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.clip.modeling_clip import CLIPEncoderLayer
from transformers.models.gemma3.modeling_gemma3 import Gemma3DecoderLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.opt.modeling_opt import OPTDecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer
from transformers.models.t5.modeling_t5 import T5Block
from transformers.models.whisper.modeling_whisper import WhisperEncoderLayer

bf16, f32 = torch.bfloat16, torch.float32
SDPA = {"attn_implementation": "sdpa"}
AdamW = functools.partial(torch.optim.AdamW, lr=1e-3, foreach=False)

Step = list[Tensor]
"""What a step leaves: its result and the gradients, or the parameters that an optimizer wrote."""


def data(*sizes: int, dtype: torch.dtype = bf16) -> Tensor:
    return torch.zeros(sizes, dtype=dtype).to("xla")


def words(*sizes: int) -> Tensor:
    return data(*sizes, dtype=torch.int64)


def backward(result: Tensor) -> None:
    """From a loss, or with a gradient that is an input, as the rest of a model gives it: ones would be folded."""
    result.backward(data(*result.shape, dtype=result.dtype) if result.dim() else None)


def step(
    module: nn.Module,
    *inputs: Tensor,
    call: Callable[..., Any] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    dtype: torch.dtype = bf16,
) -> Step:
    """Forward and backward of a module, and an optimizer's step."""
    module.to(dtype).to("xla").train()
    inputs = tuple(x.requires_grad_() if x.is_floating_point() else x for x in inputs)
    trained = [p for p in module.parameters() if p.requires_grad]
    made = optimizer(trained) if optimizer else None
    torch_xla.sync()
    result = (call or module)(*inputs)
    result = result[0] if isinstance(result, tuple) else result
    backward(result)
    if made is None:
        return [result, *(x.grad for x in (*inputs, *trained) if x.grad is not None)]
    made.step()
    return [result, *trained]


class Attention(nn.Module):
    """Self-attention by scaled_dot_product_attention; `form` is how query, key and value are taken apart."""

    def __init__(self, width: int, heads: int, form: str = "chunk", **options: Any) -> None:
        super().__init__()
        self.heads, self.form, self.options = heads, form, options
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        if self.form == "unbind":
            q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        return self.out(
            functional.scaled_dot_product_attention(q, k, v, **self.options).transpose(1, 2).reshape(b, t, width)
        )


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float = 0.0, **options: Any) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout_p=dropout, **options)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def llama(kind: tuple[type, type], tokens: int, batch: int, width: int, heads: int, **more: Any) -> Step:
    """A decoder layer of transformers with rotary positions; `kind` are its class and its configuration's."""
    layer, config = kind
    kv = more.pop("num_key_value_heads", heads)
    size = more.pop("head_dim", width // heads)
    sizes = {"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": size}
    made = config(**sizes, **SDPA, intermediate_size=11 * width // 4, **more)
    module = layer(made, 0)
    angles = (data(1, tokens, size), data(1, tokens, size))
    return step(module, data(batch, tokens, width), call=lambda x: module(x, position_embeddings=angles))


def llama_layer(tokens: int, batch: int, width: int = 2048, heads: int = 16, kv: int = 4) -> Step:
    return llama((LlamaDecoderLayer, transformers.LlamaConfig), tokens, batch, width, heads, num_key_value_heads=kv)


def gpt2(tokens: int, batch: int) -> Step:
    config = transformers.GPT2Config(n_embd=768, n_head=12, **SDPA, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0)
    return step(GPT2Block(config, 0), data(batch, tokens, 768))


def bert_with_padding() -> Step:
    config = transformers.BertConfig(**SDPA, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    module, mask = BertLayer(config), data(16, 1, 1, 512, dtype=torch.bool)
    return step(module, data(16, 512, 768), call=lambda x: module(x, mask))


def t5_encoder() -> Step:
    config = transformers.T5Config(d_model=512, d_kv=64, d_ff=2048, num_heads=8, dropout_rate=0, **SDPA)
    module = T5Block(config)
    return step(module, data(8, 512, 512), data(1, 8, 512, 512), call=lambda x, bias: module(x, position_bias=bias)[0])


def whisper() -> Step:
    config = transformers.WhisperConfig(d_model=512, encoder_attention_heads=8, encoder_ffn_dim=2048, **SDPA)
    module = WhisperEncoderLayer(config)
    return step(module, data(4, 1500, 512), call=lambda x: module(x, None))


def clip_text() -> Step:
    config = transformers.CLIPTextConfig(hidden_size=512, num_attention_heads=8, intermediate_size=2048, **SDPA)
    module, mask = CLIPEncoderLayer(config), data(1, 1, 77, 77)
    return step(module, data(64, 77, 512), call=lambda x: module(x, mask))


def opt() -> Step:
    config = transformers.OPTConfig(hidden_size=1024, num_attention_heads=16, ffn_dim=4096, dropout=0.0, **SDPA)
    module, mask = OPTDecoderLayer(config, 0), data(4, 1, 512, 512)
    return step(module, data(4, 512, 1024), call=lambda x: module(x, attention_mask=mask))


class CrossAttention(nn.Module):
    """Pixels that attend to a text, as in latent diffusion."""

    def __init__(self, width: int = 320, text: int = 768, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.q = heads, nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(text, width, bias=False), nn.Linear(text, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), self.k(text), self.v(text)))
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class AdaptiveNorm(nn.Module):
    """A block of a diffusion transformer."""

    def __init__(self, width: int = 1152, heads: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attention = Attention(width, heads, "unbind")
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        a, b, g, d, e, h = (t.unsqueeze(1) for t in self.modulation(c).chunk(6, 1))
        x = x + g * self.attention(self.norm(x) * (1 + b) + a)
        return x + h * self.mlp(self.norm(x) * (1 + e) + d)


def residual(width: int) -> nn.Module:
    """The convolutions of a UNet's or a VAE's residual block."""
    parts = (nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
    return nn.Sequential(*parts, nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))


class Bottleneck(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width // 4
        self.parts = nn.Sequential(
            *(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.parts(x))


class Experts(nn.Module):
    """A mixture of eight experts, two for each token; `scattered`: each gets its tokens by index."""

    def __init__(self, width: int, *, scattered: bool) -> None:
        super().__init__()
        self.scattered, self.gate = scattered, nn.Linear(width, 8, bias=False)
        self.up, self.down = (
            nn.Parameter(torch.zeros(8, width, 2 * width)),
            nn.Parameter(torch.zeros(8, 2 * width, width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
        if not self.scattered:
            share = torch.zeros_like(self.gate(x)).scatter(-1, chosen, weight)
            hidden = functional.silu(torch.einsum("td,edf->tef", x, self.up))
            return torch.einsum("tef,efd,te->td", hidden, self.down, share)
        result = torch.zeros_like(x)
        for expert in range(8):
            share = (weight * (chosen == expert)).sum(-1, keepdim=True)
            result = result + share * (functional.silu(x @ self.up[expert]) @ self.down[expert])
        return result


class Lora(nn.Module):
    """A frozen linear and a low-rank one that is trained."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(requires_grad=False)
        self.a, self.b = nn.Linear(width, 16, bias=False), nn.Linear(16, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.b(self.a(x))


class Tied(nn.Module):
    """A language model without layers: a tied embedding and the loss of the next word."""

    def __init__(self, classes: int, width: int, *, widened: bool) -> None:
        super().__init__()
        self.embedding, self.widened = nn.Embedding(classes, width), widened

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        logits = functional.linear(x + self.embedding(ids), self.embedding.weight)
        logits = logits.float() if self.widened else logits
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def tied(tokens: int, batch: int, classes: int, width: int, *, widened: bool = True) -> Step:
    return step(Tied(classes, width, widened=widened), data(batch, tokens, width), words(batch, tokens))


def head(loss: Callable[[Tensor], Tensor], rows: int, width: int, classes: int, **options: Any) -> Step:
    """A last linear layer and a loss."""
    module = nn.Linear(width, classes)
    return step(module, data(rows, width), call=lambda x: loss(module(x)), **options)


def contrastive(a: Tensor, b: Tensor) -> Tensor:
    logits = 100 * functional.normalize(a, dim=-1) @ functional.normalize(b, dim=-1).t()
    target = torch.arange(len(a), device=a.device)
    return (functional.cross_entropy(logits, target) + functional.cross_entropy(logits.t(), target)) / 2


def distilled(logits: Tensor) -> Tensor:
    teacher = data(*logits.shape)
    return (
        functional.kl_div(
            functional.log_softmax(logits / 2, -1), functional.softmax(teacher / 2, -1), reduction="batchmean"
        )
        * 4
    )


def attention(batch: int, heads: int, tokens: int, size: int, kv: int | None = None, **options: Any) -> Step:
    """The attention alone, with gradients."""
    leaves = [data(batch, n, tokens, size).requires_grad_() for n in (heads, kv or heads, kv or heads)]
    torch_xla.sync()
    result = functional.scaled_dot_product_attention(*leaves, **options)
    backward(result)
    return [result, *(leaf.grad for leaf in leaves)]


def attention_of_sum(batch: int, heads: int, tokens: int, size: int, **options: Any) -> Step:
    """The same of a query that was computed, by as little as may be."""
    leaves = [data(batch, heads, tokens, size).requires_grad_() for _ in range(3)]
    torch_xla.sync()
    query, key, value = leaves
    result = functional.scaled_dot_product_attention(query + query, key, value, **options)
    backward(result)
    return [result, *(leaf.grad for leaf in leaves)]


def decode(batch: int = 16, heads: int = 16, kv: int = 4, size: int = 128, cached: int = 2048) -> Step:
    """One token of a layer with a cache."""
    width = heads * size
    q, kvs, out = nn.Linear(width, width), nn.Linear(width, 2 * kv * size), nn.Linear(width, width)
    for module in (q, kvs, out):
        module.bfloat16().to("xla")
    x, keys, values, at = data(batch, 1, width), *(data(batch, kv, cached, size) for _ in range(2)), words(1)
    torch_xla.sync()
    with torch.no_grad():
        k, v = kvs(x).view(batch, 1, 2, kv, size).permute(2, 0, 3, 1, 4)
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        mask = torch.arange(cached, device=x.device) <= at
        query = q(x).view(batch, 1, heads, size).transpose(1, 2)
        result = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
        return [out(result.transpose(1, 2).flatten(2)), keys, values]


def prefill() -> Step:
    module = Block(1024, 16, is_causal=True).bfloat16().to("xla").eval()
    x = data(4, 1024, 1024)
    torch_xla.sync()
    with torch.no_grad():
        return [module(x)]


def autocast(module: nn.Module, x: Tensor) -> Step:
    """Parameters in float32, products in bfloat16, and AdamW."""

    def call(x: Tensor) -> Tensor:
        with torch.autocast("xla", bf16):
            return module(x)

    return step(module, x, call=call, optimizer=AdamW, dtype=f32)


def recurrent(kind: type[nn.Module], tokens: int, **options: bool) -> Step:
    module = kind(256, 256, batch_first=True, **options)
    return step(module, data(32, tokens, 256), call=lambda x: module(x)[0])


def clicks(batch: int = 4096) -> Step:
    """Embeddings of categories, their products by pairs, and a perceptron."""
    tables = nn.ModuleList([nn.Embedding(1000, 64) for _ in range(8)])
    top = nn.Sequential(nn.Linear(36 + 64, 256), nn.ReLU(), nn.Linear(256, 1))
    bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU())
    ids, clicked = words(8, batch), data(batch, 1)

    def call(x: Tensor) -> Tensor:
        dense = bottom(x)
        found = torch.stack([dense, *(table(ids[i]) for i, table in enumerate(tables))], 1)
        pairs = found @ found.transpose(1, 2)
        rows, columns = torch.tril_indices(9, 9, -1)
        pairs = pairs.flatten(1)[:, (rows * 9 + columns).to(x.device)]
        return functional.binary_cross_entropy_with_logits(top(torch.cat([dense, pairs], 1)), clicked)

    return step(nn.ModuleList([tables, top, bottom]), data(batch, 13), call=call)


PROGRAMS: dict[str, Callable[[], Step]] = {
    # blocks written by hand
    "GPT block, T 1024": lambda: step(Block(768, 12, is_causal=True), data(8, 1024, 768)),
    "GPT block, T 1000": lambda: step(Block(768, 12, is_causal=True), data(8, 1000, 768)),
    "GPT block, dropout": lambda: step(Block(768, 12, dropout=0.1, is_causal=True), data(8, 512, 768)),
    "GPT block, AdamW": lambda: step(Block(768, 12, is_causal=True), data(8, 512, 768), optimizer=AdamW),
    "GPT block, autocast": lambda: autocast(Block(768, 12, is_causal=True), data(8, 512, 768, dtype=f32)),
    "GPT block, float32": lambda: step(Block(768, 12, is_causal=True), data(4, 512, 768, dtype=f32), dtype=f32),
    "block, fused qkv, T 256": lambda: step(Block(768, 12, form="unbind"), data(16, 256, 768)),
    "nn.TransformerEncoderLayer": lambda: step(
        nn.TransformerEncoderLayer(512, 8, 2048, 0.1, batch_first=True), data(16, 256, 512)
    ),
    "DiT block": lambda: step(AdaptiveNorm(), data(8, 256, 1152), data(8, 1152)),
    # of transformers
    "Llama, GQA, T 2048": lambda: llama_layer(2048, 2),
    "Llama, GQA, T 128": lambda: llama_layer(128, 16),
    "Llama, T 4096": lambda: llama_layer(4096, 1, 1024, 8, 8),
    "Qwen 3": lambda: llama((Qwen3DecoderLayer, transformers.Qwen3Config), 1024, 4, 1024, 16, num_key_value_heads=8),
    "Gemma 3, heads of 256": lambda: llama(
        (Gemma3DecoderLayer, transformers.Gemma3TextConfig), 512, 4, 1152, 4, num_key_value_heads=1, head_dim=256
    ),
    "GPT-2, T 512": lambda: gpt2(512, 8),
    "BERT, padding, dropout": bert_with_padding,
    "T5 encoder": t5_encoder,
    "Whisper encoder, T 1500": whisper,
    "CLIP text, T 77": clip_text,
    "OPT, additive mask": opt,
    # of timm
    "ViT, T 197, AdamW": lambda: step(TimmBlock(768, 12, qkv_bias=True), data(32, 197, 768), optimizer=AdamW),
    "ViT, T 257": lambda: step(TimmBlock(1024, 16, qkv_bias=True), data(16, 257, 1024)),
    "Swin block": lambda: step(SwinTransformerBlock(192, (28, 28), 6, window_size=7), data(16, 28, 28, 192)),
    "ConvNeXt block": lambda: step(ConvNeXtBlock(192), data(16, 192, 28, 28)),
    "SwiGLU": lambda: step(SwiGLU(1024, 2816), data(4, 1024, 1024)),
    "MobileNet 3": lambda: step(timm.create_model("mobilenetv3_small_050"), data(32, 3, 64, 64)),
    # convolutions
    "bottleneck, SGD": lambda: step(
        Bottleneck(256), data(32, 256, 28, 28), optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    ),
    "UNet residual block": lambda: step(residual(256), data(8, 256, 32, 32)),
    # attention alone
    "attention, causal, T 4096": lambda: attention(1, 8, 4096, 128, is_causal=True),
    "attention, T 128, heads of 64": lambda: attention(32, 12, 128, 64),
    "attention, heads of 256": lambda: attention(2, 8, 1024, 256, is_causal=True),
    "attention, T 4096 to 77": lambda: step(CrossAttention(), data(4, 4096, 320), data(4, 77, 768)),
    "attention, additive mask": lambda: attention(4, 8, 512, 64, attn_mask=data(1, 8, 512, 512)),
    "attention, grouped": lambda: attention(2, 16, 1024, 128, kv=4, is_causal=True, enable_gqa=True),
    # other layers
    "experts, einsum": lambda: step(Experts(512, scattered=False), data(2048, 512)),
    "experts, one by one": lambda: step(Experts(512, scattered=True), data(2048, 512)),
    "LoRA": lambda: step(Lora(2048), data(4, 512, 2048)),
    "LSTM": lambda: recurrent(nn.LSTM, 16),
    "GRU": lambda: recurrent(nn.GRU, 16),
    "GRU, both directions": lambda: recurrent(nn.GRU, 16, bidirectional=True),
    "RNN": lambda: recurrent(nn.RNN, 16),
    "embeddings by pairs": clicks,
    # losses
    "tied embedding, 32 k": lambda: tied(1024, 4, 32000, 1024),
    "tied embedding, 50257, bfloat16": lambda: tied(1024, 2, 50257, 768, widened=False),
    "label smoothing, 1000": lambda: head(
        lambda x: functional.cross_entropy(x, words(1024), label_smoothing=0.1), 1024, 1024, 1000
    ),
    "distillation, 32 k": lambda: head(distilled, 1024, 512, 32000),
    "contrastive": lambda: step(nn.Identity(), data(2048, 512), data(2048, 512), call=contrastive),
    "regression, AdamW": lambda: head(
        lambda x: functional.mse_loss(x, data(*x.shape)), 4096, 1024, 1024, optimizer=AdamW
    ),
    # inference
    "decode": decode,
    "prefill": prefill,
    "attention alone, heads of 16": lambda: attention(8, 16, 256, 16, is_causal=True),
    "attention alone, heads of 16, T 1024": lambda: attention(4, 16, 1024, 16),
    "attention alone, heads of 32": lambda: attention(8, 16, 256, 32),
    "attention alone, heads of 64": lambda: attention(8, 16, 256, 64, is_causal=True),
    "attention alone, heads of 256": lambda: attention(4, 8, 512, 256, is_causal=True),
    "attention of a computed query, heads of 256": lambda: attention_of_sum(8, 8, 256, 256),
    "attention of a computed query, causal": lambda: attention_of_sum(8, 8, 256, 256, is_causal=True),
}


def stablehlo(tensors: Sequence[Tensor]) -> str:
    text: bytes = torch_xla._XLAC._get_stablehlo(list(tensors), "", [], False)
    return text.decode()


def without_initial_values() -> None:
    """They would take longer than all the rest."""
    for fill in ("normal_", "uniform_", "kaiming_uniform_", "xavier_uniform_", "trunc_normal_"):
        setattr(nn.init, fill, functools.partial(lambda tensor, *_, **__: tensor))


def main(programs: Mapping[str, Callable[[], Step]]) -> None:
    folder, column, *names = sys.argv[1:]
    without_initial_values()
    asked = contextlib.nullcontext()
    if column == "opted in":
        from torch_xla import experimental

        asked = experimental.native_mul_context()
    with asked:
        for name in names:
            torch_xla.manual_seed(0)
            (Path(folder) / name).write_text(stablehlo(programs[name]()))
            torch_xla.sync()  # nothing of it is pending in the next one


if __name__ == "__main__":
    main(PROGRAMS)
