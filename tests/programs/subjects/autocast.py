"""Programs: autocast."""

import torch
import torch.nn.functional as F
from options import options
from torch import nn


@options(tolerance=3e-2)
def attention_of_mixed_dtypes(device):
    """SDPA under autocast of a float32 query and bfloat16 keys, as rotary embeddings leave them."""
    q = torch.randn(1, 2, 4, 8).to(device)
    k, v = (torch.randn(1, 2, 4, 8).bfloat16().to(device) for _ in range(2))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@options(tolerance=4e-2)
def convolution_norm_linear(device):
    """Convolution, batch norm and a linear layer under autocast (pytorch/xla#9014)."""
    conv, norm, linear = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)
    model = nn.ModuleList([conv, norm, linear]).to(device)
    x = torch.randn(4, 1, 8, 8).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = linear(norm(conv(x)).relu().mean((2, 3)))
        loss = out.float().square().mean()
    loss.backward()
    return loss, [str(p.grad.dtype) for p in model.parameters()], linear.weight.grad


class _Scale(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="xla", cast_inputs=torch.float32)
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="xla")
    def backward(ctx, g):
        return g * 2


@options(tolerance=3e-2)
def disabled_inside(device):
    """A region with autocast off inside of one with it on, and a custom function."""
    x, w = torch.randn(3, 4).to(device), torch.randn(4, 4).to(device).requires_grad_()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        y = x @ w
        with torch.autocast(device.type, enabled=False):
            z = y.float() @ w
        again = torch.is_autocast_enabled(device.type)
    z.sum().backward()
    return str(y.dtype), z, again, w.grad


def gradient_scaler(device):
    """A GradScaler that is off, as training code has it for bfloat16."""
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    loss = model(torch.ones(3, 4).to(device)).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return list(model.parameters()), scaler.get_scale()


@options(tolerance=3e-2)
def linear_and_softmax(device):
    """Under autocast: dtypes of products, of softmax and of losses, forward and backward."""
    x, w = torch.randn(4, 8).to(device), torch.randn(5, 8).to(device).requires_grad_()
    labels = torch.tensor([0, 1, 2, 4]).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = F.linear(x, w)
        p = out.softmax(-1) if device.type == "xla" else out.float().softmax(-1)
        loss = F.cross_entropy(out.float(), labels)
    loss.backward()
    return str(out.dtype), str(p.dtype), loss, w.grad


@options(tolerance=3e-2)
def weights_are_cast_once(device):
    """Under autocast a weight is used twice, and its gradient is the sum of both."""
    w, x = torch.randn(4, 4).to(device).requires_grad_(), torch.randn(3, 4).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = ((x @ w).tanh() @ w).float().sum()
    loss.backward()
    return w.grad, str(w.grad.dtype)
