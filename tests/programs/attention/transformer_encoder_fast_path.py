"""TransformerEncoder with a padding mask in evaluation mode, which takes nested tensors on other devices."""

import torch
from torch import nn


def program(device):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).to(device).eval()
    x = torch.randn(2, 5, 8).to(device)
    padding = torch.tensor([[False, False, False, True, True], [False] * 5]).to(device)
    with torch.no_grad():
        out = model(x, src_key_padding_mask=padding)
    return out[0, :3], out[1]
