"""What programs print on stock wheels, which never change: bench/measured/on_stock.json has a hash for each program.

The hash is that of the program, of what it imports, of the pin with its wheels' hashes, and of what was printed; that
itself stands in the docs. With CASTOFF_DAY=all nothing counts as known, so that a workflow runs all each week.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from shared import compact_json

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
import slices  # noqa: E402
import stock_record  # noqa: E402

RECORD = ROOT / "bench" / "measured" / "on_stock.json"
PIN = "2.9"


def fingerprint(program: Path, printed: str) -> str:
    """The hash of a program and of what it printed."""
    digest = hashlib.sha256(printed.encode())
    for path in sorted({*stock_record.closure([program]), ROOT / "pins" / f"{PIN}.toml"}):
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def read() -> dict[str, str]:
    known: dict[str, str] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return known


def is_known(program: Path, printed: str) -> bool:
    """Whether a program, as it is now, was seen to print this on stock wheels."""
    return slices.day() != slices.ALL and read().get(name_of(program)) == fingerprint(program, printed)


def remember(printed: dict[Path, str]) -> None:
    """Put what was seen on stock wheels into the record, without programs that are no more."""
    seen = read() | {name_of(program): fingerprint(program, text) for program, text in printed.items()}
    there = {name: seen[name] for name in sorted(seen) if (ROOT / name).exists()}
    RECORD.write_text(compact_json.dumps(there, depth=1), encoding="utf-8")


def name_of(program: Path) -> str:
    return program.relative_to(ROOT).as_posix()
