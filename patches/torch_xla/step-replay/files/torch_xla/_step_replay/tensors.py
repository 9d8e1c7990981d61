"""What is done with all tensors of a replayed call at once, in C++ (csrc/castoff/step_replay.cpp)."""

import ctypes
import functools
from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch

__all__ = ["count_up", "give_all", "shapes_of", "sync_all"]

_address = attrgetter("_cdata")


@functools.cache
def _library() -> ctypes.PyDLL:
    from torch_xla import _castoff

    library = _castoff.library()
    library.castoff_step_replay_sync.restype = ctypes.c_char_p
    library.castoff_step_replay_give.restype = ctypes.c_char_p
    library.castoff_step_replay_count.restype = ctypes.c_bool
    library.castoff_step_replay_shapes.restype = ctypes.c_size_t
    return library


def _addresses(tensors: Sequence[torch.Tensor]) -> array:
    return array("Q", list(map(_address, tensors)))


def _start(numbers: array) -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])


def _check(error: Any) -> None:
    if error is not None:
        raise RuntimeError(f"castoff: a replayed call cannot go on: {error.decode()}")


def sync_all(tensors: Sequence[torch.Tensor]) -> None:
    """Let tensors of the device have what was written to those that alias them."""
    addresses = _addresses(tensors)
    _check(_library().castoff_step_replay_sync(_start(addresses), ctypes.c_size_t(len(addresses))))


def give_all(tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], donated: int) -> None:
    """Let tensors, and what aliases them, have the values of as many outputs; the graph took the first ones' memory."""
    addresses, values = _addresses(tensors), _addresses(outputs)
    numbers = ctypes.c_size_t(len(addresses)), ctypes.c_size_t(donated)
    _check(_library().castoff_step_replay_give(_start(addresses), _start(values), *numbers))


def count_up(counts: list[torch.Tensor]) -> None:
    """One more in each of these tensors on the CPU."""
    addresses = _addresses(counts)
    if not _library().castoff_step_replay_count(_start(addresses), ctypes.c_size_t(len(addresses))):
        torch._foreach_add_(counts, 1)


def shapes_of(tensors: Sequence[torch.Tensor], room: int = 0) -> bytes:
    """The dtypes and shapes of tensors, as bytes that are equal if these are; room: of a result that is likely."""
    addresses = _addresses(tensors)
    count = ctypes.c_size_t(len(addresses))
    while True:
        numbers = ctypes.create_string_buffer(room)
        needed = _library().castoff_step_replay_shapes(_start(addresses), count, numbers, ctypes.c_size_t(room // 8))
        if needed * 8 <= room:
            return numbers.raw[: needed * 8]
        room = needed * 8
