"""Tensors from numpy, lists and numbers, and back to numpy, with their dtypes."""

import numpy as np
import torch


def program(device):
    a = torch.from_numpy(np.arange(6, dtype=np.int16).reshape(2, 3)).to(device)
    b = torch.as_tensor(np.array([1.5, 2.5]), device=device)
    c = torch.tensor([[True, False]], device=device)
    whole = torch.tensor(3, device=device)
    x = torch.asarray([1, 2], device=device)
    return (
        a * 2,
        b,
        c,
        x,
        (a.cpu().numpy() + 1).tolist(),
        whole.item(),
        [10, 20, 30, 40][whole],
        int(whole),
        float(b[0]),
    )
