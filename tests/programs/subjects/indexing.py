"""Programs: indexing."""

import torch


def advanced(device):
    """Index tensors of several shapes, mixed with slices, None and ellipsis."""
    x = torch.arange(60).view(3, 4, 5).to(device)
    i, j = torch.tensor([[0], [2]]).to(device), torch.tensor([1, 3]).to(device)
    return x[i, j], x[:, j, None], x[..., j], x[i, :, j], x[[0, 2]], x[torch.tensor(1)], x[None, -1, ..., ::2]


def assign_beyond(device):
    """Assignments to slices that begin before a tensor, and their gradients."""
    x = torch.zeros(3, 4).to(device)
    v = torch.ones(3, 2).to(device).requires_grad_()
    x[:, -10:2] = v
    y = torch.slice_scatter(x.detach(), v, dim=1, start=-20, end=2)
    (x * 3).sum().backward()
    return x, y, v.grad


def gather_scatter(device):
    """gather, scatter of numbers and tensors, scatter_add and scatter_reduce, with gradients."""
    x = torch.randn(3, 4).to(device).requires_grad_()
    index = torch.tensor([[0, 1], [3, 3], [2, 0]]).to(device)
    picked = x.gather(1, index)
    spread = torch.zeros(3, 4, device=device).scatter(1, index, picked)
    added = torch.zeros(3, 4, device=device).scatter_add(1, index, picked)
    top = torch.zeros(3, 4, device=device).scatter_reduce(1, index, picked, "amax", include_self=False)
    mean = torch.ones(3, 4, device=device).scatter_reduce(1, index, picked.detach(), "mean")
    (added.square().sum() + top.sum()).backward()
    return picked, spread[:2:2], added, top, mean, x.grad, torch.zeros(3, 4).to(device).scatter_(1, index, 2.0)


def int32_beside_int64(device):
    """Indices of int32 beside ones of int64 and masks, as positions and slots of a cache come, with gradients"""
    cache = torch.zeros(3, 4, 2).to(device)
    slots = torch.tensor([2, 0], dtype=torch.int32).to(device)
    positions = torch.tensor([1, 3]).to(device)
    cache[slots, positions] = torch.arange(4.0).view(2, 2).to(device)
    cache[slots[:, None], positions[None, :]] += 1
    cache[torch.tensor([True, False, True]).to(device), slots] = 7.0
    weight = torch.arange(12.0).view(3, 4).to(device).requires_grad_()
    read = weight[slots, positions]
    read.square().sum().backward()
    one = torch.ones(2).to(device)
    return cache, read, weight.grad, weight.detach().index_put((slots, positions), one, accumulate=True)


def negative_and_beyond(device):
    """Slices that begin before a tensor and end after it."""
    x = torch.arange(12).view(3, 4).to(device)
    return x[:, -15:], x[-15:5], x[:, -15:-2], x[2:100], x[5:], x[:, 3:1], x[::2, -7:3:2]


def nonzero_and_unique(device):
    """Shapes that depend on values: nonzero, unique with counts, where, argwhere and bincount."""
    x = torch.tensor([[0, 3, 3], [1, 0, 3]]).to(device)
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    runs = torch.unique_consecutive(x.flatten())
    return x.nonzero(), values, inverse, counts, runs, torch.where(x > 0), torch.argwhere(x), x.flatten().bincount()


def out_of_range_raises(device):
    """select, narrow and index_select out of range raise IndexError or RuntimeError, as on the CPU."""
    x = torch.arange(6).view(2, 3).to(device)
    said = []
    for call in (lambda: x[2], lambda: x.select(1, -4), lambda: x.narrow(0, 1, 2), lambda: x[:, 3]):
        try:
            call()
            said.append("nothing")
        except (IndexError, RuntimeError) as error:
            said.append(type(error).__name__)
    return said


def put_and_accumulate(device):
    """index_put with repeated indices, index_add, index_copy, index_fill and take."""
    x = torch.zeros(5).to(device)
    index = torch.tensor([1, 1, 3]).to(device)
    x.index_put_((index,), torch.tensor([1.0, 2.0, 4.0]).to(device), accumulate=True)
    y = (
        torch.zeros(3, 2)
        .to(device)
        .index_add(0, torch.tensor([2, 2, 0]).to(device), torch.ones(3, 2).to(device), alpha=2)
    )
    z = y.index_fill(1, torch.tensor([0]).to(device), -1).index_copy(
        0, index[2:] - 2, torch.full((1, 2), 9.0).to(device)
    )
    return x, y, z, y.take(torch.tensor([0, 5]).to(device)), z.index_select(0, torch.tensor([2, 0]).to(device))


def sort_and_search(device):
    """Stable sorts, argsort, topk with ties, searchsorted, bucketize and kthvalue."""
    x = torch.tensor([3.0, 1.0, 2.0, 1.0, 3.0]).to(device)
    ordered, order = torch.sort(x, stable=True)
    edges = torch.tensor([1.0, 2.0, 3.0]).to(device)
    return (
        ordered, order, x.argsort(descending=True, stable=True), x.topk(3).values, torch.searchsorted(edges, x),
        torch.bucketize(x, edges, right=True), x.kthvalue(2).values, x.median(), torch.quantile(x, 0.3), x.msort(),
    )  # fmt: skip


def diagonals(device):
    """Diagonals of batches of matrices in the first, the last and other dimensions, read and written"""
    x = torch.arange(24.0).view(2, 3, 4).to(device)
    read = [x.diagonal(), x.diagonal(1), x.diagonal(-1, 1, 0), x.diagonal(0, -2, -1), torch.diagonal(x, 0, 0, 2)]
    x.diagonal().mul_(10)
    x.diagonal(1, -2, -1).zero_()
    return [r * 1 for r in read], x, torch.diagonal_scatter(x, torch.ones(4, 2).to(device))
