"""What torch_xla lowers graphs by and leaves out of their keys (pytorch/xla#8353): settings and attributes.

The key itself is torch's, and so is the first half of this topic, which makes it say what the graph is. Here it
learns what the process has set, and what the nodes do not say.
"""

import ctypes
import functools
import hashlib
import re
import warnings
from typing import Any

import _XLAC
import torch
from torch import _castoff as _torch_castoff

from . import _castoff

__all__ = ["install"]

_BUFFER = re.compile(r"Data Handle: (\d+)")
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
    _castoff.follow_matmul_precision(_put_into_the_key)
    if hasattr(_XLAC, "_xla_custom_call"):
        _watch_frontend_attributes()
    if hasattr(_XLAC, "_xla_optimization_barrier_"):
        _tell_arguments_apart()
    _castoff.install_kernels("graph-identity")
    with _castoff.quiet():
        _kernels.impl("pixel_shuffle", _pixel_shuffle, "XLA")
        _kernels.impl("_amp_update_scale_", _amp_update_scale, "XLA")


def _tell_arguments_apart() -> None:
    """Let arguments of a compiled function have a buffer each while it is traced.

    The bridge finds out by the buffers which argument goes where. After ``x.copy_(y)`` x has the buffer of y.
    """
    try:
        from ._dynamo import dynamo_bridge
    except ImportError:  # torch_xla 2.1
        from .core import dynamo_bridge

    extract = dynamo_bridge.extract_graph_helper

    @functools.wraps(extract)
    def extract_graph_helper(xla_model: torch.fx.GraphModule, *rest: Any) -> Any:
        sharing: dict[str, list[torch.Tensor]] = {}
        for argument in xla_model.xla_args:
            if isinstance(argument, torch.Tensor) and argument.device.type == "xla":
                buffer = _BUFFER.search(_XLAC._get_xla_tensor_debug_info(argument))
                if buffer is not None:
                    sharing.setdefault(buffer[1], []).append(argument)
        for arguments in sharing.values():
            if len({_XLAC._xla_get_tensor_id(argument) for argument in arguments}) > 1:
                _XLAC._xla_optimization_barrier_(arguments)
        return extract(xla_model, *rest)

    dynamo_bridge.extract_graph_helper = extract_graph_helper


def _put_into_the_key(precision: str) -> None:
    """Put the precision of matrix products, of which nothing is in the nodes, into the key."""
    digest = hashlib.blake2b(precision.encode(), digest_size=8).digest()
    word = 0 if precision == "default" else int.from_bytes(digest, "little")
    _torch_castoff.library().castoff_graph_identity_set_settings(word)


def _watch_frontend_attributes() -> None:
    """Warn once when two custom calls differ in their frontend attributes alone, which no key has."""
    custom_call = _XLAC._xla_custom_call
    seen: dict[str, dict] = {}
    warned = False

    @functools.wraps(custom_call)
    def watched(inputs, target, *arguments):
        nonlocal warned
        # The last argument; the binding of torch_xla 2.6 has none.
        attributes = arguments[-1] if arguments and isinstance(arguments[-1], dict) else None
        if attributes is not None and not warned and seen.setdefault(target, attributes) != attributes:
            warned = True
            warnings.warn(
                f"castoff: custom calls of {target!r} have different frontend attributes ({seen[target]} and "
                f"{attributes}). They are not in the key of a graph: two graphs that differ in nothing else run as one "
                "another. Put one of the calls into a graph of another form, or state the difference in "
                "backend_config (pytorch/xla#8353).",
                stacklevel=3,
            )
        return custom_call(inputs, target, *arguments)

    _XLAC._xla_custom_call = watched


# torch_xla's nodes of these two keep their attributes to themselves. Made of other nodes they are numbers and shapes.


def _pixel_shuffle(self, upscale_factor):
    r = upscale_factor
    if self.dim() < 3 or r <= 0 or self.shape[-3] % (r * r) != 0:
        raise RuntimeError(
            f"pixel_shuffle expects a tensor (*, C * {r}^2, H, W) and a positive factor, got {tuple(self.shape)}"
        )
    *batch, channels, height, width = self.shape
    first = len(batch)
    split = torch.view_copy(self, [*batch, channels // (r * r), r, r, height, width])
    order = [*range(first + 1), *(first + offset for offset in (3, 1, 4, 2))]
    shape = [*batch, channels // (r * r), height * r, width * r]
    return torch.view_copy(torch.permute_copy(split, order), shape)


def _amp_update_scale(self, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval):
    overflow, steps, larger = found_inf > 0, growth_tracker + 1, self * growth_factor
    grows = steps == growth_interval
    kept = torch.where(torch.logical_and(grows, torch.isfinite(larger)), larger, self)
    self.copy_(torch.where(overflow, self * backoff_factor, kept))
    growth_tracker.copy_(torch.where(torch.logical_or(overflow, grows), torch.zeros_like(steps), steps))
    return self
