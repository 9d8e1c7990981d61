"""Programs: attention."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def alibi_and_relative_bias(device):
    """ALiBi slopes and T5's buckets of relative positions."""
    slopes = torch.pow(2.0, -torch.arange(1, 5, device=device) * 2.0)
    position = torch.arange(20, device=device)
    relative = position[None] - position[:, None]
    alibi = slopes[:, None, None] * relative.clamp(max=0)
    distance = relative.abs()
    large = 8 + (torch.log(distance.float() / 8) / math.log(128 / 8) * 8).to(torch.long)
    large = torch.min(large, torch.full_like(large, 15))
    buckets = (relative > 0).to(torch.long) * 16 + torch.where(distance < 8, distance, large)
    return alibi, buckets


def bf16_against_a_mask(device):
    """Attention of bfloat16 with an additive mask of its smallest number."""
    q, k, v = (torch.randn(2, 2, 16, 32).bfloat16().to(device).requires_grad_() for _ in range(3))
    mask = torch.full((16, 16), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16).triu(1).to(device)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out.float().square().sum().backward()
    return out, q.grad, k.grad, v.grad


def boolean_mask_with_an_empty_row(device):
    """A padding mask that leaves a query nothing to attend to."""
    q, k, v = (torch.randn(1, 2, 4, 8).to(device) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[2] = False
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(device))


def causal_sdpa(device):
    """Causal attention and its gradients."""
    q, k, v = (torch.randn(2, 3, 6, 8).to(device).requires_grad_() for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out.square().sum().backward()
    return out, q.grad, k.grad, v.grad


def grouped_queries(device):
    """Grouped-query attention, by enable_gqa and by repeat_interleave."""
    q = torch.randn(2, 4, 5, 8).to(device)
    k, v = (torch.randn(2, 2, 5, 8).to(device) for _ in range(2))
    by_flag = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    return by_flag, F.scaled_dot_product_attention(q, k, v, is_causal=True)


def linear_attention_chunks(device):
    """Chunked linear attention with decay, as state-space models write it: cumsum, tril and einsum."""
    q, k, v = (torch.randn(2, 8, 4).to(device).requires_grad_() for _ in range(3))
    decay = -torch.rand(2, 8).to(device)
    total = decay.cumsum(1)
    within = (total[:, :, None] - total[:, None, :]).tril().exp().tril()
    out = torch.einsum("btd,bsd,bts,bse->bte", q, k, within, v)
    out.square().sum().backward()
    return out, q.grad, k.grad, v.grad


def multihead_module(device):
    """nn.MultiheadAttention with a padding mask, averaged weights, and another width of keys."""
    model = nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True).to(device)
    q, k, v = torch.randn(2, 3, 8).to(device), torch.randn(2, 5, 6).to(device), torch.randn(2, 5, 4).to(device)
    padding = torch.tensor([[False, False, False, True, True], [False] * 5]).to(device)
    out, weights = model(q, k, v, key_padding_mask=padding)
    out.sum().backward()
    return out, weights, [p.grad for p in model.parameters()]


def packed_documents(device):
    """Documents packed into a row: positions that begin anew, and a mask of equal documents."""
    document = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2]).to(device)
    start = torch.cat([torch.ones(1, dtype=torch.bool, device=device), document[1:] != document[:-1]])
    index = torch.arange(9, device=device)
    first = torch.cummax(torch.where(start, index, 0), 0).values
    lengths = torch.nn.functional.pad(torch.cumsum(torch.bincount(document), 0), (1, 0))
    return index - first, document[:, None] == document[None], lengths


def rotary_embedding(device):
    """Rotary embeddings as complex numbers and as halves, which must agree."""
    x = torch.randn(2, 5, 3, 8).to(device)
    frequencies = 1.0 / 10000 ** (torch.arange(0, 8, 2, device=device).float() / 8)
    angles = torch.outer(torch.arange(5, device=device).float(), frequencies)
    turns = torch.polar(torch.ones_like(angles), angles)
    by_complex = torch.view_as_real(torch.view_as_complex(x.reshape(2, 5, 3, 4, 2)) * turns[:, None]).flatten(3)
    cos, sin = (f(angles).repeat_interleave(2, -1)[:, None] for f in (torch.cos, torch.sin))
    halves = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(3)
    return by_complex, x * cos + halves * sin


def sliding_window_mask(device):
    """A causal mask with a sliding window, made of positions by comparison."""
    position = torch.arange(10, device=device)
    distance = position[:, None] - position[None]
    mask = (distance >= 0) & (distance < 4)
    blocks = position[:, None] // 3 == position[None] // 3
    additive = torch.zeros(10, 10, device=device).masked_fill(~(mask | blocks), float("-inf"))
    return mask, additive, additive.softmax(-1)


def transformer_decoder(device):
    """nn.Transformer from end to end, with causal masks."""
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True).to(device)
    source, target = torch.randn(2, 5, 8).to(device), torch.randn(2, 4, 8).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(4, device=device)
    out = model(source, target, tgt_mask=mask, tgt_is_causal=True)
    (out * target).mean().backward()
    return out, model.encoder.layers[0].self_attn.in_proj_weight.grad


def transformer_encoder_fast_path(device):
    """TransformerEncoder with a padding mask in evaluation mode, which takes nested tensors on other devices."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).to(device).eval()
    x = torch.randn(2, 5, 8).to(device)
    padding = torch.tensor([[False, False, False, True, True], [False] * 5]).to(device)
    with torch.no_grad():
        out = model(x, src_key_padding_mask=padding)
    return out[0, :3], out[1]
