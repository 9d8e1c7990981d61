"""``torch.xla``: the device module in which torch looks for what it needs to know of a device type.

`torch.utils.checkpoint` and `torch.random.fork_rng` find the module of a tensor's device as
``getattr(torch, "xla")``. The names and their meaning are those of `torch.cuda`; what XLA does not have
is not here, so that ``hasattr`` tells the truth.

The state of XLA's random numbers is one integer for each device, which `torch_xla.core.xla_model` gets
and sets. Here it is a ByteTensor of 8 bytes on the CPU, as torch keeps such states.
"""

import os
import sys
from typing import Union

import torch
import torch_xla

__all__ = [
    "current_device",
    "device",
    "device_count",
    "get_rng_state",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "set_device",
    "set_rng_state",
]

Device = Union[torch.device, str, int]

_C = torch_xla._XLAC

#: What torch.utils.checkpoint asks before it looks at the states of random numbers: see is_initialized.
_initialized = True

_forked_after_use = False


def _note_fork() -> None:
    global _forked_after_use
    _forked_after_use = _C._xla_runtime_is_initialized()


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had started XLA's runtime, which does not survive that."""
    return _forked_after_use


def is_available() -> bool:
    """Whether there is an XLA device. Starts XLA's runtime."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether tensors can be made without further ado: always, as the first one starts XLA's runtime."""
    return True


def device_count() -> int:
    """Number of XLA devices of this process. Starts XLA's runtime."""
    return _C._xla_num_devices()


def current_device() -> int:
    """Index of the device on which this thread makes tensors for ``device="xla"``."""
    return _C._xla_get_default_device_ordinal()


def _index(device: Device) -> int:
    if isinstance(device, int):
        index = device
    else:
        device = torch.device(device)
        if device.type != "xla":
            raise ValueError(f"expected an XLA device, found '{device}'")
        index = current_device() if device.index is None else device.index
    if index >= device_count():
        raise ValueError(f"expected the index of one of this process's {device_count()} XLA devices, found {index}")
    return index


def set_device(device: Device) -> None:
    """Make ``device`` the current device of this thread; a negative index changes nothing.

    Raises ValueError for a device that this process does not have.
    """
    index = _index(device)
    if index >= 0:
        _C._xla_set_default_device(f"xla:{index}")


class device:  # the name and case of torch.cuda.device
    """Context manager that makes ``device`` this thread's current one; a negative index changes nothing."""

    def __init__(self, device: Device) -> None:
        self._index = _index(device)

    def __enter__(self) -> None:
        self._previous = current_device()
        set_device(self._index)

    def __exit__(self, *exc_info: object) -> None:
        set_device(self._previous)


def _checked_name(device: Device) -> str:
    index = _index(device)
    if index < 0:
        raise ValueError(f"expected the index of an XLA device, found {index}")
    return f"xla:{index}"


def get_rng_state(device: Device = "xla") -> torch.Tensor:
    """The state of a device's random numbers: uint8[8] on the CPU. Raises ValueError for other devices."""
    seed = _C._xla_get_rng_seed(_checked_name(device))
    return torch.tensor([seed], dtype=torch.uint64, device="cpu").view(torch.uint8)


def set_rng_state(new_state: torch.Tensor, device: Device = "xla") -> None:
    """Return a device's random numbers to a state that `get_rng_state` gave.

    Raises TypeError for anything but a uint8[8] on the CPU, ValueError for a device that is not here.
    """
    name = _checked_name(device)
    ours = isinstance(new_state, torch.Tensor) and new_state.device.type == "cpu"
    if not ours or new_state.dtype != torch.uint8 or new_state.shape != (8,):
        raise TypeError(f"expected a state from get_rng_state, uint8[8] on the CPU, found {_describe(new_state)}")
    _C._xla_set_rng_seed(new_state.clone().view(torch.uint64).item(), name)


def _describe(state: object) -> str:
    if not isinstance(state, torch.Tensor):
        return type(state).__name__
    return f"{state.dtype}{list(state.shape)} on {state.device}"


def manual_seed(seed: int) -> None:
    """Seed the random numbers of the current device. ``seed`` is taken modulo 2**64."""
    _C._xla_set_rng_seed(int(seed) % 2**64, _checked_name("xla"))


def manual_seed_all(seed: int) -> None:
    """Seed the random numbers of every device of this process, as `manual_seed`."""
    for index in range(device_count()):
        _C._xla_set_rng_seed(int(seed) % 2**64, f"xla:{index}")


def install() -> None:
    """Make this module ``torch.xla``, unless something else is."""
    if hasattr(torch, "xla"):
        return
    os.register_at_fork(after_in_child=_note_fork)
    torch._register_device_module("xla", sys.modules[__name__])
