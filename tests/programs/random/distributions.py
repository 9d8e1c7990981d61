"""torch.distributions: log-probabilities, entropies, divergences, and samples that have gradients."""

import torch
from torch import distributions as D


def program(device):
    mu, sigma = torch.tensor([0.0, 1.0]).to(device).requires_grad_(), torch.tensor([1.0, 2.0]).to(device)
    normal, other = D.Normal(mu, sigma), D.Normal(mu.detach() + 1, sigma)
    value = torch.tensor([0.5, 0.5]).to(device)
    categorical = D.Categorical(logits=torch.randn(2, 3).to(device))
    kl = D.kl_divergence(normal, other)
    sample = normal.rsample((5,))
    (normal.log_prob(value).sum() + kl.sum() + (sample - sample.detach()).sum()).backward()
    beta = D.Beta(torch.tensor([2.0]).to(device), torch.tensor([3.0]).to(device))
    return normal.log_prob(value), kl, categorical.entropy(), beta.log_prob(value[:1]), sample.shape, mu.grad
