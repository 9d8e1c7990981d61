"""What makes this torch a castoff build: its C++ half, its identity and its kill switch.

``CASTOFF_DISABLE=<topic>[,<topic>…]`` (or ``all``), read once when torch is imported, turns topics
off and gives stock behaviour back.
"""

import ctypes
import functools
import os
import warnings

from torch import version
from torch._castoff_topics import OTHERS, TOPICS

__all__ = ["TOPICS", "disabled_topics", "enabled", "library"]

_LIB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
_OVERLAY = os.path.join(_LIB, "libcastoff_torch.so")
_STUBS = os.path.join(_LIB, "libcastoff_interposed.so")


@functools.cache
def library() -> ctypes.PyDLL:
    """The library that holds the topics' C++: the overlay, or libtorch_cpu in a source build."""
    whole = os.path.join(_LIB, "libtorch_cpu.so")
    return ctypes.PyDLL(_OVERLAY if os.path.exists(_OVERLAY) else whole)


@functools.cache
def disabled_topics() -> frozenset[str]:
    """The names in ``CASTOFF_DISABLE``, as they stood when this was first called."""
    names = os.environ.get("CASTOFF_DISABLE", "").split(",")
    return frozenset(name.strip() for name in names) - {""}


def enabled(topic: str) -> bool:
    """Whether ``topic`` may act in this process."""
    return not disabled_topics() & {topic, "all"}


def _warn_of_unknown_topics() -> None:
    """Warn of names in ``CASTOFF_DISABLE`` that are no topic of either project: a typing error, as a rule."""
    known = {"all", *TOPICS, *OTHERS}
    for name in sorted(disabled_topics() - known):
        warnings.warn(
            f"CASTOFF_DISABLE names no topic of this build: {name}. It knows: {', '.join(sorted(known))}.",
            stacklevel=2,
        )


def _interpose() -> None:
    """Let calls of the functions that the overlay interposes lead to it: before torch's own libraries are loaded."""
    if not os.path.exists(_STUBS):
        return
    stubs = ctypes.CDLL(_STUBS, ctypes.RTLD_GLOBAL)
    names = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(stubs, "castoff_interposed_names"))).split()
    addresses = (ctypes.c_void_p * len(names)).in_dll(stubs, "castoff_interposed")
    for at, name in enumerate(names):
        addresses[at] = ctypes.cast(library()[name.decode()], ctypes.c_void_p)


def _refuse_other_torch() -> None:
    """Raise ImportError if the overlay was built for another torch than this one."""
    if not os.path.exists(_OVERLAY):
        return
    built_for = library().castoff_torch_git_version
    built_for.restype = ctypes.c_char_p
    expected = built_for().decode()
    if expected != version.git_version:
        raise ImportError(
            f"castoff: {_OVERLAY} was built for torch commit {expected}, but this torch is commit "
            f"{version.git_version}. The two must come from one wheel: reinstall the torch wheel "
            "that castoff built (pip install --force-reinstall --no-deps …), or stock torch."
        )


_interpose()
_refuse_other_torch()
_warn_of_unknown_topics()
