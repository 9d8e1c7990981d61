"""The README's example for `castoff tpu compile`: scores of bfloat16 vectors, wanted in float32."""

import torch
import torch_xla

device = torch_xla.device()
query, key = (torch.randn(1024, 512).to(torch.bfloat16).to(device) for _ in range(2))
scores = torch.zeros(1024, 1024).to(device)


def step() -> torch.Tensor:
    """Multiply into a float32 tensor."""
    return torch.matmul(query, key.t(), out=scores)
