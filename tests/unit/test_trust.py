"""docs/trust.md names each environment variable that castoff's code in the wheels reads or sets."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READS = re.compile(r'(?:environ(?:\.get\(|\.setdefault\(|\.pop\(|\[)|getenv\(|names_tpu\()\s*"([A-Z][A-Z_]+)"')


def read_by_the_topics() -> set[str]:
    sources = [
        path for part in ("files", "overlay") for path in ROOT.glob(f"patches/*/*/{part}/**/*") if path.is_file()
    ]
    code = [path for path in sources if path.suffix in {".py", ".pth", ".cpp", ".h"}]
    shown = [path for path in code if path.name != "castoff_doctor.py"]  # a command, not part of an import
    return {name for path in shown for name in READS.findall(path.read_text(encoding="utf-8"))}


def test_the_table_has_each_variable() -> None:
    trust = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    cells = [row.split("|")[1] for row in trust.splitlines() if row.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == read_by_the_topics()
