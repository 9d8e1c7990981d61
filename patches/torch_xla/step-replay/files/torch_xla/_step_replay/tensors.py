"""What is done with all tensors and objects of a replayed call at once, in C++ (csrc/castoff/step_replay*.cpp)."""

import ctypes
import functools
import itertools
from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Optional

import _XLAC
import torch

__all__ = [
    "ObjectGuards",
    "Objects",
    "Starter",
    "TensorGuards",
    "TensorResults",
    "all_computed",
    "count_up",
    "give_own_buffers",
    "modes",
    "sync_all",
]

_tensor_of = attrgetter("_cdata")
_NO_GRAD = -1


@functools.cache
def _library() -> ctypes.PyDLL:
    from torch_xla import _castoff

    library = _castoff.library()
    some = (ctypes.c_void_p, ctypes.c_size_t)
    for name, result, *arguments in (
        ("sync", ctypes.c_char_p, *some),
        ("can_start", ctypes.c_bool),
        ("all_computed", ctypes.c_bool),
        ("modes", ctypes.c_uint64),
        ("give", ctypes.c_char_p, ctypes.c_void_p),
        ("result", ctypes.py_object, ctypes.c_int64),
        ("copy", ctypes.c_char_p, ctypes.c_void_p, *some, ctypes.c_size_t),
        ("find_shared", ctypes.c_char_p, *some, ctypes.c_void_p, ctypes.c_void_p),
        ("count", ctypes.c_bool, *some),
        ("shapes", ctypes.c_size_t, *some, *some),
        ("locate", ctypes.c_bool, ctypes.c_void_p, *some),
        ("tensors_hold", ctypes.c_bool, ctypes.c_void_p),
        ("objects_hold", ctypes.c_bool, ctypes.c_void_p),
    ):
        function = getattr(library, f"castoff_step_replay_{name}")
        function.restype, function.argtypes = result, arguments
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

    @property
    def start(self) -> int:
        return _start(self.addresses)

    @property
    def count(self) -> int:
        return len(self.kept)

    def copy(self) -> "Objects":
        """Another one, to put other objects into it."""
        other = Objects.__new__(Objects)
        other.kept, other.addresses = self.kept.copy(), self.addresses[:]
        return other

    def put(self, i: int, thing: Any) -> None:
        """Have another object as the i-th; None: have none, which C++ passes over."""
        self.kept[i] = thing
        self.addresses[i] = 0 if thing is None else id(thing)

    @classmethod
    def of_tensors(cls, tensors: Iterable[torch.Tensor]) -> "Objects":
        """Tensors, which C++ has been shown to find in their objects."""
        found = cls(tensors)
        _locate(_library(), found)
        return found


def _start(numbers: array) -> int:
    return numbers.buffer_info()[0]


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
        self._values.kept[i], self._values.addresses[i] = value, id(value)

    def hold(self) -> bool:
        return self._function(self._address)


@functools.cache
def _number_of(dtype: torch.dtype) -> int:
    return _shapes_of(Objects.of_tensors([torch.empty(0, dtype=dtype)]))[0]


def sync_all(tensors: Objects) -> None:
    """Let tensors of the device have what was written to those that alias them."""
    _check(_library().castoff_step_replay_sync(tensors.start, tensors.count))


def all_computed() -> bool:
    """Whether all tensors of the device are known to be computed: nothing is pending."""
    return _library().castoff_step_replay_all_computed()


def modes() -> int:
    """The modes of torch's that change the graphs of this thread."""
    return _library().castoff_step_replay_modes()


@functools.cache
def _of_shared_buffers() -> tuple[Callable[[], bool], ctypes.c_void_p]:
    """Torch's functions that say whether any buffer is shared, and whether one is."""
    library = torch._castoff.library()
    any_is, one_is = (getattr(library, f"castoff_graph_identity_{name}_shared_buffer") for name in ("any", "is"))
    any_is.restype = ctypes.c_bool
    return any_is, ctypes.cast(one_is, ctypes.c_void_p)


def give_own_buffers(tensors: Iterable[torch.Tensor], compute: Callable[[], object]) -> None:
    """Give a copy of their value to those whose buffer another tensor may have, as after copy_()."""
    any_is, one_is = _of_shared_buffers()
    if not any_is():
        return
    held = Objects(tensors)
    shared = array("B", bytes(held.count))
    _check(_library().castoff_step_replay_find_shared(held.start, held.count, one_is, _start(shared)))
    sharing = Objects(itertools.compress(held.kept, shared))
    if sharing.count:
        with torch.no_grad():
            copies = Objects([tensor.detach().clone() for tensor in sharing.kept])
        compute()
        _check(_library().castoff_step_replay_copy(sharing.start, copies.start, copies.count, 0))


class TensorResults:
    """The results of a graph that was started, each of them a tensor of Python."""

    def __init__(self, graph: bytes, inputs: list[torch.Tensor], numbers: Sequence[int], donated: int) -> None:
        """Numbers: of the results that are given, the first of which have the memory of who gets them."""
        self._tensors = _XLAC._run_cached_graph(graph, inputs)
        self.given, self._donated = Objects(self._tensors[number] for number in numbers), donated

    def give(self, targets: Objects) -> None:
        """Let tensors, and what aliases them, have these results."""
        _check(_library().castoff_step_replay_copy(targets.start, self.given.start, targets.count, self._donated))

    def tensor(self, number: int, is_first: bool) -> torch.Tensor:
        """A result, as a tensor that does not follow what is done with another one."""
        found = self._tensors[number]
        return found if is_first else torch._to_functional_tensor(torch._from_functional_tensor(found))


class Starter:
    """Starts a graph as often as wanted, and has its results in C++: those that are given never are Python's."""

    def __init__(self, graph: bytes, first: TensorResults, numbers: Sequence[int], donated: int) -> None:
        """First: the results of the graph when it ran before, of whose dtypes and shapes the later ones are."""
        library = _library()
        self._parts = array("Q", graph), array("q", numbers), _shapes_of(first.given)
        self._graph, *addresses = [part.buffer_info()[0] for part in self._parts]
        self._gifts = array("Q", [len(numbers), 0, *addresses, donated])
        # It lets other threads of Python run: the graph before this one may be about to start in one of C++.
        self._start = ctypes.CDLL(None, handle=library._handle).castoff_step_replay_start
        self._start.restype, self._start.argtypes = ctypes.c_char_p, (ctypes.c_void_p,)
        self._give, self._tensor = library.castoff_step_replay_give, library.castoff_step_replay_result

    @staticmethod
    def can_start() -> bool:
        """Whether the functions of torch_xla that this calls are known."""
        return _library().castoff_step_replay_can_start()

    def start(self, inputs: Objects, count: int) -> "Starter":
        """With the first inputs, as many as the graph takes."""
        call = array("Q", (self._graph, count, inputs.start))
        _check(self._start(_start(call)))
        return self

    def give(self, targets: Objects) -> None:
        """As that of TensorResults; the results are forgotten."""
        gifts = self._gifts[:]  # of this thread alone
        gifts[1] = targets.addresses.buffer_info()[0]
        _check(self._give(_start(gifts)))

    def tensor(self, number: int, is_first: bool) -> torch.Tensor:
        """As that of TensorResults; each is one of its own."""
        return self._tensor(number)


def count_up(counts: Objects) -> None:
    """One more in each of these tensors on the CPU."""
    if not _library().castoff_step_replay_count(counts.start, counts.count):
        torch._foreach_add_(counts.kept, 1)


def _shapes_of(tensors: Objects) -> array:
    """The dtypes and shapes of tensors, as numbers that are equal if these are."""
    numbers = array("q")
    while True:
        needed = _library().castoff_step_replay_shapes(tensors.start, tensors.count, _start(numbers), len(numbers))
        if needed <= len(numbers):
            return numbers[:needed]
        numbers = array("q", bytes(8 * needed))
