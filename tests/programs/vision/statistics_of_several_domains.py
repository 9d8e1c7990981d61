"""Batch norm whose statistics are rows of one tensor, one row for each domain"""

import torch
import torch.nn.functional as F


def program(device):
    means, variances = torch.zeros(3, 2).to(device), torch.ones(3, 2).to(device)
    results = []
    for domain in (0, 2, 0):
        images = torch.arange(16.0).view(2, 2, 2, 2).to(device) * (domain + 1)
        results.append(F.batch_norm(images, means[domain], variances[domain], training=True))
    return results, means, variances
