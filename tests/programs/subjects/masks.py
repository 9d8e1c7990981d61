"""Programs: masks."""

import torch


def image_tokens_into_text(device):
    """Features of an image put into a prompt's embeddings where its image tokens are."""
    ids = torch.tensor([[1, 7, 7, 2], [7, 3, 4, 5]]).to(device)
    table = torch.randn(8, 3).to(device).requires_grad_()
    features = torch.randn(3, 3).to(device).requires_grad_()
    x = torch.nn.functional.embedding(ids, table)
    mask = (ids == 7).unsqueeze(-1).expand_as(x)
    out = x.masked_scatter(mask, features)
    out.square().sum().backward()
    return out, table.grad, features.grad


def key_padding_from_lengths(device):
    """Masks from lengths, by comparison with arange, and means over what they leave."""
    x = torch.randn(3, 5, 2).to(device)
    lengths = torch.tensor([5, 2, 0]).to(device)
    mask = torch.arange(5, device=device)[None] < lengths[:, None]
    total = (x * mask[..., None]).sum(1)
    return mask, total / mask.sum(1, keepdim=True).clamp(min=1), total / lengths[:, None]


def masked_language_model(device):
    """BERT's corruption of tokens, with draws that are given: where, masked_fill, a comparison of draws."""
    ids, draw = torch.arange(12).view(2, 6).to(device), torch.rand(2, 6)
    special = torch.tensor([[True] + [False] * 5] * 2).to(device)
    p = torch.full((2, 6), 0.5, device=device).masked_fill_(special, 0.0)
    masked = draw.to(device) < p
    labels = ids.clone()
    labels[~masked] = -100
    ids[masked & (draw.to(device) < 0.25)] = 99
    return ids, labels


def masked_select_and_scatter(device):
    """masked_select, masked_scatter and boolean indexing on both sides of an assignment."""
    x = torch.arange(12.0).view(3, 4).to(device)
    mask = x % 3 == 0
    picked = torch.masked_select(x, mask)
    filled = x.masked_scatter(mask, -picked.flip(0))
    x[mask] = picked * 2
    x[x > 10] -= 1
    return picked, filled, x, x[mask.any(1)]


def number_of_another_type(device):
    """x[mask] = a tensor of one number, of another dtype than x or on the CPU, as labels and scores are masked"""
    labels = torch.tensor([[1, 0, 3], [0, 5, 0]]).to(device)
    scores = labels.float()
    pads = labels == 0
    labels[pads] = torch.tensor(-100.0).to(device)
    scores[pads] = torch.tensor(-1).to(device)
    scores[torch.tensor([True, False]).to(device), 1:] = torch.tensor([7]).to(device)
    low = scores.to(torch.bfloat16)
    low[low > 2] = torch.tensor(2.5, dtype=torch.float64)
    seen = pads.clone()
    seen[~pads] = torch.tensor(1)
    leaf = torch.ones(2, 3).to(device).requires_grad_()
    kept = leaf * 2
    kept[pads] = torch.tensor(0).to(device)
    kept.sum().backward()
    return labels, scores, low, seen, kept, leaf.grad


def triangles(device):
    """triu, tril and their indices, of rectangles and with offsets."""
    x = torch.arange(20).view(4, 5).to(device)
    row, column = torch.triu_indices(4, 5, offset=1, device=device)
    x[row, column] = -1
    low = torch.tril_indices(4, 5, offset=-1, device=device)
    return x, low, torch.ones(3, 4, dtype=torch.bool, device=device).triu(2), torch.tril(x.float(), -5)


def where_with_a_number_of_the_cpu(device):
    """where(mask, x, a 0-d tensor of the CPU), as detectors write it (pytorch/xla#1749)."""
    x = torch.tensor([1.0, float("nan"), 3.0]).to(device)
    return torch.where(torch.isnan(x), torch.tensor(0.0), x), torch.where(x > 2, x, 0.5)
