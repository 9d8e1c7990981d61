"""Lists of tensors: cat, stack, split by sizes, chunk, pad_sequence, block_diag and repeat_interleave by counts."""

import torch
from torch.nn.utils.rnn import pad_sequence


def program(device):
    rows = [torch.randn(n, 2).to(device) for n in (2, 3, 1)]
    whole = torch.cat(rows)
    counts = torch.tensor([2, 3, 1]).to(device)
    return (
        whole,
        pad_sequence(rows, batch_first=True),
        whole.split([2, 3, 1])[1],
        whole.chunk(4),
        whole.tensor_split(4),
        torch.repeat_interleave(torch.arange(3, device=device), counts),
        torch.block_diag(*rows),
        torch.stack([whole, whole], -1),
        whole.repeat(2, 1),
        whole.tile(2),
        torch.hstack([whole, whole]),
        torch.meshgrid(counts, counts, indexing="ij"),
    )
