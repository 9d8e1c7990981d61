"""``fused=True`` of torch.optim's optimizers and ``foreach=True`` of torch.nn.utils' clipping, for XLA tensors.

XLA fuses the operators of a step whichever form it has. So a group of parameters that asks for a fused step, and has
parameters on XLA, takes the for-loop form: its numbers and its graph are those of ``fused=False``.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Optional, Union

import torch
from torch.nn.utils import clip_grad
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

__all__ = ["install"]

Group = dict[str, Any]
Parameters = Union[torch.Tensor, Iterable[torch.Tensor]]


def _take_loop(optimizer: Optimizer, group: Group) -> None:
    """Set a group's ``fused`` to False if it has parameters on XLA, and make its state that of the for-loop form."""
    if not any(p.device.type == "xla" for p in group["params"]):
        return
    group["fused"] = False
    optimizer._step_supports_amp_scaling = False  # a GradScaler unscales the gradients itself then
    if not group.get("capturable", False):
        _bring_steps_to_cpu([optimizer.state[p] for p in group["params"] if p in optimizer.state])


def _bring_steps_to_cpu(states: list[dict[str, Any]]) -> None:
    """Read steps that are on XLA, all at once: the for-loop form reads each one whenever it is used."""
    states = [s for s in states if isinstance(s.get("step"), torch.Tensor) and s["step"].device.type == "xla"]
    if states:
        steps = torch.stack([s["step"] for s in states]).cpu()
        for state, step in zip(states, steps.unbind(), strict=False):
            state["step"] = step.clone()


def _with_loops_at_construction(init: Callable) -> Callable:
    @functools.wraps(init)
    def __init__(self: Optimizer, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        for group in self.param_groups:
            if group["fused"]:
                _take_loop(self, group)

    return __init__


def _with_loops_at_steps(init_group: Callable) -> Callable:
    """For groups that were loaded, or whose parameters moved to XLA, since the optimizer was made."""

    @functools.wraps(init_group)
    def _init_group(self: Optimizer, group: Group, *args: object, **kwargs: object) -> object:
        if group["fused"]:
            _take_loop(self, group)
        return init_group(self, group, *args, **kwargs)

    return _init_group


def _with_foreach(clip_grad_norm: Callable) -> Callable:
    @functools.wraps(clip_grad_norm)
    def clip_grad_norm_(
        parameters: Parameters,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: Optional[bool] = None,
    ) -> torch.Tensor:
        if not foreach:
            return clip_grad_norm(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        return clip_grad.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)

    return clip_grad_norm_


def _xla_has_foreach(device_has_foreach: Callable) -> Callable:
    return lambda device: device.type == "xla" or device_has_foreach(device)


def install() -> None:
    """Wrap the optimizers that have ``fused``, and what clips gradients. Called once, by ``_castoff``."""
    for optimizer in (Adam, AdamW, SGD, Adagrad):
        if "__init__" in vars(optimizer):
            optimizer.__init__ = _with_loops_at_construction(optimizer.__init__)
        if "_init_group" in vars(optimizer):
            optimizer._init_group = _with_loops_at_steps(optimizer._init_group)
    torch.nn.utils.clip_grad_norm_ = _with_foreach(torch.nn.utils.clip_grad_norm_)
    # Read only where foreach=True was asked for: the default stays the for-loop.
    clip_grad._device_has_foreach_support = _xla_has_foreach(clip_grad._device_has_foreach_support)
