"""The settings that `castoff audit` can put in force itself, to see what they remove: run in the user's environment."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

VARIABLE = "CASTOFF_AUDIT_SETTING"
WIDE_GRADS, NARROW_ATTENTION = "wide_grads", "narrow_attention"


def put_in_force() -> None:
    """Put the setting in force that the environment variable names, if any, after the program has run.

    Raises:
        ImportError: This torch_xla does not have it.
        LookupError: There is no module that it could be for.
    """
    setting = os.environ.get(VARIABLE)
    if setting == WIDE_GRADS:
        from torch_xla.amp import wide_grads

        modules = _outermost_modules()
        if not modules:
            raise LookupError("no module exists before the step is called")
        for module in modules:
            wide_grads(module)
    elif setting == NARROW_ATTENTION:
        from torch_xla.experimental import narrow_attention

        narrow_attention(True)


def _outermost_modules() -> list[torch.nn.Module]:
    """Return the modules of the program that have parameters and are part of no other."""
    from torch import nn

    modules = [module for module in gc.get_objects() if isinstance(module, nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inner and any(True for _ in module.parameters())]
