"""Hashes of nodes and scopes of operators: patches/torch/lean-nodes."""

import ctypes
import random
import re
from pathlib import Path

import pytest
import torch
import torch_xla
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE

LIBRARIES = Path(torch.__file__).parent / "lib"


class Hash(ctypes.Structure):
    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


def function(library, name, *arguments):
    found = getattr(ctypes.CDLL(str(LIBRARIES / library)), name)
    found.restype, found.argtypes = Hash, arguments
    return lambda *values: bytes(found(*values))


@pytest.fixture
def debugging():
    """Operators tell their scopes."""
    torch_xla.sync()  # scopes are counted from 1 again
    for _ in range(3):
        torch.ones(2, device=DEVICE) + 1
    before = torch_xla._XLAC._get_ir_debug()
    torch_xla._XLAC._set_ir_debug(True)
    yield
    torch_xla._XLAC._set_ir_debug(before)


def scope_of(value):
    return re.findall(r"scope=([^,]+)", torch_xla._XLAC._get_xla_tensors_text([value]))[-1]


@fails_on_stock
def test_operators_without_debugging_have_no_scope(debugging):
    x = torch.ones(2, device=DEVICE)
    assert scope_of(x + 1) == "aten::add.1"


@passes_on_stock
def test_scopes_that_a_program_names(debugging):
    x = torch.ones(2, device=DEVICE)
    torch_xla._XLAC._set_ir_debug(False)
    mine = torch_xla._XLAC.profiler.scope_pusher("mine")
    x + 1
    torch_xla._XLAC._set_ir_debug(True)
    scope = scope_of(x + 1)
    del mine
    assert re.fullmatch(r"mine\.\d+/aten::add\.\d+", scope)
    assert re.fullmatch(r"aten::mul\.\d+", scope_of(x * 2))


@passes_on_stock
def test_scopes_deeper_than_the_bits_that_note_them(debugging):
    x = torch.ones(2, device=DEVICE)
    pushers = [torch_xla._XLAC.profiler.scope_pusher(f"s{number}") for number in range(70)]
    assert scope_of(x + 1).count("/") == 70
    while pushers:
        pushers.pop()
    assert "/" not in scope_of(x + 1)


@fails_on_stock
def test_hashes_are_those_of_stock():
    generator, size = random.Random(0), ctypes.c_size_t
    block = ("_ZN5torch4lazy9HashBlockEPKvmRKNS0_6hash_tE", ctypes.c_char_p, size, ctypes.POINTER(Hash))
    combine = ("_ZN5torch4lazy11HashCombineERKNS0_6hash_tES3_", ctypes.POINTER(Hash), ctypes.POINTER(Hash))
    for name, *arguments in (block, combine):
        ours, stock = (function(lib, name, *arguments) for lib in ("libcastoff_torch.so", "libtorch_cpu.so"))
        for length in range(200):
            a, b = (Hash(generator.getrandbits(64), generator.getrandbits(64)) for _ in range(2))
            data = generator.randbytes(length)
            values = (data, length, ctypes.byref(a)) if name == block[0] else (ctypes.byref(a), ctypes.byref(b))
            assert ours(*values) == stock(*values), length
