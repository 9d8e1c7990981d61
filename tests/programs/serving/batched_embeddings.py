"""Mean-pooled, normalized embeddings and the top of a similarity search."""

import torch
import torch.nn.functional as F


def program(device):
    table, ids = torch.randn(20, 8).to(device), torch.randint(0, 20, (3, 6)).to(device)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]).to(device)
    x = F.embedding(ids, table) * mask.unsqueeze(-1)
    pooled = F.normalize(x.sum(1) / mask.sum(1, keepdim=True), p=2, dim=1)
    scores = pooled @ F.normalize(table).t()
    values, indices = scores.topk(3)
    return pooled, values, indices, F.cosine_similarity(pooled[:1], pooled)
