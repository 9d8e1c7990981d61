"""Device loaders that tell what went wrong in their threads, and what they load."""

from collections.abc import Iterator

__all__ = ["batches", "install", "with_dataset"]

#: What training libraries read of a DataLoader.
_ATTRIBUTES = (
    *("batch_sampler", "batch_size", "collate_fn", "dataset"),
    *("drop_last", "generator", "num_workers", "sampler"),
)

#: Whether the topic is on: the module with the loaders is imported later than it is installed, if at all.
_installed = False


def install() -> None:
    """Let torch_xla.distributed.parallel_loader use this module. Called once, by ``_castoff``."""
    global _installed
    _installed = True


def batches(loader: "ParallelLoader") -> Iterator[tuple[int, object]]:  # noqa: F821
    """Number and yield the batches of a ParallelLoader's own loader, in its thread.

    What that raises ends them, and is raised again by ``next`` of the iterator of each device, after the batches before
    it.
    """
    return _heard(loader) if _installed else enumerate(loader._cpu_loader)


def _heard(loader: "ParallelLoader") -> Iterator[tuple[int, object]]:  # noqa: F821
    try:
        yield from enumerate(loader._cpu_loader)
    except Exception as error:
        for _ in loader._devices:
            loader._exception_queue.put(error)


def with_dataset(loader: type) -> type:
    """A decorator of MpDeviceLoader: it has the attributes of the DataLoader that it wraps, if the topic is on."""
    if _installed:
        for name in _ATTRIBUTES:
            setattr(loader, name, _attribute(name))
    return loader


def _attribute(name: str) -> property:
    return property(lambda self: getattr(self._loader, name), doc=f"``{name}`` of the loader that is wrapped.")
