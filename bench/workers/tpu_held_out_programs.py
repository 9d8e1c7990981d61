"""Programs of bench/tpu_corpus.py that were written after the topics, and that nothing was tuned to.

    python bench/workers/tpu_held_out_programs.py FOLDER stock|castoff|"opted in" PROGRAM…

Runs as bench/workers/tpu_corpus_programs.py does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch_xla
import transformers
from timm.models.convnext import ConvNeXtBlock
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from timm.models.vision_transformer import Block as TimmBlock
from torch import Tensor, nn
from torch.nn import functional
from tpu_corpus_programs import SDPA, AdamW, Block, Step, bf16, data, decode, f32, head, llama, main, step, words
from transformers.models.dinov2.modeling_dinov2 import Dinov2Layer
from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer
from transformers.models.roberta.modeling_roberta import RobertaLayer
from transformers.models.siglip.modeling_siglip import SiglipEncoderLayer
from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2FeatureEncoder


class Causal(nn.Module):
    """Attention as nanoGPT writes it for devices without a kernel of it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).split(width, 2)
        q, k, v = (t.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // self.heads)
        mask = torch.tril(torch.ones(tokens, tokens, device=x.device)).view(1, 1, tokens, tokens)
        weights = functional.softmax(scores.masked_fill(mask == 0, float("-inf")), -1)
        return self.out((weights @ v).transpose(1, 2).contiguous().view(batch, tokens, width))


class Alibi(Causal):
    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (t.reshape(batch, tokens, self.heads, -1).permute(0, 2, 1, 3) for t in self.qkv(x).chunk(3, -1))
        place = torch.arange(tokens, device=x.device)
        slope = 2.0 ** (-torch.arange(1, self.heads + 1, device=x.device) * 8 / self.heads)
        bias = -(place[:, None] - place[None]).abs()[None] * slope[:, None, None]
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * (width // self.heads) ** -0.5 + bias.to(x.dtype)
        weights = scores.float().softmax(-1).to(x.dtype)
        found = torch.einsum("bhij,bhjd->bhid", weights, v)
        return self.out(found.permute(0, 2, 1, 3).reshape(batch, tokens, width))


class RelativePositions(Causal):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.bias = nn.Parameter(torch.zeros(2 * 512 - 1, heads))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        place = torch.arange(tokens, device=x.device)
        bias = self.bias[place[:, None] - place[None] + tokens - 1].permute(2, 0, 1)
        scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-1, -2) + bias
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width))


class Mixer(nn.Module):
    """A block of MLP-Mixer."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.tokens = nn.Sequential(nn.Linear(tokens, tokens * 2), nn.GELU(), nn.Linear(tokens * 2, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first = [nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128)]
        self.points = nn.Sequential(*first, nn.ReLU(), nn.Conv1d(128, 1024, 1), nn.BatchNorm1d(1024))
        self.head = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 40))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.points(x).max(2)[0])


def generator() -> nn.Module:
    """DCGAN's, of 32 x 32 pixels."""
    layers: list[nn.Module] = []
    width = 100
    for channels, stride, padding in ((512, 1, 0), (256, 2, 1), (128, 2, 1), (64, 2, 1)):
        convolution = nn.ConvTranspose2d(width, channels, 4, stride, padding, bias=False)
        layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU(True)]
        width = channels
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.deviation = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.decode = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.encode(x))
        mean, log = self.mean(hidden), self.deviation(hidden)
        found = self.decode(mean + torch.randn_like(mean) * torch.exp(0.5 * log))
        loss = functional.binary_cross_entropy_with_logits(found, torch.sigmoid(x), reduction="sum")
        return loss - 0.5 * torch.sum(1 + log - mean.pow(2) - log.exp())


class GraphConvolution(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.sent, self.own = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        sent = self.sent(x)[edges[0]]
        return functional.relu(self.own(x) + torch.zeros_like(x).index_add(0, edges[1], sent))


class GraphAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.project, self.score = nn.Linear(width, width, bias=False), nn.Linear(2 * width, 1)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.project(x)
        count = h.shape[0]
        pairs = torch.cat([h[:, None].expand(count, count, -1), h[None].expand(count, count, -1)], -1)
        scores = functional.leaky_relu(self.score(pairs).squeeze(-1), 0.2)
        scores = torch.where(adjacency > 0, scores, torch.full_like(scores, -9e15))
        return functional.elu(torch.softmax(scores, 1) @ h)


class LatentDiffusion(nn.Module):
    """A transformer block of Stable Diffusion's UNet, without the text."""

    def __init__(self, width: int = 320, heads: int = 8) -> None:
        super().__init__()
        self.norm, self.enter, self.heads = nn.GroupNorm(32, width), nn.Conv2d(width, width, 1), heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(3)])
        self.out, self.wide = nn.Linear(width, width), nn.Linear(width, width * 8)
        self.narrow = nn.Linear(width * 4, width)

    def forward(self, image: Tensor) -> Tensor:
        batch, width, rows, columns = image.shape
        x = self.enter(self.norm(image)).permute(0, 2, 3, 1).reshape(batch, rows * columns, width)
        y = self.norm1(x)
        q, k, v = (f(y).view(batch, -1, self.heads, width // self.heads).transpose(1, 2) for f in self.qkv)
        found = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(found.transpose(1, 2).reshape(batch, -1, width))
        a, gate = self.wide(self.norm2(x)).chunk(2, -1)
        x = x + self.narrow(a * functional.gelu(gate))
        return x.reshape(batch, rows, columns, width).permute(0, 3, 1, 2) + image


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def double(width: int, to: int) -> nn.Module:
            layers: list[nn.Module] = []
            for start in (width, to):
                layers += [nn.Conv2d(start, to, 3, padding=1), nn.BatchNorm2d(to), nn.ReLU()]
            return nn.Sequential(*layers)

        self.down1, self.down2, self.down3 = double(3, 32), double(32, 64), double(64, 128)
        self.up2, self.join2 = nn.ConvTranspose2d(128, 64, 2, 2), double(128, 64)
        self.up1, self.join1 = nn.ConvTranspose2d(64, 32, 2, 2), double(64, 32)
        self.out = nn.Conv2d(32, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(functional.max_pool2d(first, 2))
        third = self.down3(functional.max_pool2d(second, 2))
        second = self.join2(torch.cat([self.up2(third), second], 1))
        return self.out(self.join1(torch.cat([self.up1(second), first], 1)))


def dice(model: nn.Module, x: Tensor) -> Tensor:
    found, target = torch.sigmoid(model(x)), torch.ones_like(x[:, :1])
    shared, all_of_them = (found * target).sum((2, 3)), found.sum((2, 3)) + target.sum((2, 3))
    return 1 - (2 * shared + 1).div(all_of_them + 1).mean()


def segmentation() -> Step:
    model = UNet()
    return step(model, data(4, 3, 128, 128, dtype=f32), dtype=f32, call=lambda x: dice(model, x))


class Dilated(nn.Module):
    """WaveNet's layers, with one convolution for gate and filter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(256, 256, 3, padding=2**i, dilation=2**i) for i in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) * torch.sigmoid(layer(x))
        return x


class Normalised(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.RMSNorm(width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(512, 8, 2048, batch_first=True, norm_first=True, dropout=0.0)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(256))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.layer(x, memory, tgt_mask=self.mask.to(x.dtype))


def focal() -> Step:
    classes = words(4096)

    def loss(logits: Tensor) -> Tensor:
        found = functional.cross_entropy(logits.float(), classes, reduction="none")
        return ((1 - torch.exp(-found)) ** 2 * found).mean()

    return head(loss, 4096, 512, 1000)


def beams() -> Step:
    """A step of a search with 4 beams."""
    logits, scores = data(8, 4, 32000, dtype=f32), data(8, 4, dtype=f32)
    found = functional.log_softmax(logits, -1) + scores[..., None]
    best, place = found.view(8, -1).topk(8)
    return [best, place // 32000, place % 32000]


def int8_weight() -> Step:
    weight = torch.randint(-128, 127, (4096, 4096), dtype=torch.int8).to("xla")
    scale, x = data(4096, 1), data(8, 4096)
    return [functional.linear(x, weight.to(bf16) * scale)]


def clipped() -> Step:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    ((model(data(256, 1024, dtype=f32)) - data(256, 1024, dtype=f32)) ** 2).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return [*model.parameters(), *(state["momentum_buffer"] for state in optimizer.state.values())]


def published(kind: str, tokens: tuple[int, int], **sizes: Any) -> Step:
    """A language model of transformers with few layers and words: forward and backward of its last hidden state."""
    config = transformers.AutoConfig.for_model(kind, vocab_size=8192, pad_token_id=0, use_cache=False, **sizes)
    config._attn_implementation = sizes.get("attn_implementation", "sdpa")
    model = transformers.AutoModel.from_config(config)
    return step(model, words(*tokens), call=lambda x: model(input_ids=x).last_hidden_state)


class SeparateProjections(Causal):
    """Attention and a perceptron as CLIP and DINOv2 have them: a product each for query, key and value."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        del self.qkv

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(batch, tokens, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        found = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(found.transpose(1, 2).contiguous().reshape(batch, tokens, width))
        return x + self.mlp(self.norm2(x))


class LatentAttention(nn.Module):
    """Keys and values from a narrow latent, as DeepSeek has them."""

    def __init__(self, width: int = 1024, heads: int = 8, latent: int = 256, plain: int = 64, turned: int = 32) -> None:
        super().__init__()
        self.heads, self.plain, self.turned = heads, plain, turned
        self.query = nn.Linear(width, heads * (plain + turned), bias=False)
        self.down, self.norm = nn.Linear(width, latent + turned, bias=False), nn.RMSNorm(latent)
        self.up = nn.Linear(latent, heads * 2 * plain, bias=False)
        self.out = nn.Linear(heads * plain, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q = self.query(x).view(batch, tokens, self.heads, -1).transpose(1, 2)
        latent, turned = self.down(x).split([self.norm.normalized_shape[0], self.turned], -1)
        k, v = self.up(self.norm(latent)).view(batch, tokens, self.heads, -1).transpose(1, 2).chunk(2, -1)
        k = torch.cat([k, turned[:, None].expand(batch, self.heads, tokens, self.turned)], -1)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, tokens, -1))


class Resampler(nn.Module):
    """Few learned queries of all tokens and of themselves, as Perceiver and Flamingo have them."""

    def __init__(self, width: int = 1024, heads: int = 16, queries: int = 64) -> None:
        super().__init__()
        self.queries, self.heads = nn.Parameter(torch.zeros(queries, width)), heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.queries.expand(x.shape[0], -1, -1)
        x, y = self.norm1(x), self.norm2(queries)
        parts = self.q(y), *self.kv(torch.cat([x, y], 1)).chunk(2, -1)
        q, k, v = (t.reshape(t.shape[0], t.shape[1], self.heads, -1).transpose(1, 2) for t in parts)
        return queries + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def attention_with_weights(*, returned: bool) -> Step:
    module = nn.MultiheadAttention(512, 8, dropout=0.1, batch_first=True)
    padding = torch.zeros(8, 256, dtype=torch.bool).to("xla")

    def call(x: Tensor) -> Tensor:
        return module(x, x, x, key_padding_mask=padding, need_weights=returned)[0]

    return step(module, data(8, 256, 512), call=call)


def siglip() -> Step:
    config = transformers.SiglipVisionConfig(**SDPA)
    module = SiglipEncoderLayer(config)
    return step(module, data(8, 196, 768), call=lambda x: module(x, None), optimizer=AdamW)


def dinov2() -> Step:
    return step(Dinov2Layer(transformers.Dinov2Config(**SDPA)), data(8, 257, 768), optimizer=AdamW)


def gemma2() -> Step:
    """Its scores are bounded by tanh, which only eager attention has."""
    sizes = {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128}
    config = transformers.Gemma2Config(**sizes, intermediate_size=4096, attn_implementation="eager")
    module, mask = Gemma2DecoderLayer(config, 1), data(1, 1, 512, 512)
    angles = (data(1, 512, 128), data(1, 512, 128))

    def call(x: Tensor) -> Any:
        return module(x, position_embeddings=angles, attention_mask=mask)

    return step(module, data(4, 512, 1024), call=call, optimizer=AdamW)


def t5_with_bias() -> Step:
    """An encoder of one layer, whose positions are buckets of distances."""
    config = transformers.T5Config(vocab_size=8192, num_layers=1, dropout_rate=0.1)
    model = transformers.T5EncoderModel(config)
    return step(model, words(8, 256), call=lambda x: model(input_ids=x).last_hidden_state, optimizer=AdamW)


class Translation(nn.Module):
    """nn.Transformer with a layer each, and the loss of the next word."""

    def __init__(self, classes: int = 8192, width: int = 512) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(classes, width), nn.Embedding(classes, width)
        self.transformer = nn.Transformer(width, 8, 1, 1, 2048, batch_first=True)
        self.out = nn.Linear(width, classes)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1] - 1, dtype=bf16).to(target.device)
        inputs = self.source(source), self.target(target[:, :-1])
        found = self.transformer(*inputs, tgt_mask=mask, tgt_is_causal=True)
        return functional.cross_entropy(self.out(found).flatten(0, 1), target[:, 1:].flatten())


def triplets() -> Step:
    model = nn.Sequential(nn.Linear(768, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 256))
    loss = nn.TripletMarginLoss(margin=0.2)

    def call(*inputs: Tensor) -> Tensor:
        return loss(*(functional.normalize(model(x), dim=-1) for x in inputs))

    return step(model, *(data(1024, 768) for _ in range(3)), call=call, optimizer=AdamW)


class SelectiveScan(nn.Module):
    """A block of Mamba 2, whose scan is by sums of logarithms: in one chunk, without a kernel."""

    def __init__(self, width: int = 512, heads: int = 16, state: int = 64) -> None:
        super().__init__()
        inner, self.heads, self.state = 2 * width, heads, state
        self.sizes = (inner, inner + 2 * state, heads)
        self.enter, self.out = nn.Linear(width, sum(self.sizes), bias=False), nn.Linear(inner, width, bias=False)
        self.mix = nn.Conv1d(self.sizes[1], self.sizes[1], 4, groups=self.sizes[1], padding=3)
        self.rate, self.skip, self.norm = (
            nn.Parameter(torch.zeros(heads)),
            nn.Parameter(torch.ones(heads)),
            nn.RMSNorm(inner),
        )

    def forward(self, u: Tensor) -> Tensor:
        batch, tokens, _ = u.shape
        gate, mixed, step_size = self.enter(u).split(self.sizes, -1)
        mixed = functional.silu(self.mix(mixed.transpose(1, 2))[..., :tokens].transpose(1, 2))
        x, b, c = mixed.split((self.sizes[0], self.state, self.state), -1)
        x, step_size = x.unflatten(-1, (self.heads, -1)), functional.softplus(step_size)
        decay = (-step_size * self.rate.exp()).cumsum(1).transpose(1, 2)
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=u.device).triu(1)
        decays = (decay[..., :, None] - decay[..., None, :]).masked_fill(later, -torch.inf).exp()
        scores = torch.einsum("bln,bsn->bls", c, b)[:, None] * decays
        found = torch.einsum("bhls,bshp->blhp", scores, x * step_size[..., None]) + self.skip[:, None] * x
        return self.out(self.norm(found.reshape(batch, tokens, -1) * functional.silu(gate)))


class TimedResidual(nn.Module):
    """A residual block of a diffusion model's UNet, with the time's embedding."""

    def __init__(self, width: int, to: int, time: int = 512) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, width), nn.GroupNorm(32, to)
        self.conv1, self.conv2 = nn.Conv2d(width, to, 3, padding=1), nn.Conv2d(to, to, 3, padding=1)
        self.time, self.short = nn.Linear(time, to), nn.Conv2d(width, to, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(functional.silu(self.norm1(x))) + self.time(functional.silu(time))[..., None, None]
        return self.conv2(functional.silu(self.norm2(y))) + self.short(x)


def roberta() -> Step:
    """One layer of an encoder for sentences that are filled up to the longest."""
    config = transformers.RobertaConfig(**SDPA)
    module, seen = RobertaLayer(config), words(16, 1, 1, 200)
    return step(module, data(16, 200, 768), call=lambda x: module(x, seen > 0), optimizer=AdamW)


def cross_encoder() -> Step:
    """DistilBERT of one layer that tells whether a text answers a question."""
    config = transformers.DistilBertConfig(vocab_size=8192, n_layers=1, num_labels=1, **SDPA)
    model = transformers.DistilBertForSequenceClassification(config)
    ids, seen, labels = words(16, 128), words(16, 128), data(16)

    def call(x: Tensor) -> Tensor:
        logits = model(input_ids=x, attention_mask=seen).logits.squeeze(-1)
        return functional.binary_cross_entropy_with_logits(logits, labels)

    return step(model, ids, call=call, optimizer=AdamW)


def speech_features() -> Step:
    """wav2vec 2.0's convolutions of a second of sound."""
    config = transformers.Wav2Vec2Config(conv_dim=(256,) * 7)
    module = Wav2Vec2FeatureEncoder(config)
    return step(module, data(4, 16000), call=lambda x: module(x.detach()))


class EdgeAttention(nn.Module):
    """GAT over a list of edges: a softmax over those that lead to a node."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.project, self.heads = nn.Linear(width, width, bias=False), heads
        self.sent, self.got = (nn.Parameter(torch.zeros(heads, width // heads)) for _ in range(2))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h, (source, target) = self.project(x).unflatten(-1, (self.heads, -1)), edges
        scores = (h * self.sent).sum(-1)[source] + (h * self.got).sum(-1)[target]
        scores = functional.leaky_relu(scores, 0.2)
        where = target[:, None].expand_as(scores)
        empty = scores.new_full((len(x), self.heads), -torch.inf)
        powers = (scores - empty.scatter_reduce(0, where, scores, "amax").detach()[target]).exp()
        weights = powers / torch.zeros_like(empty).index_add(0, target, powers)[target]
        return torch.zeros_like(h).index_add(0, target, h[source] * weights[..., None]).flatten(1)


def two_views(count: int = 2048, width: int = 128) -> Step:
    """SimCLR's loss of a head's projections."""
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, width))

    def call(*views: Tensor) -> Tensor:
        z = functional.normalize(torch.cat([model(x) for x in views]), dim=1)
        alike = z @ z.t() / 0.5
        alike = alike.masked_fill(torch.eye(2 * count, dtype=torch.bool, device=z.device), -torch.inf)
        return functional.cross_entropy(alike, torch.arange(2 * count, device=z.device).roll(count))

    return step(model, data(count, 512), data(count, 512), call=call, optimizer=AdamW)


def served(module: nn.Module, *inputs: Tensor) -> Step:
    """Forward alone."""
    module.to(bf16).to("xla").eval()
    torch_xla.sync()
    with torch.no_grad():
        return [module(*inputs)]


def beam_step(beams: int = 16, heads: int = 8, size: int = 64, cached: int = 512, classes: int = 32000) -> Step:
    """A token of every beam: the caches of those that went on are taken, and a layer reads them."""
    width = heads * size
    qkv, out = nn.Linear(width, 3 * width).to(bf16).to("xla"), nn.Linear(width, classes).to(bf16).to("xla")
    x, keys, values, chosen, at = (
        data(beams, 1, width),
        *(data(beams, heads, cached, size) for _ in "kv"),
        words(beams),
        words(1),
    )
    torch_xla.sync()
    with torch.no_grad():
        keys, values = keys.index_select(0, chosen), values.index_select(0, chosen)
        q, k, v = (t.view(beams, 1, heads, size).transpose(1, 2) for t in qkv(x[chosen]).chunk(3, -1))
        keys, values = keys.index_copy(2, at, k), values.index_copy(2, at, v)
        mask = (torch.arange(cached, device=x.device) <= at)[None, None, None]
        found = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        logits = functional.log_softmax(out(found.transpose(1, 2).flatten(2)).float()[:, 0], -1)
        return [*logits.topk(2 * beams), keys, values]


def deberta() -> Step:
    """Scores of contents and of places, gathered by distance."""
    config = transformers.DebertaV2Config(
        hidden_size=512,
        num_attention_heads=8,
        intermediate_size=2048,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=64,
        max_relative_positions=128,
        vocab_size=4096,
        num_hidden_layers=1,
        share_att_key=True,
    )
    model = transformers.DebertaV2Model(config)
    return step(model, words(8, 128), call=lambda x: model(input_ids=x).last_hidden_state, optimizer=AdamW)


MISTRAL = (MistralDecoderLayer, transformers.MistralConfig)
LLAMA = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 1}
MIXTRAL = (MixtralDecoderLayer, transformers.MixtralConfig)

PROGRAMS: dict[str, Callable[[], Step]] = {
    "attention by hand": lambda: step(Causal(768, 12), data(8, 512, 768)),
    "ALiBi by hand": lambda: step(Alibi(1024, 16), data(4, 512, 1024)),
    "relative positions": lambda: step(RelativePositions(768, 12), data(4, 512, 768)),
    "Mistral": lambda: llama(MISTRAL, 1024, 2, 1024, 8, num_key_value_heads=2),
    "Mixtral": lambda: llama(MIXTRAL, 512, 2, 512, 8, num_key_value_heads=2, num_local_experts=4),
    "nn.TransformerDecoderLayer": lambda: step(Decoder(), data(8, 256, 512), data(8, 384, 512)),
    "latent diffusion block": lambda: step(LatentDiffusion(), data(2, 320, 32, 32)),
    "MLP-Mixer block": lambda: step(Mixer(196, 768), data(16, 196, 768)),
    "nn.RMSNorm": lambda: step(Normalised(2048), data(4, 1024, 2048)),
    "PointNet": lambda: step(PointNet(), data(32, 3, 1024)),
    "DCGAN generator, float32": lambda: step(generator(), data(64, 100, 1, 1, dtype=f32), dtype=f32),
    "UNet": lambda: step(UNet(), data(4, 3, 128, 128)),
    "UNet, dice, float32": segmentation,
    "WaveNet layers": lambda: step(Dilated(), data(8, 256, 1024)),
    "VAE, Adam, float32": lambda: step(Vae(), data(256, 784, dtype=f32), dtype=f32, optimizer=torch.optim.Adam),
    "graph convolution": lambda: step(GraphConvolution(256), data(4096, 256), words(2, 16384) % 4096),
    "graph attention": lambda: step(GraphAttention(64), data(256, 64), data(256, 256)),
    "focal loss": focal,
    "SGD, clipped, float32": clipped,
    "beam search": beams,
    "int8 weight": int8_weight,
    "Falcon": lambda: published("falcon", (2, 1024), hidden_size=1024, num_attention_heads=16, num_hidden_layers=1),
    "BLOOM": lambda: published("bloom", (2, 512), hidden_size=1024, n_head=16, n_layer=1, attn_implementation="eager"),
    "Phi 3": lambda: published("phi3", (2, 1024), **LLAMA, num_attention_heads=16, num_key_value_heads=16),
    "OLMo 2": lambda: published("olmo2", (2, 512), **LLAMA, num_attention_heads=8),
    "RoBERTa": lambda: published("roberta", (8, 256), hidden_size=768, num_hidden_layers=1),
    "vision layer, T 257": lambda: step(SeparateProjections(768, 12), data(8, 257, 768)),
    "latent attention": lambda: step(LatentAttention(), data(2, 1024, 1024)),
    "resampler": lambda: step(Resampler(), data(8, 576, 1024)),
    "nn.MultiheadAttention": lambda: attention_with_weights(returned=False),
    "nn.MultiheadAttention, weights": lambda: attention_with_weights(returned=True),
    "LSTM, both directions, float32": lambda: step(
        nn.LSTM(256, 256, 2, bidirectional=True, batch_first=True), data(32, 64, 256, dtype=f32), dtype=f32
    ),
    "SigLIP, AdamW": siglip,
    "DINOv2, AdamW": dinov2,
    "Gemma 2, softcap, AdamW": gemma2,
    "Swin block, shifted, AdamW": lambda: step(
        SwinTransformerBlock(192, (28, 28), 6, window_size=7, shift_size=3), data(16, 28, 28, 192), optimizer=AdamW
    ),
    "Swin 2 block, AdamW": lambda: step(
        SwinTransformerV2Block(192, (28, 28), 6, window_size=7, shift_size=3), data(16, 28, 28, 192), optimizer=AdamW
    ),
    "T5, relative bias, AdamW": t5_with_bias,
    "nn.Transformer, AdamW": lambda: step(Translation(), words(8, 256), words(8, 257), optimizer=AdamW),
    "triplet loss, AdamW": triplets,
    "decode, one query": lambda: decode(1, 32, 32, 128, 4096),
    "selective scan, AdamW": lambda: step(SelectiveScan(), data(4, 256, 512), optimizer=AdamW),
    "diffusion residual, AdamW": lambda: step(
        TimedResidual(256, 320), data(8, 256, 32, 32), data(8, 512), optimizer=AdamW
    ),
    "ConvNeXt 2 block, AdamW": lambda: step(
        ConvNeXtBlock(192, use_grn=True, ls_init_value=None), data(16, 192, 28, 28), optimizer=AdamW
    ),
    "RoBERTa layer, padding, dropout, T 200": roberta,
    "cross-encoder, AdamW": cross_encoder,
    "DeBERTa 2, AdamW": deberta,
    "wav2vec 2 features": speech_features,
    "graph attention, edges": lambda: step(EdgeAttention(256, 8), data(2048, 256), words(2, 16384) % 2048),
    "two views, AdamW": two_views,
    "vision layer, T 257, served": lambda: served(SeparateProjections(768, 12), data(8, 257, 768)),
    "vision layer, T 577, served": lambda: served(SeparateProjections(1024, 16), data(4, 577, 1024)),
    "GPT block, dropout, T 255": lambda: step(Block(768, 12, dropout=0.1, is_causal=True), data(8, 255, 768)),
    "ViT, dropout, T 197": lambda: step(
        TimmBlock(768, 12, qkv_bias=True, attn_drop=0.1, proj_drop=0.1), data(16, 197, 768)
    ),
    "beam step": beam_step,
}

if __name__ == "__main__":
    main(PROGRAMS)
