"""min-p filtering, a temperature for each row and a repetition penalty."""

import torch


def program(device):
    logits, seen = torch.randn(3, 10).to(device), torch.tensor([[1, 2], [3, 3], [0, 9]], device=device)
    score = logits.gather(1, seen)
    logits = logits.scatter(1, seen, torch.where(score < 0, score * 1.2, score / 1.2))
    temperature = torch.tensor([0.5, 1.0, 0.0], device=device)
    greedy = temperature == 0
    p = (logits / torch.where(greedy, 1.0, temperature)[:, None]).softmax(-1)
    keep = p >= 0.1 * p.max(-1, keepdim=True).values
    return torch.where(keep, p, 0.0), torch.where(greedy, logits.argmax(-1), -1)
