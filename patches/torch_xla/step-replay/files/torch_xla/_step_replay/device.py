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
    "device_name",
    "drawn",
    "executions",
    "give",
    "handle_of",
    "handles_of",
    "is_kept",
    "keep",
    "pending_total",
    "seeds_of",
    "set_seed",
    "settle",
    "shardings_of",
    "storage_of",
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


def handle_of(tensor: torch.Tensor) -> Optional[int]:
    """What identifies the buffer that the tensor is; None while it is none."""
    if _XLAC._check_tensor_need_materialization([tensor])[0]:
        return None
    try:
        return _XLAC._get_tensors_handle([tensor])[0]
    except RuntimeError:
        return None


def handles_of(tensors: Sequence[torch.Tensor]) -> list[Optional[int]]:
    try:
        return list(_XLAC._get_tensors_handle(list(tensors)))
    except RuntimeError:
        return [handle_of(tensor) for tensor in tensors]


def values_of(tensors: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Tensors of their own that have the buffers of these, by handle. Those follow what is written to a tensor."""
    there = [tensor for tensor, handle in zip(tensors, handles_of(tensors), strict=True) if handle is not None]
    _, values = _XLAC._get_tensors_xla_device_data_node(there)
    return dict(zip(handles_of(values), values, strict=True))


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
    return found


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


@contextmanager
def donated_as_marked() -> Iterator[None]:
    """Graphs that are compiled in this block donate the inputs that were marked."""
    verb = "enable" if hasattr(_XLAC, "_xla_set_enable_alias_with_buffer_donor_config") else "should"  # 2.6
    get, put = (getattr(_XLAC, f"_xla_{do}_{verb}_alias_with_buffer_donor_config") for do in ("get", "set"))
    outer = get()
    put(True)
    try:
        yield
    finally:
        put(outer)


def compiled(outputs: Sequence[torch.Tensor], donors: Iterable[torch.Tensor]) -> bytes:
    """Compile the pending graph of these tensors, if that is not done yet; its hash."""
    for donor in donors:
        _XLAC._set_buffer_donation(donor, True)
    with donated_as_marked():
        graph = _XLAC._get_graph_hash(list(outputs))
        _XLAC._xla_warm_up_cache(list(outputs), [])
    return graph
