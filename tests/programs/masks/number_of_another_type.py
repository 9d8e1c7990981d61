"""x[mask] = a tensor of one number, of another dtype than x or on the CPU, as labels and scores are masked"""

import torch


def program(device):
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
