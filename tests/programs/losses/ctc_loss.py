"""CTC loss of a speech model, with lengths of inputs and targets."""

import torch
from torch import nn


def program(device):
    logits = torch.randn(12, 2, 6).to(device).requires_grad_()
    targets = torch.tensor([[1, 2, 3], [2, 2, 0]]).to(device)
    loss = nn.CTCLoss()(
        logits.log_softmax(-1), targets, input_lengths=torch.tensor([12, 10]), target_lengths=torch.tensor([3, 2])
    )
    loss.backward()
    return loss, logits.grad
