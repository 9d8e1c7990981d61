"""PPO's clipped objective, with whitened advantages and an entropy bonus."""

import torch


def program(device):
    new = torch.randn(6).to(device).requires_grad_()
    old, advantage = torch.randn(6).to(device), torch.randn(6).to(device)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (new - old).exp()
    loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
    entropy = torch.distributions.Categorical(logits=new.view(2, 3)).entropy().mean()
    (loss - 0.01 * entropy).backward()
    return loss, entropy, new.grad
