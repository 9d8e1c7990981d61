"""Which operators, dtypes and samples the sweep runs: all of them, or those that CI has the time for."""

from __future__ import annotations

import zlib

DTYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "i8": "int8",
    "u8": "uint8",
    "bool": "bool",
    "f64": "float64",
    "c64": "complex64",
}
OTHERS = ("bf16", "i64", "bool", "f64", "c64")
"""Dtypes of the tensor that has another one than its samples in float32."""
PHASES = ("forward", "gradient", "alias")
KINDS = ("torch", "special", "other")
"""Samples: torch's own, those of special values, and torch's in float32 with one tensor in another dtype."""

QUICK, ALL = 2, 6
"""Samples of each operator and dtype: in CI, and in the whole sweep."""
PARTS = {"torch": 7, "special": 7, "other": 8}
"""Of each kind of samples CI runs one operator in so many, others each day."""
ALWAYS = ("f32", "bf16", "i64")
"""CI runs each operator with these dtypes and with one of its others, which depends on the operator's name."""

Pair = tuple[str, str]


def dtypes(kind: str) -> list[str]:
    """The dtypes of a kind of samples."""
    return list(OTHERS) if kind == "other" else [dtype for dtype in DTYPES if dtype not in ("f64", "c64")]


def quick(pairs: list[Pair]) -> list[Pair]:
    """The operators and dtypes that CI runs."""
    dtypes: dict[str, list[str]] = {}
    for op, dtype in pairs:
        dtypes.setdefault(op, []).append(dtype)
    found = []
    for op, own in dtypes.items():
        others = [dtype for dtype in own if dtype not in ALWAYS]
        other = others[zlib.crc32(op.encode()) % len(others)] if others else None
        found += [(op, dtype) for dtype in own if dtype in ALWAYS or dtype == other]
    return found


def chosen(available: int, count: int) -> list[int]:
    """The numbers of `count` samples; those of a smaller count are among those of `ALL`."""
    return _spread(_spread(list(range(available)), ALL), count)


def _spread(numbers: list[int], count: int) -> list[int]:
    step = max(1.0, len(numbers) / count)
    return [numbers[int(i * step)] for i in range(min(count, len(numbers)))]
