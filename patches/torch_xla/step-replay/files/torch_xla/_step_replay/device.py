"""What a replay asks of torch_xla's runtime: tensors' identities, seeds, and graphs that are compiled already."""

import functools
import gc
import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Optional

import _XLAC
import torch
import torch_xla.runtime as xr

from .tensors import all_computed

__all__ = [
    "advanced",
    "all_objects",
    "base_seed",
    "compiled",
    "computed_alone",
    "device_name",
    "drawn",
    "executions",
    "give",
    "handle_of",
    "handles_of",
    "has_number",
    "is_kept",
    "is_pending",
    "is_seed",
    "keep",
    "own",
    "pending_total",
    "run",
    "seeds_of",
    "set_seed",
    "settle",
    "shardings_of",
    "storage_of",
    "taken_by",
    "to_cpu",
    "values_of",
]

_WORD = 1 << 64

#: Tensors that plans keep. Numbers of equal value have one buffer, so these are not to be taken for a step's state.
_kept: "weakref.WeakValueDictionary[int, torch.Tensor]" = weakref.WeakValueDictionary()


def keep(tensor: torch.Tensor) -> torch.Tensor:
    """Note that a tensor is a plan's own."""
    _kept[id(tensor)] = tensor
    return tensor


def is_kept(tensor: torch.Tensor) -> bool:
    return _kept.get(id(tensor)) is tensor


def device_name() -> str:
    return _named(_XLAC._xla_get_default_device())


@functools.cache
def _named(device: str) -> str:
    return str(torch.device(device))


def is_pending(tensor: torch.Tensor) -> bool:
    """Whether a tensor is not computed yet."""
    return _XLAC._check_tensor_need_materialization([tensor])[0]


def own(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same value that shares its storage with no other, and keeps no base alive."""
    tensor = tensor.detach()
    torch._functionalize_sync(tensor)
    return torch._to_functional_tensor(torch._from_functional_tensor(tensor))


def handle_of(tensor: torch.Tensor) -> Optional[int]:
    """What identifies the buffer that the tensor is; None while it is none."""
    if is_pending(tensor):
        return None
    try:
        return _XLAC._get_tensors_handle([tensor])[0]
    except RuntimeError:
        return None


def has_number(tensor: torch.Tensor, handle: Optional[int]) -> bool:
    """Whether a computed tensor has the buffer that torch_xla keeps for its number, wherever that is used."""
    return tensor.dim() == 0 and handle_of(tensor.cpu().to(tensor.device)) == handle


def handles_of(tensors: Sequence[torch.Tensor]) -> list[Optional[int]]:
    try:
        return list(_XLAC._get_tensors_handle(list(tensors)))
    except RuntimeError:
        return [handle_of(tensor) for tensor in tensors]


def values_of(tensors: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Tensors of their own that have the buffers of these, by handle. Those follow what is written to a tensor."""
    there = [tensor for tensor, handle in zip(tensors, handles_of(tensors), strict=True) if handle is not None]
    _, values = taken_by(there)
    return dict(zip(handles_of(values), values, strict=True))


def taken_by(tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[torch.Tensor]]:
    """What the graph of these tensors takes: the numbers that torch_xla has for it, and tensors that have it."""
    numbers, values = _XLAC._get_tensors_xla_device_data_node(list(tensors))
    return list(numbers), list(values)


def to_cpu(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What computed tensors are, on the CPU: waits for all of them at once."""
    there = iter(_XLAC._xla_get_cpu_tensors([tensor for tensor in tensors if not tensor.is_cpu]))
    return [tensor if tensor.is_cpu else next(there) for tensor in tensors]


def shardings_of(tensors: Sequence[torch.Tensor]) -> list[str]:
    """How computed tensors are sharded. In a process without SPMD none is, and the list is empty."""
    return list(_XLAC._get_xla_sharding_specs(list(tensors))) if xr.is_spmd() else []


def storage_of(tensor: torch.Tensor) -> int:
    """What tensors that alias each other have in common."""
    return tensor.untyped_storage()._cdata


def pending_total(device: str) -> int:
    """How many tensors are not computed yet, those without a Python object too."""
    return sum(_XLAC._check_device_tensor_need_materialization(device))


def give(tensor: torch.Tensor, inner: torch.Tensor) -> None:
    """Let a tensor, and what aliases it, have another value: a buffer, without the wrapper of functionalization."""
    torch._functionalize_replace(tensor, inner)
    torch._functionalize_commit_update(tensor)
    torch._functionalize_sync(tensor)


def all_objects(*kinds: type) -> list[list[Any]]:
    """All objects of these classes that the garbage collector knows."""
    found: list[list[Any]] = [[] for _ in kinds]
    places: dict[type, Optional[list[Any]]] = {}
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance() asks __class__, which lazy modules compute
        if kind not in places:
            places[kind] = next((found[i] for i, wanted in enumerate(kinds) if wanted in kind.__mro__), None)
        place = places[kind]
        if place is not None:
            place.append(thing)
            if torch.Tensor in kind.__mro__:
                own_reference(thing)
    return found


def own_reference(tensor: torch.Tensor) -> None:
    """Keep the value of a tensor that was found, and not passed on, as long as Python has it.

    An object that C++ alone refers to would else lose its value with that reference; torch asks for this after a weak
    reference (`Tensor._fix_weakref`).
    """
    torch._C.TensorBase._fix_weakref(tensor)


def advanced(seed: int) -> int:
    """The seed after a step: torch_xla's own recurrence."""
    return (1012031 + seed * 7012063) % _WORD


def drawn(seed: int, times: int = 1) -> int:
    """The seed after as many random operators."""
    for _ in range(times):
        seed = (2531011 + seed * 214013) % _WORD
    return seed


def base_seed(device: str) -> int:
    """The seed that the random operators of a step begin with."""
    return int(_XLAC._get_base_seed_as_tensor(device).item()) % _WORD


def set_seed(seed: int, device: str) -> None:
    _XLAC._xla_set_rng_seed(seed % _WORD, device)


def is_seed(number: int) -> bool:
    """Whether an input of a graph, by its number, is the seed of a random operator."""
    return number == _XLAC._get_seed_info_id()


def settle(device: str, tensors: Iterable[torch.Tensor] = (), wait: bool = False) -> int:
    """Compute what is pending; the seed of what comes next, which is as it was."""
    seed = _XLAC._xla_get_rng_seed() % _WORD
    for tensor in tensors:
        torch._functionalize_sync(tensor)
    if wait or not all_computed():
        _XLAC._xla_sync_live_tensors(device, [], False)
        set_seed(seed, device)
    if wait:
        _XLAC._xla_wait_device_ops([])
    return seed


def seeds_of(seed: int, draws: Sequence[int]) -> Sequence[torch.Tensor]:
    """The seeds, on the CPU, that random operators get, which are the so-manyth ones of a step in ascending order."""
    words = []
    for last, draw in itertools.pairwise([0, *draws]):
        seed = drawn(seed, draw - last)
        words.append(seed - _WORD if seed >= _WORD // 2 else seed)
    return torch.tensor(words, dtype=torch.int64).unbind()


def executions() -> tuple[int, ...]:
    """Counts that change whenever a graph is executed or a value is read."""
    counters = ("CachedCompile", "UncachedCompile", "MarkStep")
    metrics = ("TransferFromDeviceTime", "RunCachedGraphInputData", "InboundData")
    counted = [_XLAC._xla_counter_value(name) or 0 for name in counters]
    return (*counted, *[(_XLAC._xla_metric_data(name) or (0,))[0] for name in metrics])


def graphs_run() -> int:
    """How many graphs this process has executed: part of `executions`, in less than a microsecond."""
    return sum(_XLAC._xla_counter_value(name) or 0 for name in ("CachedCompile", "UncachedCompile"))


def on_the_cpu() -> dict[str, int]:
    """How often each operator was handed to the CPU."""
    names = [name for name in _XLAC._xla_counter_names() if name.startswith("aten::")]
    return {name: _XLAC._xla_counter_value(name) or 0 for name in names}


@contextmanager
def donated_as_marked(*, donate: bool = True) -> Iterator[None]:
    """Graphs that are compiled in this block donate the inputs that were marked, or do not."""
    verb = "enable" if hasattr(_XLAC, "_xla_set_enable_alias_with_buffer_donor_config") else "should"  # 2.6
    get, put = (getattr(_XLAC, f"_xla_{do}_{verb}_alias_with_buffer_donor_config") for do in ("get", "set"))
    outer = get()
    put(donate)
    try:
        yield
    finally:
        put(outer)


def computed_alone(tensor: torch.Tensor) -> bytes:
    """Compile the graph that computes a pending tensor, which stays pending; its hash."""
    with donated_as_marked(donate=False):
        return _compiled([tensor])


def run(graph: bytes, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The first result of a compiled graph."""
    return _XLAC._run_cached_graph(graph, list(tensors))[0]


def compiled(outputs: Sequence[torch.Tensor], donors: Iterable[torch.Tensor]) -> bytes:
    """Compile the pending graph of these tensors, if that is not done yet; its hash."""
    for donor in donors:
        _XLAC._set_buffer_donation(donor, True)
    with donated_as_marked():
        return _compiled(outputs)


def _compiled(outputs: Sequence[torch.Tensor]) -> bytes:
    graph = _XLAC._get_graph_hash(list(outputs))
    _XLAC._xla_warm_up_cache(list(outputs), [])
    return graph
