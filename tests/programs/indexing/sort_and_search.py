"""Stable sorts, argsort, topk with ties, searchsorted, bucketize and kthvalue."""

import torch


def program(device):
    x = torch.tensor([3.0, 1.0, 2.0, 1.0, 3.0]).to(device)
    ordered, order = torch.sort(x, stable=True)
    edges = torch.tensor([1.0, 2.0, 3.0]).to(device)
    return (
        ordered, order, x.argsort(descending=True, stable=True), x.topk(3).values, torch.searchsorted(edges, x),
        torch.bucketize(x, edges, right=True), x.kthvalue(2).values, x.median(), torch.quantile(x, 0.3), x.msort(),
    )  # fmt: skip
