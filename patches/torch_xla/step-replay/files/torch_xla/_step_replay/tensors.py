"""What is done with all tensors and objects of a replayed call at once, in C++ (csrc/castoff/step_replay*.cpp)."""

import ctypes
import functools
from array import array
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Optional

import torch

__all__ = ["ObjectGuards", "Objects", "TensorGuards", "count_up", "give_all", "sync_all"]

_tensor_of = attrgetter("_cdata")
_NO_GRAD = -1


@functools.cache
def _library() -> ctypes.PyDLL:
    from torch_xla import _castoff

    library = _castoff.library()
    for name, result in (
        ("sync", ctypes.c_char_p),
        ("give", ctypes.c_char_p),
        ("count", ctypes.c_bool),
        ("shapes", ctypes.c_size_t),
        ("locate", ctypes.c_bool),
        ("tensors_hold", ctypes.c_bool),
        ("objects_hold", ctypes.c_bool),
    ):
        getattr(library, f"castoff_step_replay_{name}").restype = result
    _locate(library, Objects([torch.empty(0)]))
    return library


def _locate(library: ctypes.PyDLL, tensors: "Objects") -> None:
    """Let C++ find tensors in their objects."""
    impls = array("Q", list(map(_tensor_of, tensors.kept)))
    if not library.castoff_step_replay_locate(tensors.start, _start(impls), tensors.count):
        raise RuntimeError("castoff: a tensor's object is not laid out as in the Pythons that torch has wheels for")


class Objects:
    """Objects that are kept, and their addresses: what C++ reads in each call is what they are by then."""

    def __init__(self, objects: Iterable[Any]) -> None:
        self.kept = list(objects)
        self.addresses = array("Q", list(map(id, self.kept)))
        self.count = ctypes.c_size_t(len(self.kept))

    @property
    def start(self) -> ctypes.c_void_p:
        return _start(self.addresses)

    @classmethod
    def of_tensors(cls, tensors: Iterable[torch.Tensor]) -> "Objects":
        """Tensors, which C++ has been shown to find in their objects."""
        found = cls(tensors)
        _locate(_library(), found)
        return found


def _start(numbers: array) -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])


def _check(error: Any) -> None:
    if error is not None:
        raise RuntimeError(f"castoff: a replayed call cannot go on: {error.decode()}")


class TensorGuards:
    """What tensors have to be: the dtype of .grad, if there is one; requires_grad; version; dtype and shape."""

    def __init__(
        self,
        grads: Sequence[tuple[torch.Tensor, Optional[torch.dtype]]],
        flags: Sequence[tuple[torch.Tensor, bool]],
        versions: Sequence[tuple[torch.Tensor, int]],
        states: Sequence[torch.Tensor],
    ) -> None:
        tensors = [Objects.of_tensors(tensor for tensor, _ in part) for part in (grads, flags, versions)]
        dtypes = [_NO_GRAD if dtype is None else _number_of(dtype) for _, dtype in grads]
        values = [dtypes, [flag for _, flag in flags], [version for _, version in versions]]
        state = Objects.of_tensors(states)
        self._kept = [(objects, array("q", value)) for objects, value in zip(tensors, values, strict=True)]
        self._kept.append((state, _shapes_of(state)))
        words = [(len(a.kept), a.addresses.buffer_info()[0], b.buffer_info()[0]) for a, b in self._kept]
        self._words = array("Q", [word for part in words for word in part])
        self._function, self._address = _library().castoff_step_replay_tensors_hold, _start(self._words)

    def hold(self) -> bool:
        return self._function(self._address)


class ObjectGuards:
    """The objects that entries of dicts have to be, and the sizes that containers have to have."""

    def __init__(self, entries: Sequence[tuple[dict, Any, Any]], sizes: Sequence[tuple[Any, int]]) -> None:
        parts = [Objects(entry[i] for entry in entries) for i in range(3)]
        containers, lengths = Objects(container for container, _ in sizes), array("q", [size for _, size in sizes])
        self._kept = [*parts, containers, lengths]
        self._values = parts[2]
        functions = (ctypes.pythonapi.PyDict_GetItem, ctypes.pythonapi.PyObject_Size)
        words = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        words += [len(entries), *[part.addresses.buffer_info()[0] for part in parts]]
        words += [len(sizes), containers.addresses.buffer_info()[0], lengths.buffer_info()[0]]
        self._words = array("Q", words)
        self._function, self._address = _library().castoff_step_replay_objects_hold, _start(self._words)

    def replaced(self, i: int, value: Any) -> None:
        """Expect another object of the i-th entry."""
        self._values.kept[i] = value
        self._values.addresses[i] = id(value)

    def hold(self) -> bool:
        return self._function(self._address)


@functools.cache
def _number_of(dtype: torch.dtype) -> int:
    return _shapes_of(Objects.of_tensors([torch.empty(0, dtype=dtype)]))[0]


def sync_all(tensors: Sequence[torch.Tensor]) -> None:
    """Let tensors of the device have what was written to those that alias them."""
    objects = Objects(tensors)
    _check(_library().castoff_step_replay_sync(objects.start, objects.count))


def give_all(tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], donated: int) -> None:
    """Let tensors, and what aliases them, have the values of as many outputs; the graph took the first ones' memory."""
    found, values = Objects(tensors), Objects(outputs)
    number = ctypes.c_size_t(donated)
    _check(_library().castoff_step_replay_give(found.start, values.start, found.count, number))


def count_up(counts: Objects) -> None:
    """One more in each of these tensors on the CPU."""
    if not _library().castoff_step_replay_count(counts.start, counts.count):
        torch._foreach_add_(counts.kept, 1)


def _shapes_of(tensors: Objects) -> array:
    """The dtypes and shapes of tensors, as numbers that are equal if these are."""
    numbers = array("q")
    while True:
        start, room = _start(numbers), ctypes.c_size_t(len(numbers))
        needed = _library().castoff_step_replay_shapes(tensors.start, tensors.count, start, room)
        if needed <= len(numbers):
            return numbers[:needed]
        numbers = array("q", bytes(8 * needed))
