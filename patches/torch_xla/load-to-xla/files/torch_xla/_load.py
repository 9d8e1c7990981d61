"""torch.load(path, map_location="xla"), mmap=True too; and copy.copy and pickle of tensors on XLA.

torch.load puts storages where map_location says, and makes tensors of them. There are no storages on XLA: here a
storage stays on the CPU with the device that it is meant for, and the tensors of it go there. Tensors that share a
storage share memory on XLA, too.

copy.copy takes a tensor apart as pickle does: on XLA into a tensor of the CPU, where others give their storage.
"""

import copy
import functools
import re
from collections.abc import Callable
from typing import Any, Optional

import torch
import torch_xla

__all__ = ["install"]

_LOCATION = re.compile(r"xla(:\d+)?")
_DEVICE = "_castoff_device"
_WHOLE = "_castoff_whole"  # the tensor of all elements of a storage on its device


def _tag(storage: Any) -> Optional[str]:
    """No storage is on XLA: those of XLA tensors are saved as the CPU's."""
    return None


def _deserialize(storage: Any, location: str) -> Any:
    """``storage``, marked with the device of ``location``; None if that is not XLA's.

    Raises RuntimeError for a file whose data come after its tensors.
    """
    if not _LOCATION.fullmatch(location):
        return None
    if getattr(storage, "_torch_load_uninitialized", False):
        raise RuntimeError(
            f'expected a file in the zip format, to load it with map_location="{location}"; found the format of '
            "_use_new_zipfile_serialization=False. Load it to the CPU, and move it: torch.load(path, "
            'map_location="cpu")'
        )
    setattr(storage, _DEVICE, torch_xla.device() if location == "xla" else torch.device(location))
    return storage


def _on_device(rebuild: Callable[..., torch.Tensor], storage: Any, arguments: tuple[Any, ...]) -> torch.Tensor:
    """What ``rebuild(storage, *arguments)`` makes, on the device that the storage is meant for."""
    untyped = storage._untyped_storage
    device = getattr(untyped, _DEVICE, None)
    made = rebuild(storage, *arguments)
    if device is None or made.device.type != "cpu":
        return made
    return _view_of_storage(untyped, made.detach(), device).requires_grad_(made.requires_grad)


def _view_of_storage(untyped: Any, made: torch.Tensor, device: torch.device) -> torch.Tensor:
    whole = getattr(untyped, _WHOLE, None)
    if whole is None or whole.dtype != made.dtype:
        is_whole = made.is_contiguous() and made.numel() * made.element_size() == untyped.nbytes()
        flat = made if is_whole else torch.empty(0, dtype=made.dtype).set_(untyped)
        whole = flat.to(device)
        setattr(untyped, _WHOLE, whole)
        if is_whole:
            return whole
    if made.is_contiguous() and made.numel() == whole.numel():
        return whole.view(made.shape)
    return whole.reshape(-1).as_strided(made.shape, made.stride(), made.storage_offset())


def _copied(x: torch.Tensor) -> torch.Tensor:
    """copy.copy(x). On XLA as on the CPU: a leaf of the same type and attributes that shares x's memory."""
    kind = type(x)
    if x.device.type != "xla" or kind.__reduce_ex__ is not torch.Tensor.__reduce_ex__:
        return copy._reconstruct(x, None, *x.__reduce_ex__(4))
    return torch._tensor._rebuild_from_type_v2(_shared, kind, (x,), torch._utils._get_obj_state(x))


def _shared(x: torch.Tensor) -> torch.Tensor:
    return x.data.requires_grad_(x.requires_grad)


def install() -> None:
    """Let torch.load know XLA's locations, and put tensors there."""
    utils = torch._utils
    torch.Tensor.__copy__ = _copied
    utils._rebuild_device_tensor_from_cpu_tensor = _from_cpu(utils._rebuild_device_tensor_from_cpu_tensor)
    for name in ("_rebuild_tensor", "_rebuild_tensor_v3"):
        rebuild = getattr(utils, name, None)
        if rebuild is not None:
            setattr(utils, name, _wrapped(rebuild))
    allowed = torch._weights_only_unpickler._get_allowed_globals
    if hasattr(allowed, "cache_clear"):
        allowed.cache_clear()  # it has the function that was replaced
    torch.serialization.register_package(40, _tag, _deserialize)


def _wrapped(rebuild: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(rebuild)
    def rebuild_on_device(storage: Any, *arguments: Any) -> torch.Tensor:
        return _on_device(rebuild, storage, arguments)

    return rebuild_on_device


def _from_cpu(rebuild: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(rebuild)
    def rebuild_a_leaf(data: torch.Tensor, *arguments: Any) -> torch.Tensor:
        return rebuild(data.detach(), *arguments)  # what is sent of a leaf that wants a gradient is no leaf

    return rebuild_a_leaf
