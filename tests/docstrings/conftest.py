"""Makes the modules beside it importable, and those of tests/ and tests/programs/."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "programs"), str(HERE.parent)]
