"""softmax and logsumexp of rows that are all -inf, and of infinities."""

import torch

INF = float("inf")


def program(device):
    x = torch.tensor([[-INF, -INF], [0.0, -INF], [INF, 0.0], [1e4, -1e4]]).to(device)
    return x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1), x.bfloat16().softmax(-1), x.softmax(-1).nan_to_num(0.0)
