"""nan_to_num in three dtypes, isfinite, isinf and signbit."""

import torch

VALUES = [float("-inf"), -1.0, -0.0, float("inf"), float("nan")]


def program(device):
    results = []
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.tensor(VALUES, dtype=kind).to(device)
        results += [x.nan_to_num(), x.nan_to_num(1.0, 2.0, -2.0), x.isfinite(), x.isinf(), x.signbit(), x.sign()]
    return results
