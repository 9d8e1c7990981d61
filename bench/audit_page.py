"""The picture of an audit's page in docs/audit.md, of a real audit.

Audits bench/workers/audited_llama.py in an environment with patched wheels and transformers, and has Chromium draw the
top of its page into docs/images/audit-light.png and audit-dark.png. --page keeps the page.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SCHEMES = {"dark": 0, "light": 1}  # Chromium's numbers
SIZE = "1200,1000"


def audited(python: Path, page: Path) -> None:
    """Write the page of the step."""
    program = "bench/workers/audited_llama.py"
    command = [
        sys.executable,
        "-m",
        "castoff",
        "audit",
        f"{program}:step",
        "--python",
        str(python),
        "--html",
        str(page),
    ]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def drawn(page: Path, scheme: str, profile: Path) -> None:
    """Draw the top of the page, in 64 colors: a third of the bytes."""
    for program in ("chromium", "pngquant"):
        if shutil.which(program) is None:
            raise SystemExit(f"expected {program} on PATH, found none; install it: apt-get install {program}")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
    look = [f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", "--virtual-time-budget=5000"]
    picture = IMAGES / f"audit-{scheme}.png"
    command = ["chromium", *options, *look, f"--user-data-dir={profile}", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)
    subprocess.run(["pngquant", "--force", "--output", picture, "64", picture], check=True)


def main(
    *,
    python: Annotated[Path, typer.Option(help="Python of an environment with patched wheels and transformers.")],
    page: Annotated[Path | None, typer.Option(help="Where to keep the page.")] = None,
) -> None:
    """.venv/bin/python bench/audit_page.py --python PATCHED/bin/python

    Draw the picture of an audit's page.
    """
    os.environ["PJRT_DEVICE"] = "CPU"
    with tempfile.TemporaryDirectory() as folder:
        path = (page or Path(folder) / "audit.html").resolve()
        audited(python, path)
        for scheme in SCHEMES:
            drawn(path, scheme, Path(folder) / "profile")


if __name__ == "__main__":
    typer.run(main)
