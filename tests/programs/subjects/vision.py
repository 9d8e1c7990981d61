"""Programs: vision."""

import itertools

import torch
import torch.nn.functional as F
from options import options
from torch import nn


def anti_aliased_and_3d(device):
    """Three-dimensional convolutions and pooling, and upsampling of volumes."""
    conv, up = nn.Conv3d(2, 3, 3, padding=1).to(device), nn.ConvTranspose3d(3, 2, 2, stride=2).to(device)
    x = torch.randn(1, 2, 4, 4, 4).to(device).requires_grad_()
    y = up(F.max_pool3d(conv(x), 2))
    z = F.interpolate(y, scale_factor=2, mode="trilinear")
    z.square().mean().backward()
    return y, z, x.grad, conv.weight.grad, F.adaptive_avg_pool3d(y, 1)


def boxes(device):
    """Intersection over union of boxes and a greedy suppression of those that overlap."""
    boxes = torch.tensor([[0.0, 0, 4, 4], [1, 1, 5, 5], [6, 6, 8, 8], [0, 0, 4, 3]]).to(device)
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6]).to(device)
    low = torch.max(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.min(boxes[:, None, 2:], boxes[None, :, 2:])
    inter = (high - low).clamp(min=0).prod(-1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    iou = inter / (area[:, None] + area[None] - inter)
    keep = torch.ones(4, dtype=torch.bool, device=device)
    for i in scores.argsort(descending=True).tolist():
        if keep[i]:
            keep &= ~((iou[i] > 0.5) & (torch.arange(4, device=device) > i))
    return iou, keep, boxes[keep]


def convolutions(device):
    """Convolutions with stride, dilation, groups, and transposed, with their gradients."""
    layers = [
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.Conv2d(4, 4, 3, dilation=2, groups=4),
        nn.Conv2d(4, 6, (1, 3), padding="same"),
        nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1),
        nn.Conv2d(4, 8, 3, padding_mode="circular", padding=1),
    ]
    results = []
    for layer in layers:
        layer.to(device)
        x = torch.randn(2, 4, 8, 8).to(device).requires_grad_()
        y = layer(x)
        y.square().mean().backward()
        results += [y, x.grad, layer.weight.grad, layer.bias.grad]
    return results


def dilated_max_pool(device):
    """The gradient of a max pooling with dilation."""
    x = torch.randn(1, 2, 8, 8).to(device).requires_grad_()
    out = F.max_pool2d(x, 2, stride=1, dilation=2)
    out.square().sum().backward()
    return out, x.grad


def frozen_batch_norm(device):
    """Batch norm in evaluation mode with gradients, and frozen in a model that trains."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)).to(device)
    model(torch.randn(4, 1, 6, 6).to(device))
    model[1].eval()
    x = torch.randn(4, 1, 6, 6).to(device).requires_grad_()
    y = model(x)
    y.square().sum().backward()
    return y, x.grad, [p.grad for p in model.parameters()], model[1].running_var


def grid_sample(device):
    """A spatial transformer: affine_grid and grid_sample, with gradients of both."""
    x = torch.randn(1, 2, 5, 5).to(device).requires_grad_()
    theta = torch.tensor([[[0.8, 0.1, 0.2], [-0.1, 0.9, -0.1]]]).to(device).requires_grad_()
    grid = F.affine_grid(theta, (1, 2, 4, 4), align_corners=False)
    y = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    y.square().sum().backward()
    return y, x.grad, theta.grad


def interpolate(device):
    """interpolate by size and by scale, nearest, bilinear and bicubic, with gradients."""
    x = torch.randn(1, 2, 4, 5).to(device).requires_grad_()
    outs = [
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(7, 3)),
        F.interpolate(x, scale_factor=1.5, mode="bilinear"),
        F.interpolate(x, size=(8, 9), mode="bilinear", align_corners=True),
        F.interpolate(x, size=(6, 6), mode="bicubic"),
        F.interpolate(x, scale_factor=(2, 0.5), mode="nearest-exact"),
        F.interpolate(x, size=3, mode="area"),
    ]
    sum(o.square().sum() for o in outs).backward()
    return outs, x.grad


def interpolate_near_a_multiple(device):
    """Nearest interpolation by a scale whose output is as long as the input, or twice as long."""
    results = []
    for scale, dims in itertools.product((1.3, 1.6, 2.1, 2.3), (1, 2, 3)):
        x = torch.arange(3.0**dims).view(1, 1, *[3] * dims).to(device).requires_grad_()
        y = F.interpolate(x, scale_factor=scale, mode="nearest")
        (y * torch.arange(1.0, y.numel() + 1).view_as(y).to(device)).sum().backward()
        results += [y, x.grad]
    return results


def normalizations(device):
    """Batch, group, instance, layer and RMS normalization in training, with gradients and running statistics."""
    results = []
    for layer in (
        nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        nn.LayerNorm([4, 5, 5]), nn.RMSNorm(5), nn.LocalResponseNorm(2), nn.BatchNorm2d(4, momentum=None),
    ):  # fmt: skip
        layer.to(device)
        x = torch.randn(3, 4, 5, 5).to(device).requires_grad_()
        y = layer(x)
        (y * torch.arange(5.0).to(device)).sum().backward()
        results += [y, x.grad, [p.grad for p in layer.parameters()], list(layer.buffers())]
    return results


def padding(device):
    """Padding: constant, reflection, replication, circular, and negative."""
    x = torch.randn(1, 2, 5, 5).to(device).requires_grad_()
    outs = [F.pad(x, (1, 2, 0, 1), mode=mode) for mode in ("constant", "reflect", "replicate", "circular")]
    outs += [F.pad(x, (-1, -1, 1, -2)), F.pad(x, (0, 0, 1, 0), value=float("-inf")).exp()]
    sum(o.square().sum() for o in outs).backward()
    return outs, x.grad


def patches_and_windows(device):
    """Patches of images by unfold and by reshape, Swin's shifted windows, and fold."""
    x = torch.randn(1, 2, 8, 8).to(device).requires_grad_()
    patches = F.unfold(x, 2, stride=2)
    back = F.fold(patches, (8, 8), 2, stride=2)
    shifted = torch.roll(x.permute(0, 2, 3, 1), (-2, -2), (1, 2))
    windows = shifted.view(1, 2, 4, 2, 4, 2).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 2)
    slides = x.unfold(2, 3, 1).unfold(3, 3, 2)
    (windows.square().sum() + patches.sum() + slides.square().sum()).backward()
    return patches, back, windows, slides, x.grad


def pixel_shuffle(device):
    """pixel_shuffle and back, with gradients (pytorch/xla#922)."""
    x = torch.randn(1, 9, 4, 4).to(device).requires_grad_()
    y = F.pixel_shuffle(x, 3)
    (y * torch.arange(12.0).to(device)).sum().backward()
    return y, x.grad, F.pixel_unshuffle(y, 2), F.channel_shuffle(x, 3)


def pooling(device):
    """Pooling with padding, ceil mode, indices and unpooling, and adaptive pooling."""
    x = torch.randn(2, 3, 7, 7).to(device).requires_grad_()
    top, where = F.max_pool2d(x, 2, return_indices=True)
    outs = [
        F.max_pool2d(x, 3, stride=2, padding=1, ceil_mode=True),
        F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False),
        F.adaptive_avg_pool2d(x, 3),
        F.adaptive_max_pool2d(x, (2, 3)),
        F.lp_pool2d(x.abs() + 1, 2, 2),
        top,
        F.max_unpool2d(top, where, 2, output_size=(7, 7)),
        F.avg_pool1d(x.flatten(2), 4),
    ]
    sum(o.square().sum() for o in outs).backward()
    return outs, where, x.grad


def statistics_of_several_domains(device):
    """Batch norm whose statistics are rows of one tensor, one row for each domain"""
    means, variances = torch.zeros(3, 2).to(device), torch.ones(3, 2).to(device)
    results = []
    for domain in (0, 2, 0):
        images = torch.arange(16.0).view(2, 2, 2, 2).to(device) * (domain + 1)
        results.append(F.batch_norm(images, means[domain], variances[domain], training=True))
    return results, means, variances


@options(tolerance=1e-2)
def unet_bias_in_bf16(device):
    """The gradient of a bias is a sum over all pixels, of bfloat16: in float32, rounded once."""
    conv = nn.Conv2d(3, 2, 1).bfloat16().to(device)
    x = torch.randn(4, 3, 32, 32).bfloat16().to(device)
    conv(x).float().square().mean().backward()
    return conv.bias.grad
