"""What torch_xla lowers graphs by and leaves out of their keys (pytorch/xla#8353): settings and attributes.

The key itself is torch's, and so is the first half of this topic, which makes it say what the graph is. Here it
learns what the process has set, and what the nodes do not say.
"""

import ctypes
import functools
import hashlib
import warnings

import _XLAC
import torch
from torch import _castoff as _torch_castoff

__all__ = ["install"]

_kernels = torch.library.Library("aten", "IMPL")


def install() -> None:
    """Put what the keys lack into them, and warn if it is not torch's overlay that makes the keys."""
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
    library.castoff_graph_identity_set_settings.argtypes = [ctypes.c_uint64]
    if hasattr(_XLAC, "_xla_set_mat_mul_precision"):
        _follow_precision()
    _kernels.impl("pixel_shuffle", _pixel_shuffle, "XLA")


def _follow_precision() -> None:
    """Put the precision of matrix products, of which nothing is in the nodes, into the key whenever it changes."""
    set_precision = _XLAC._xla_set_mat_mul_precision

    def say() -> None:
        precision = _XLAC._xla_get_mat_mul_precision()
        digest = hashlib.blake2b(precision.encode(), digest_size=8).digest()
        word = 0 if precision == "default" else int.from_bytes(digest, "little")
        _torch_castoff.library().castoff_graph_identity_set_settings(word)

    @functools.wraps(set_precision)
    def set_and_say(precision):
        set_precision(precision)
        say()

    _XLAC._xla_set_mat_mul_precision = set_and_say
    say()


def _pixel_shuffle(self: torch.Tensor, upscale_factor: int) -> torch.Tensor:
    """By views, as torch does it: the factor is in the shapes of their nodes, and not in torch_xla's own node."""
    from torch._refs.nn.functional import pixel_shuffle

    return pixel_shuffle(self, upscale_factor)
