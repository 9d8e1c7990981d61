"""nn.Transformer from end to end, with causal masks."""

import torch
from torch import nn


def program(device):
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True).to(device)
    source, target = torch.randn(2, 5, 8).to(device), torch.randn(2, 4, 8).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(4, device=device)
    out = model(source, target, tgt_mask=mask, tgt_is_causal=True)
    (out * target).mean().backward()
    return out, model.encoder.layers[0].self_attn.in_proj_weight.grad
