"""Distillation: KL divergence of softened logits."""

import torch
import torch.nn.functional as F


def program(device):
    student = torch.randn(3, 10).to(device).requires_grad_()
    teacher = torch.randn(3, 10).to(device)
    t = 2.0
    loss = F.kl_div((student / t).log_softmax(-1), (teacher / t).softmax(-1), reduction="batchmean") * t * t
    log = F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="sum")
    (loss + log).backward()
    return loss, log, student.grad
