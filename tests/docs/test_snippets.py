"""Every Python program in README and docs runs as it stands, each in a process of its own.

Those of docs/why.md show faults of stock: they must fail there.
"""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = re.compile(r"^( *)```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def programs():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        marks = [pytest.mark.fails_on_stock] if path.name == "why.md" else []
        for match in PROGRAM.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            if path.name != "README.md" or "import torch" in match[2]:
                yield pytest.param(textwrap.dedent(match[2]), id=f"{path.name}:{line}", marks=marks)


@pytest.mark.parametrize("program", list(programs()))
def test_a_program_of_the_docs(program, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    environment = {"PJRT_DEVICE": "CPU", "PYTHONPATH": str(ROOT), **os.environ}
    command = [sys.executable, path]
    result = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
