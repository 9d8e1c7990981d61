"""DPO: log-probabilities of chosen and rejected answers, by gather with masked labels."""

import torch
import torch.nn.functional as F


def program(device):
    logits = torch.randn(4, 7, 11).to(device).requires_grad_()
    labels = torch.randint(0, 11, (4, 7))
    labels[:, :2] = -100
    labels = labels.to(device)[:, 1:].clone()
    mask = labels != -100
    labels[~mask] = 0
    each = torch.gather(logits[:, :-1].log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    sums = (each * mask).sum(-1)
    loss = -F.logsigmoid(0.1 * (sums[:2] - sums[2:])).mean()
    loss.backward()
    return loss, sums, logits.grad
