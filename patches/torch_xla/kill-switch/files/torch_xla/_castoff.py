"""What makes this torch_xla a castoff build: its C++ half, its identity and its topics.

The last thing that ``import torch_xla`` does is `_install_topics`. ``CASTOFF_DISABLE=<topic>[,<topic>…]``
(or ``all``) keeps topics out; with all of them out, nothing is loaded and torch_xla is stock.
"""

import contextlib
import ctypes
import functools
import importlib
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import _XLAC
import torch
from torch import _castoff as _torch_castoff

from . import version
from ._castoff_topics import TOPICS

__all__ = [
    "TOPICS",
    "call",
    "follow_matmul_precision",
    "install_kernels",
    "kernels",
    "library",
    "matmul_precision",
    "quiet",
    "untraced",
]

_HERE = Path(__file__).resolve().parent
_LIBRARY = _HERE / "lib" / "libcastoff_torch_xla.so"

#: A kernel of a topic in the dispatcher's dump of an operator: its dispatch key and the topic, whose folder begins the
#: path of the file that registered it.
_REGISTRATION = re.compile(r"^(\w+)(?: \(inactive\))?: registered at torch_xla/([\w-]+)/files/", re.MULTILINE)

#: The precision that was last set, and who is told of a change.
_heard_precision = "default"
_followers: list[Callable[[str], None]] = []


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


def install_kernels(topic: str, *arguments: object) -> None:
    """Let the library put a topic's kernels in place: call its ``castoff_<topic>_install``.

    Raises:
        ImportError: They cannot take their place, or the library does not belong here.
    """
    call(topic, "install", *arguments)


def call(topic: str, function: str, *arguments: object) -> None:
    """Call ``castoff_<topic>_<function>`` of the library, which returns what went wrong or nullptr.

    Raises:
        ImportError: Something went wrong, or the library does not belong here.
    """
    entry = getattr(library(), f"castoff_{topic.replace('-', '_')}_{function}")
    entry.restype = ctypes.c_char_p
    error = entry(*arguments)
    if error is not None:
        raise ImportError(f"castoff: {topic} cannot take its place: {error.decode()}")


def kernels() -> dict[str, dict[str, list[str]]]:
    """For each operator that topics override in C++, by dispatch key: these topics, the one that is called first first.

    A topic whose kernel does not hand on a call ends the chain; after the last one comes torch_xla's or torch's kernel.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for operator in torch._C._dispatch_get_all_op_names():
        for key, topic in _REGISTRATION.findall(torch._C._dispatch_dump(operator)):
            chain = found.setdefault(operator, {}).setdefault(key, [])
            if topic not in chain:  # a topic may have two kernels, one before the other
                chain.append(topic)
    return found


def matmul_precision() -> str:
    """The precision that this process's matrix products have: "default", "high" or "highest".

    torch_xla before 2.8 does not tell it: there it is what was set since ``import torch_xla``.
    """
    get = getattr(_XLAC, "_xla_get_mat_mul_precision", None)
    return _heard_precision if get is None else get()


def follow_matmul_precision(follower: Callable[[str], None]) -> None:
    """Call ``follower`` with the precision of matrix products: now, and whenever it is set."""
    _followers.append(follower)
    follower(matmul_precision())


def _hear_matmul_precision() -> None:
    """Hear what sets the precision: ``torch_xla.backends`` calls it, and users of 2.7 and 2.6, which lack that."""
    set_precision = getattr(_XLAC, "_xla_set_mat_mul_precision", None)
    if set_precision is None:
        return  # torch_xla 2.1 has one precision

    @functools.wraps(set_precision)
    def set_and_tell(precision: str) -> None:
        global _heard_precision
        set_precision(precision)
        _heard_precision = precision.lower()  # as XLA reads it
        for follower in _followers:
            follower(matmul_precision())

    _XLAC._xla_set_mat_mul_precision = set_and_tell


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without warnings. Those that torch gives once, as of an overridden kernel, are left for what comes after."""
    always = torch.is_warn_always_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_warn_always(True)
        try:
            yield
        finally:
            torch.set_warn_always(always)


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
    def call(*arguments: object, **named: object) -> object:
        outer = dynamo.set_eval_frame(None)
        try:
            return function(*arguments, **named)
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
    enabled = {topic: module for topic, module in TOPICS.items() if module and _torch_castoff.enabled(topic)}
    if enabled:
        _hear_matmul_precision()
    for topic, module in enabled.items():
        if module == "C++":
            install_kernels(topic)
        else:
            importlib.import_module(f"{__package__}.{module}").install()


_install_topics()
