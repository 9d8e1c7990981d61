"""A user's program, for type checkers. On stock wheels each line with "# castoff" must be an error, and no other."""

import torch
import torch_xla
from torch_xla.amp import MasterWeights  # castoff
from torch_xla.amp import wide_grads  # castoff
from torch_xla.amp import wide_grads_report  # castoff
from torch_xla.experimental import is_native_mul  # castoff
from torch_xla.experimental import native_mul  # castoff
from torch_xla.experimental import native_mul_context  # castoff
from typing_extensions import assert_type


def train(model: torch.nn.Module, inputs: torch.Tensor, steps: int) -> list[str]:
    model = model.to(torch.bfloat16).to(torch_xla.device())
    wide = wide_grads(model, dtype=torch.float32)
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    for _ in range(steps):
        with native_mul_context(enable=True):
            model(inputs).sum().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        torch_xla.sync()
    native_mul(False)
    report = wide_grads_report(model, lambda: model(inputs).sum().backward())
    assert_type(report.all_wide, bool)  # castoff
    assert_type(report.parameters[0].where, tuple[str, ...])  # castoff
    assert_type(wide, list[str])  # castoff
    assert_type(optimizer, MasterWeights)
    assert_type(optimizer.optimizer, torch.optim.Optimizer)  # castoff
    assert_type(is_native_mul(), bool)  # castoff
    wide_grads(inputs)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # castoff
    return sorted(wide)
