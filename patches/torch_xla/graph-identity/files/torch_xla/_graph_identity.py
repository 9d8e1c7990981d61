"""What changes how every graph is lowered, in the key of compiled graphs (pytorch/xla#8353).

The key itself is torch's, and so is the first half of this topic, which makes it say what the graph is. Here it
learns what the process has set.
"""

import ctypes
import functools
import hashlib
import warnings

import _XLAC
from torch import _castoff as _torch_castoff

__all__ = ["install"]


def install() -> None:
    """Let the key follow the settings, and warn if it is not torch's overlay that makes it."""
    library = _torch_castoff.library()
    in_effect = getattr(library, "castoff_graph_identity_in_effect", None)  # a source build has it in torch itself
    if in_effect is not None:
        in_effect.restype = ctypes.c_bool
        if not in_effect():
            warnings.warn(
                "castoff: another library takes the place of LazyGraphExecutor::RunPostOrder, so graphs that differ in "
                "which tensor feeds which operand may run as one another, with wrong results (pytorch/xla#8353). Let "
                "nothing load torch's libraries before torch does (LD_PRELOAD); python -m castoff_doctor names it.",
                stacklevel=2,
            )
    library.castoff_graph_identity_set_salt.argtypes = [ctypes.c_uint64]
    if hasattr(_XLAC, "_xla_set_mat_mul_precision"):
        _follow_precision()


def _follow_precision() -> None:
    """Put the precision of matrix products, of which nothing is in the nodes, into the key whenever it changes."""
    set_precision = _XLAC._xla_set_mat_mul_precision

    @functools.wraps(set_precision)
    def set_and_say(precision: str) -> None:
        set_precision(precision)
        _say_precision()

    _XLAC._xla_set_mat_mul_precision = set_and_say
    _say_precision()


def _say_precision() -> None:
    precision = _XLAC._xla_get_mat_mul_precision()
    digest = hashlib.blake2b(precision.encode(), digest_size=8).digest()
    salt = 0 if precision == "default" else int.from_bytes(digest, "little")
    _torch_castoff.library().castoff_graph_identity_set_salt(salt)
