"""What makes this torch_xla a castoff build: its C++ half, its identity and its topics.

The last thing that ``import torch_xla`` does is `_install_topics`. ``CASTOFF_DISABLE=<topic>[,<topic>…]``
(or ``all``) keeps topics out; with all of them out, nothing is loaded and torch_xla is stock.
"""

import ctypes
import functools
import importlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import _castoff as _torch_castoff

from . import version
from ._castoff_topics import TOPICS

__all__ = ["TOPICS", "install_kernels", "library", "untraced"]

_HERE = Path(__file__).resolve().parent
_LIBRARY = _HERE / "lib" / "libcastoff_torch_xla.so"


@functools.cache
def library() -> ctypes.PyDLL:
    """The library that holds the C++ of torch_xla's topics, once it is known to belong here."""
    if not _LIBRARY.exists():
        raise ImportError(
            f"castoff: {_LIBRARY} is missing, so this torch_xla is not whole. Reinstall the torch_xla "
            "wheel that castoff built (pip install --force-reinstall --no-deps …)."
        )
    try:
        lib = ctypes.PyDLL(str(_LIBRARY))
    except OSError as error:
        raise ImportError(_mismatch(f"does not load into this torch ({error})")) from error
    for name, function, found in (
        ("torch", lib.castoff_torch_xla_torch_git_version, torch.version.git_version),
        ("torch_xla", lib.castoff_torch_xla_git_version, version.__xla_gitrev__),
    ):
        function.restype = ctypes.c_char_p
        expected = function().decode()
        if found != expected:
            raise ImportError(_mismatch(f"was built for {name} commit {expected}, but this {name} is commit {found}"))
    return lib


def install_kernels(topic: str, *arguments: object, entry: str = "install") -> None:
    """Let the library put a topic's kernels in place: call its ``castoff_<topic>_<entry>``.

    Raises:
        ImportError: They cannot take their place, or the library does not belong here.
    """
    function = getattr(library(), f"castoff_{topic.replace('-', '_')}_{entry}")
    function.restype = ctypes.c_char_p
    error = function(*arguments)
    if error is not None:
        raise ImportError(f"castoff: {topic} cannot take its place: {error.decode()}")


def untraced(function: Callable) -> Callable:
    """A decorator: dynamo traces neither ``function`` nor what it calls.

    For kernels in Python, which run under dynamo where torch.compile executes lazy tensors.
    """
    dynamo = torch._C._dynamo.eval_frame
    if not hasattr(dynamo, "skip_code"):
        skip = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.SKIP)
        dynamo.set_code_exec_strategy(function.__code__, skip)
        return function

    # Before torch 2.7 only the frame itself can be skipped by its code.
    @functools.wraps(function)
    def call(*arguments: object) -> object:
        outer = dynamo.set_eval_frame(None)
        try:
            return function(*arguments)
        finally:
            dynamo.set_eval_frame(outer)

    dynamo.skip_code(call.__code__)
    return call


def _mismatch(what: str) -> str:
    return (
        f"castoff: {_LIBRARY} {what}. torch and torch_xla must come from one castoff build: reinstall "
        "both with its constraints (pip install -c constraints.txt torch torch_xla), or set "
        "CASTOFF_DISABLE=all to run torch_xla as stock."
    )


def _install_topics() -> None:
    """Install every topic that is in this build and not disabled."""
    for topic, module in TOPICS.items():
        if module and _torch_castoff.enabled(topic):
            importlib.import_module(f"{__package__}.{module}").install()


_install_topics()
