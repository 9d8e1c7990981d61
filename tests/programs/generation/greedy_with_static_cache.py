"""Greedy generation with a cache that is written by index_copy_ (huggingface/transformers#31857)."""

import torch
import torch.nn.functional as F


def program(device):
    table = torch.randn(16, 8).to(device)
    keys, values = torch.zeros(1, 10, 8, device=device), torch.zeros(1, 10, 8, device=device)
    token, tokens = torch.tensor([3], device=device), []
    for step in range(5):
        x = table[token][:, None]
        where = torch.tensor([step], device=device)
        keys.index_copy_(1, where, x)
        values.index_copy_(1, where, x * 0.5)
        mask = torch.arange(10, device=device)[None, None] <= step
        out = F.scaled_dot_product_attention(x, keys, values, attn_mask=mask)
        token = (out[:, 0] @ table.t()).argmax(-1)
        tokens.append(token)
    return torch.cat(tokens), keys
