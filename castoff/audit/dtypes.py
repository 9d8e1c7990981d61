"""Whether a conversion between two of XLA's dtypes is exact."""

from __future__ import annotations

_FLOATS = {
    # name: bits of the significand with the hidden one, least and greatest binary exponent of a finite value
    "f8e4m3fn": (4, -9, 8),
    "f8e5m2": (3, -16, 15),
    "f16": (11, -24, 15),
    "bf16": (8, -133, 127),
    "f32": (24, -149, 127),
    "f64": (53, -1074, 1023),
}
_COMPLEX = {"c64": "f32", "c128": "f64"}
_INTEGERS = {"pred": 1, "u4": 4, "u8": 8, "u16": 16, "u32": 32, "u64": 64}
_SIGNED = {"s4": 3, "s8": 7, "s16": 15, "s32": 31, "s64": 63}

_SIZES = {"pred": 1, "s4": 1, "u4": 1, "f8e4m3fn": 1, "f8e5m2": 1, "c64": 8, "c128": 16}


def size_of(dtype: str) -> int:
    """Return the bytes of one element.

    Args:
        dtype: Its name in XLA, such as "bf16".

    Raises:
        ValueError: There is no such dtype.
    """
    if dtype in _SIZES:
        return _SIZES[dtype]
    bits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    if not bits.isdecimal():
        raise ValueError(f"expected a dtype of XLA's, like bf16; found {dtype!r}")
    return int(bits) // 8


def xla_name(dtype: str) -> str:
    """Return XLA's name of a floating point dtype.

    Args:
        dtype: Its name in torch, such as "torch.bfloat16".
    """
    name = dtype.removeprefix("torch.").replace("_", "")
    return name.replace("complex", "c").replace("float", "f")


def is_float(dtype: str) -> bool:
    """Tell whether it is a floating point or complex dtype."""
    return dtype in _FLOATS or dtype in _COMPLEX or dtype.startswith("f8")


def is_exact(source: str, target: str) -> bool:
    """Tell whether each finite value of ``source`` is one of ``target`` too.

    False for unknown dtypes.
    """
    if source == target:
        return True
    if target in _COMPLEX:
        return is_exact(_COMPLEX.get(source, source), _COMPLEX[target])
    if source in _FLOATS:
        return target in _FLOATS and _holds(_FLOATS[source], _FLOATS[target])
    bits = _INTEGERS.get(source, _SIGNED.get(source))
    if bits is None:
        return False
    if target in _FLOATS:
        precision, _, greatest = _FLOATS[target]
        return bits <= precision and bits <= greatest
    room = _SIGNED.get(target) if source in _SIGNED else _INTEGERS.get(target, _SIGNED.get(target))
    return room is not None and bits <= room


def _holds(source: tuple[int, int, int], target: tuple[int, int, int]) -> bool:
    return source[0] <= target[0] and source[1] >= target[1] and source[2] <= target[2]
