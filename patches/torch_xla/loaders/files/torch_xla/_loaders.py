"""Device loaders that tell what went wrong in their threads, and what they load."""

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["batches", "install", "whole", "with_dataset"]

#: What training libraries read of a DataLoader.
_ATTRIBUTES = (
    *("batch_sampler", "batch_size", "collate_fn", "dataset"),
    *("drop_last", "generator", "num_workers", "sampler"),
)

#: Whether the topic is on: the module with the loaders is imported later than it is installed, if at all.
_installed = False


class _Nothing:
    """A batch that is None, which in a queue means that there are no more."""

    __slots__ = ()


_NOTHING = _Nothing()


def install() -> None:
    """Let torch_xla.distributed.parallel_loader use this module. Called once, by ``_castoff``."""
    global _installed
    _installed = True
    from .utils import utils

    utils._for_each_instance_rewrite = _with_named_tuples(utils._for_each_instance_rewrite)


def _with_named_tuples(rewrite: Callable) -> Callable:
    """torch_xla's function that sends what containers hold to a device, and makes lists of their tuples."""

    @functools.wraps(rewrite)
    def rewritten(value: Any, select: Callable, function: Callable, seen: dict) -> Any:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)._make(rewritten(part, select, function, seen) for part in value)
        return rewrite(value, select, function, seen)

    return rewritten


def batches(loader: "ParallelLoader") -> Iterator[tuple[int, object]]:  # noqa: F821
    """Number and yield the batches of a ParallelLoader's own loader, in its thread.

    What that raises ends them, and is raised again by ``next`` of the iterator of each device, after the batches before
    it.
    """
    return _heard(loader) if _installed else enumerate(loader._cpu_loader)


def _heard(loader: "ParallelLoader") -> Iterator[tuple[int, object]]:  # noqa: F821
    try:
        for number, batch in enumerate(loader._cpu_loader):
            yield number, _NOTHING if batch is None else batch
    except Exception as error:
        for _ in loader._devices:
            loader._exception_queue.put(error)


def whole(iterator: type) -> type:
    """A decorator of PerDeviceLoader: it gives batches that are None, and does not end before its end, if the topic is
    on."""
    if not _installed:
        return iterator
    get_next = iterator.next

    @functools.wraps(get_next)
    def next_batch(self: Any) -> Any:
        try:
            batch = get_next(self)
        except StopIteration:
            if getattr(self, "_is_superseded", False):
                raise RuntimeError(
                    "MpDeviceLoader: expected one loop at a time, but another one began and ended this one before its "
                    "last batch. Make a loader for each of them."
                ) from None
            raise
        return None if batch is _NOTHING else batch

    iterator.next = next_batch
    return iterator


def _has_all_batches(iterator: "PerDeviceLoader") -> bool:  # noqa: F821
    """Whether nothing is left to read: an end does not lose what is in the queue."""
    return iterator._loader._queues[iterator._device].queue._close_write


def with_dataset(loader: type) -> type:
    """A decorator of MpDeviceLoader: it has the attributes of the DataLoader that it wraps, if the topic is on."""
    if not _installed:
        return loader
    for name in _ATTRIBUTES:
        setattr(loader, name, _attribute(name))
    begin = loader.__iter__

    @functools.wraps(begin)
    def begin_anew(self: Any) -> Any:
        before = getattr(self, "_iterator", lambda: None)()
        if before is not None and not _has_all_batches(before):
            before._is_superseded = True
        iterator = begin(self)
        self._iterator = weakref.ref(iterator)
        return iterator

    loader.__iter__ = begin_anew
    return loader


def _attribute(name: str) -> property:
    return property(lambda self: getattr(self._loader, name), doc=f"``{name}`` of the loader that is wrapped.")
