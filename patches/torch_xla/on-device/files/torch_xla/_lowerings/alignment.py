"""Connectionist temporal classification: sums over all alignments of targets with steps."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, Optional

import torch
import torch_xla
from torch import Tensor
from torch_xla._hlo_module import Operand

from . import loops
from .common import only, prepared


class _Alignment(NamedTuple):
    """Targets [B, L] with blanks around each, which of them a path may come to from two places before, and lengths."""

    labels: Tensor
    skips: Tensor
    places: Tensor
    lengths: Tensor
    steps: Tensor


def _lengths(log_probs: Tensor, targets: Tensor, steps: Sequence[int], lengths: Sequence[int]) -> bool:
    """Whether torch would take them, and there is something to compute."""
    count, batch = log_probs.shape[:2]
    most = targets.shape[-1] if targets.dim() == 2 else sum(lengths)
    return (
        log_probs.dtype in (torch.float32, torch.float64)
        and log_probs.numel() > 0
        and len(steps) == len(lengths) == batch
        and targets.dim() in (1, 2)
        and all(0 < n <= count for n in steps)
        and all(0 <= n <= most for n in lengths)
        and (targets.shape[0] == (batch if targets.dim() == 2 else most))
    )


@functools.lru_cache(maxsize=256)
def _on(device: torch.device, steps: tuple, lengths: tuple) -> Tensor:
    return torch.tensor([lengths, steps], dtype=torch.int32).to(device)


def _held(x: Tensor, steps: Sequence[int], lengths: Sequence[int]) -> tuple[Tensor, int]:
    """The lengths and the steps as a tensor, so that other ones have the same graph, and the longest."""
    return _on(x.device, tuple(steps), tuple(lengths)), max(lengths)


def _padded(targets: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """Targets [B, S]; what is beyond a row's length does not count."""
    if targets.dim() == 2:
        return targets[:, :longest].long()
    if not longest or not targets.numel():
        return torch.zeros(len(lengths), longest, dtype=torch.int64, device=targets.device)
    begins = (lengths.cumsum(0) - lengths).unsqueeze(1)
    index = (begins + torch.arange(longest, device=targets.device)).clamp(max=targets.numel() - 1)
    return targets.long().index_select(0, index.reshape(-1)).reshape(index.shape)


def _aligned(x: Tensor, targets: Tensor, of_rows: Tensor, longest: int, blank: int) -> _Alignment:
    padded = _padded(targets, of_rows[0], longest)
    batch = padded.shape[0]
    blanks = torch.full_like(padded, blank)
    between = torch.stack([blanks, padded], 2).reshape(batch, 2 * longest)
    end = torch.full([batch, 1], blank, device=x.device)
    labels = torch.cat([between, end], 1)
    place = torch.arange(2 * longest + 1, device=x.device).expand(labels.shape)
    inside = place <= 2 * of_rows[0].unsqueeze(1)
    labels = torch.where(inside, labels, torch.full_like(labels, blank))
    before = torch.cat([torch.full_like(labels[:, :2], blank), labels[:, :-2]], 1)[:, : labels.shape[1]]
    skips = (labels != blank) & (labels != before) & (place > 1)
    return _Alignment(labels, skips.to(torch.int32), place, of_rows[0], of_rows[1])


def _paths(x: Tensor, a: _Alignment, backward: bool) -> tuple[Tensor, Tensor]:
    """The scores [T, B, L] of the labels, and the logarithms of the sums over the paths from one end."""
    scores = torch.gather(x, 2, a.labels.unsqueeze(0).expand(x.shape[0], *a.labels.shape))
    end = 2 * a.lengths.unsqueeze(1)
    inside = a.places <= end
    begins = (a.places >= end - 1) if backward else a.places <= 1
    scores = torch.where(inside, scores, torch.full_like(scores, -math.inf))
    first = a.steps - 1 if backward else torch.zeros_like(a.steps)
    made = loops.alignments(Operand.of(scores), backward)
    flags = (begins & inside).to(torch.int32)
    return scores, torch_xla._XLAC._xla_user_computation("xla::alignments", [scores, a.skips, flags, first], made)[0]


def _prepare(x: Tensor, targets: Tensor, steps: Sequence[int], lengths: Sequence[int], blank: int, _: bool) -> tuple:
    return x, targets, *_held(x, steps, lengths), blank


@only(lambda x, targets, steps, lengths, blank, zero_infinity: _lengths(x, targets, steps, lengths))
@prepared(_prepare)
def ctc_loss(x: Tensor, targets: Tensor, of_rows: Tensor, longest: int, blank: int) -> tuple[Tensor, Tensor]:
    a = _aligned(x, targets, of_rows, longest, blank)
    _, forward = _paths(x, a, False)
    last = (a.steps.long() - 1).reshape(1, -1, 1).expand(1, *a.labels.shape)
    ending = torch.gather(forward, 0, last)[0]
    ends = (a.places >= 2 * a.lengths.unsqueeze(1) - 1) & (a.places <= 2 * a.lengths.unsqueeze(1))
    ending = torch.where(ends, ending, torch.full_like(ending, -math.inf))
    largest = ending.amax(1, keepdim=True)
    base = torch.where(largest == -math.inf, torch.zeros_like(largest), largest)
    loss = -(torch.log(torch.exp(ending - base).sum(1)) + base.squeeze(1))
    return loss, forward.transpose(0, 1)


def _prepare_backward(grad: Tensor, x: Tensor, targets: Tensor, steps: Sequence, lengths: Sequence, *rest) -> tuple:
    return grad, x, targets, *_held(x, steps, lengths), *rest


@only(lambda grad, x, targets, steps, lengths, *_: _lengths(x, targets, steps, lengths))
@prepared(_prepare_backward)
def ctc_loss_backward(
    grad: Tensor,
    x: Tensor,
    targets: Tensor,
    of_rows: Tensor,
    longest: int,
    loss: Tensor,
    forward: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    a = _aligned(x, targets, of_rows, longest, blank)
    scores, backward = _paths(x, a, True)
    share = torch.exp(forward.transpose(0, 1) + backward + loss.reshape(1, -1, 1) - scores)
    share = torch.where(scores == -math.inf, torch.zeros_like(share), share)
    places = a.labels.unsqueeze(0).expand(share.shape)
    found = (torch.exp(x) - torch.zeros_like(x).scatter_add(2, places, share)) * grad.reshape(1, -1, 1)
    without_path = torch.full_like(found, 0.0 if zero_infinity else math.nan)
    found = torch.where(loss.reshape(1, -1, 1) == math.inf, without_path, found)
    step = torch.arange(x.shape[0], device=x.device).reshape(-1, 1, 1)
    return torch.where(step < a.steps.reshape(1, -1, 1), found, torch.zeros_like(found))


# Lengths that are tensors are read, as torch's own kernel reads them: it checks them.


def _read(x: Tensor, targets: Tensor, *lengths: Tensor) -> Optional[list[list[int]]]:
    numbers = [t.reshape(-1).cpu().tolist() for t in lengths]
    return numbers if _lengths(x, targets, *numbers) else None


def _prepare_of_tensors(x: Tensor, targets: Tensor, steps: Tensor, lengths: Tensor, *rest):
    numbers = _read(x, targets, steps, lengths)
    return NotImplemented if numbers is None else _prepare(x, targets, *numbers, *rest)


def _prepare_backward_of_tensors(grad: Tensor, x: Tensor, targets: Tensor, steps: Tensor, lengths: Tensor, *rest):
    numbers = _read(x, targets, steps, lengths)
    return NotImplemented if numbers is None else _prepare_backward(grad, x, targets, *numbers, *rest)


@prepared(_prepare_of_tensors)
def ctc_loss_of_tensors(*arguments):
    return ctc_loss(*arguments)


@prepared(_prepare_backward_of_tensors)
def ctc_loss_backward_of_tensors(*arguments):
    return ctc_loss_backward(*arguments)
