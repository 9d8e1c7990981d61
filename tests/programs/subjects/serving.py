"""Programs: serving."""

import torch
import torch.nn.functional as F
from torch import nn


def batched_embeddings(device):
    """Mean-pooled, normalized embeddings and the top of a similarity search."""
    table, ids = torch.randn(20, 8).to(device), torch.randint(0, 20, (3, 6)).to(device)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]).to(device)
    x = F.embedding(ids, table) * mask.unsqueeze(-1)
    pooled = F.normalize(x.sum(1) / mask.sum(1, keepdim=True), p=2, dim=1)
    scores = pooled @ F.normalize(table).t()
    values, indices = scores.topk(3)
    return pooled, values, indices, F.cosine_similarity(pooled[:1], pooled)


def export_program(device):
    """torch.export of a model, and its program on the device."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    exported = torch.export.export(model, (torch.ones(2, 4),)).module()
    return exported.to(device)(torch.arange(8.0).view(2, 4).to(device))


def inference_mode_layers(device):
    """Layers under inference_mode: linear, normalization, convolution, attention, views and writes to slices."""
    linear, norm, conv = nn.Linear(4, 4).to(device), nn.LayerNorm(4).to(device), nn.Conv1d(2, 3, 3).to(device)
    x = torch.randn(2, 2, 4).to(device)
    with torch.inference_mode():
        y = norm(linear(x)).view(2, 2, 2, 2).transpose(1, 2)
        attended = F.scaled_dot_product_attention(y, y, y, is_causal=True)
        cache = torch.zeros(2, 2, 4, device=device)
        cache[:, 1:] = x[:, :1]
        return y, attended, conv(x), cache, cache.is_inference()


def inference_tensors_in_autograd(device):
    """A tensor of inference_mode is refused by autograd, and its clone is not."""
    w = torch.ones(3).to(device).requires_grad_()
    with torch.inference_mode():
        x = torch.ones(3).to(device) * 2
    (w * x.clone()).sum().backward()
    try:
        (w * x).sum().backward()
    except RuntimeError as error:
        return w.grad, "Inference tensors" in str(error)
    return w.grad, False


def int8_linear(device):
    """A weight of int8 with a scale for each channel, and dynamic quantization of activations."""
    w, x = torch.randn(5, 8).to(device), torch.randn(3, 8).to(device)
    scale = w.abs().amax(1, keepdim=True) / 127
    q = (w / scale).round().clamp(-128, 127).to(torch.int8)
    x_scale = x.abs().amax(1, keepdim=True) / 127
    xq = torch.round(x / x_scale).to(torch.int8)
    exact = torch.matmul(xq.to(torch.int32), q.t().to(torch.int32))
    return q, xq, exact, exact * x_scale * scale.t(), (x @ q.t().to(x.dtype)) * scale.t()


def no_grad_generation_loop(device):
    """A loop of steps under no_grad with a sync after each, and a cache that is a list of pairs."""
    layer, cache, x = nn.Linear(4, 4).to(device), [], torch.ones(1, 4).to(device)
    with torch.no_grad():
        for _ in range(4):
            x = torch.tanh(layer(x))
            cache.append((x, x * 2))
            if device.type == "xla":
                import torch_xla

                torch_xla.sync()
        keys = torch.cat([k for k, _ in cache])
    return x, keys, x.requires_grad


def unpack_int4(device):
    """Weights of four bits, packed into bytes and unpacked by shifts and masks, as AWQ and GPTQ do."""
    packed = torch.tensor([[0x12, 0xF0], [0x7F, 0x80]], dtype=torch.uint8).to(device)
    low, high = packed & 0xF, packed >> 4
    nibbles = torch.stack([low, high], -1).flatten(1).to(torch.int8)
    signed = torch.where(nibbles > 7, nibbles - 16, nibbles)
    words = torch.tensor([0x76543210, -1985229329], dtype=torch.int32).to(device)
    shifts = torch.arange(0, 32, 4, device=device, dtype=torch.int32)
    return signed, torch.bitwise_right_shift(words[:, None], shifts[None]) & 0xF
