"""nn.GRU where torch_xla's scan does not reach, packed sequences on XLA, and the products of recurrent layers.

The products are those of ``recurrent_layers.cpp``, and, where torch_xla scans, of ``_scanned_gru.py``.
"""

import functools
from collections.abc import Callable
from typing import Optional, Union

import torch
from torch import _castoff as _torch_castoff
from torch.nn.modules import rnn
from torch.nn.utils.rnn import PackedSequence

from . import _castoff

__all__ = ["install"]

_library: Optional[torch.library.Library] = None


def _pack_padded_sequence(
    input: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """``aten::_pack_padded_sequence`` for XLA: rows of ``input``, on its device, and the batch sizes, on the CPU.

    Args:
        input: [T, B, …], or [B, T, …] if ``batch_first``.
        lengths: int64[B] on the CPU, in descending order.

    Raises:
        RuntimeError: As torch's own.
    """
    if lengths.device.type != "cpu":
        raise RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got a tensor on {lengths.device}")
    if batch_first:
        input = input.transpose(0, 1)
    # torch packs the numbers of the rows, and checks the lengths.
    numbers = torch.arange(input.shape[0] * input.shape[1], device="cpu").view(input.shape[:2])
    rows, batch_sizes = torch._pack_padded_sequence(numbers, lengths, False)
    return input.flatten(0, 1).index_select(0, rows.to(input.device)), batch_sizes


def _with_torchs_own(forward: Callable) -> Callable:
    @functools.wraps(forward)
    def with_torchs_own(
        self: torch.nn.GRU, input: Union[torch.Tensor, PackedSequence], hx: Optional[torch.Tensor] = None
    ) -> tuple[Union[torch.Tensor, PackedSequence], torch.Tensor]:
        packed = isinstance(input, PackedSequence)
        if packed or input.device.type != "xla":
            return rnn.GRU.forward(self, input, hx)
        return forward(self, input, hx)

    return with_torchs_own


def install() -> None:
    """Let packed sequences be packed on XLA, and nn.GRU run them. Called once, by ``_castoff``."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    # Above autograd, of differentiable operators: below it functionalization would wrap the sizes as an XLA tensor.
    _library.impl("_pack_padded_sequence", _castoff.untraced(_pack_padded_sequence), "AutogradXLA")
    if torch.nn.GRU is not rnn.GRU:  # since 2.8 torch_xla replaces it by one that scans
        # A compiled function breaks its graph here, as dynamo does at torch's own recurrent layers.
        torch.nn.GRU.forward = torch.compiler.disable(_with_torchs_own(torch.nn.GRU.forward))
    if _torch_castoff.enabled("matmul-out-dtype"):
        _castoff.install_kernels("recurrent-layers")
        if torch.nn.GRU is not rnn.GRU:
            from . import _scanned_gru
            from .experimental import gru

            gru.scan = _scanned_gru.instead_of(gru.scan)
