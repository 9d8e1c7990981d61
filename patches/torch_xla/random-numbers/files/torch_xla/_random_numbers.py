"""Random numbers on XLA: drawn in float32, seeded by ``torch.manual_seed``, or drawn from a ``torch.Generator``.

The kernels are C++ (``csrc/castoff/random_numbers.cpp``), and so are generators (``csrc/castoff/xla_generator.cpp``).
Seeding waits until XLA's runtime runs, as ``torch.manual_seed`` must not start it: programs call it before they fork
or spawn.
"""

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch_xla

from . import _castoff

__all__ = ["install"]

_C = torch_xla._XLAC
_get_rng_seed, _set_rng_seed = _C._xla_get_rng_seed, _C._xla_set_rng_seed

#: The seed to set once XLA's runtime runs.
_pending: int | None = None

_forked_after_use = False


def _note_fork() -> None:
    global _forked_after_use
    _forked_after_use = _C._xla_runtime_is_initialized()


def _set_seed(seed: int) -> None:
    for index in range(_C._xla_num_devices()):
        _set_rng_seed(seed, f"xla:{index}")


def _set_pending_seed() -> None:
    """Called by the first draw after `_seed_xla`, and before a seed is read or set."""
    global _pending
    seed, _pending = _pending, None
    if seed is not None:
        _set_seed(seed)


def _seed_xla(seed: int, library: ctypes.PyDLL) -> None:
    global _pending
    if _forked_after_use:  # as CUDA's generators, in a process forked from one that uses the device
        return
    seed = int(seed) % 2**64
    if _C._xla_runtime_is_initialized():
        _pending = None
        _set_seed(seed)
    else:
        _pending = seed
        library.castoff_random_numbers_seed_is_pending()


def _exchange_seed(index: int, seed: int) -> int:
    """Set what a device draws from next, and return what it would have drawn from."""
    device = f"xla:{index}"
    before: int = _C._xla_get_rng_seed(device)
    _set_rng_seed(seed, device)
    return before


def _after_pending_seed(function: Callable) -> Callable:
    """A seed that is set by itself comes after one of ``torch.manual_seed`` that still waits, and one that is read has
    to be that."""

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        _set_pending_seed()
        return function(*args)

    return called


def _with_its_seed(function: Callable) -> Callable:
    """``function``, which traces what torch.compile compiles; the seed is then what it was before."""

    @functools.wraps(function)
    def traced(*args: Any) -> Any:
        seed = _C._xla_get_rng_seed()
        try:
            return function(*args)
        finally:
            _C._xla_set_rng_seed(seed)

    return traced


def _seed_compiled_functions() -> None:
    """Let functions of torch.compile draw the same numbers when they are traced first, and others than what is pending.

    torch_xla hands a compiled graph the seed that the pending graph began with.
    """
    from ._dynamo import dynamo_bridge

    for name in ("extract_compiled_graph_helper", "extract_graph_helper"):
        setattr(dynamo_bridge, name, _with_its_seed(getattr(dynamo_bridge, name)))
    matcher = dynamo_bridge.GraphInputMatcher
    match = matcher.__call__

    @functools.wraps(match)
    def after_pending_draws(self: Any, args: Any) -> Any:
        if self.seed_info_id in self.graph_input_tensor_ids:
            _C._xla_set_rng_seed(_C._xla_get_rng_seed())
        return match(self, args)

    matcher.__call__ = after_pending_draws


def _wrap_generator() -> ctypes.c_void_p:
    """The address of THPGenerator_Wrap, which makes a Python object of an at::Generator."""
    library = ctypes.PyDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_python.so"))
    return ctypes.cast(library._Z17THPGenerator_WrapRKN2at9GeneratorE, ctypes.c_void_p)


def install() -> None:
    """Override torch_xla's kernels and make ``torch.manual_seed`` and ``torch.seed`` seed XLA. Called once.

    ``torch.Generator(device="xla")`` makes a generator then (pytorch/xla#9159).
    """
    _castoff.install_kernels("random-numbers", _SEED, ctypes.py_object(torch.Generator), _EXCHANGE, _wrap_generator())
    library = _castoff.library()
    os.register_at_fork(after_in_child=_note_fork)
    _C._xla_get_rng_seed = _after_pending_seed(_get_rng_seed)
    _C._xla_set_rng_seed = _after_pending_seed(_set_rng_seed)
    _seed_compiled_functions()
    stock = torch.random._seed_custom_device

    def _seed_custom_device(seed: int) -> None:
        stock(seed)
        _seed_xla(seed, library)

    torch.random._seed_custom_device = _seed_custom_device


_SEED = ctypes.CFUNCTYPE(None)(_set_pending_seed)
_EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)(_exchange_seed)
