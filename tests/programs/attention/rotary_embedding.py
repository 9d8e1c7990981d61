"""Rotary embeddings as complex numbers and as halves, which must agree."""

import torch


def program(device):
    x = torch.randn(2, 5, 3, 8).to(device)
    frequencies = 1.0 / 10000 ** (torch.arange(0, 8, 2, device=device).float() / 8)
    angles = torch.outer(torch.arange(5, device=device).float(), frequencies)
    turns = torch.polar(torch.ones_like(angles), angles)
    by_complex = torch.view_as_real(torch.view_as_complex(x.reshape(2, 5, 3, 4, 2)) * turns[:, None]).flatten(3)
    cos, sin = (f(angles).repeat_interleave(2, -1)[:, None] for f in (torch.cos, torch.sin))
    halves = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(3)
    return by_complex, x * cos + halves * sin
