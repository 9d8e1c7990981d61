"""The plain C functions of torch/csrc/autograd, for the parts of autograd that are written in Python."""

import ctypes
import functools
import os
import sys


_NAMES = {"win32": "torch_cpu.dll", "darwin": "libtorch_cpu.dylib"}


@functools.lru_cache(None)
def library() -> ctypes.PyDLL:
    """The library that holds them. They keep the GIL."""
    torch = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    name = _NAMES.get(sys.platform, "libtorch_cpu.so")
    return ctypes.PyDLL(os.path.join(torch, "lib", name))
