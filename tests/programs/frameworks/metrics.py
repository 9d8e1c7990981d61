"""Metrics of a validation: accuracy at k, confusion matrix, perplexity, running sums over batches."""

import torch


def program(device):
    logits, labels = torch.randn(10, 5).to(device), torch.randint(0, 5, (10,)).to(device)
    correct = logits.topk(3, 1).indices.t().eq(labels[None])
    at = [correct[:k].reshape(-1).float().sum(0) * (100.0 / 10) for k in (1, 3)]
    predicted = logits.argmax(1)
    confusion = torch.bincount(labels * 5 + predicted, minlength=25).view(5, 5)
    total, count = torch.zeros(1, device=device), 0
    for a, b in zip(logits.chunk(3), labels.chunk(3), strict=True):
        total += torch.nn.functional.cross_entropy(a, b, reduction="sum")
        count += b.numel()
    f1 = 2 * confusion.diag() / (confusion.sum(0) + confusion.sum(1)).clamp(min=1)
    return at, confusion, (total / count).exp(), f1, (predicted == labels).float().mean()
