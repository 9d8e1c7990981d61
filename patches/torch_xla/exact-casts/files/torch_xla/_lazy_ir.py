"""Whether the C++ of this build may read the pending IR of this torch_xla.

``csrc/castoff/lazy_ir.cpp`` knows how. It serves the wheels of torch_xla 2.6.0, 2.7.0, 2.8.1 and 2.9.0 that PyPI has,
and no others.
"""

import ctypes
import functools
import warnings

from . import _castoff

__all__ = ["supported"]

#: The topics that read IR, as far as this build has them.
_TOPICS = tuple(topic for topic in ("exact-casts", "exact-dots", "native-mul") if topic in _castoff.TOPICS)


@functools.cache
def supported() -> bool:
    """Whether this is one of the builds of torch_xla that the topics for IR know; warns, once, if not."""
    refusal = _castoff.library().castoff_lazy_ir_refusal
    refusal.restype = ctypes.c_char_p
    reason = refusal()
    if reason is not None:
        warnings.warn(
            f"castoff: exact-casts and the topics that need it are off, everything else works: {reason.decode()}. "
            f"Install that wheel, or set CASTOFF_DISABLE={','.join(_TOPICS)} to be spared this warning.",
            stacklevel=2,
        )
    return reason is None
