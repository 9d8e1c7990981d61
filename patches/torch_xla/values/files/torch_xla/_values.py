"""Operators whose values torch_xla gets wrong, or refuses: most of it is C++, by reason."""

import _XLAC
import torch

from . import _castoff

__all__ = ["install"]

_to_the_cpu = _XLAC._xla_get_cpu_tensors


def install() -> None:
    """Override torch_xla's kernels. Called once, by ``_castoff``."""
    _castoff.install_kernels("values")
    _XLAC._xla_get_cpu_tensors = _with_imaginary_parts


def _with_imaginary_parts(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies on the CPU, for ``xm.save``: of complex128 by way of its parts, as imaginary ones are lost otherwise."""
    halved = [t.dtype == torch.complex128 for t in tensors]
    if not any(halved):
        return _to_the_cpu(tensors)
    with torch.no_grad():
        parts = [
            torch.view_as_real(t.resolve_conj()) if is_halved else t
            for t, is_halved in zip(tensors, halved, strict=True)
        ]
    copies = zip(_to_the_cpu(parts), halved, strict=True)
    return [torch.view_as_complex(copy) if is_halved else copy for copy, is_halved in copies]
