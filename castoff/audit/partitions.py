"""The program of one device, which XLA's partitioner makes of a sharded graph (SPMD).

A graph is sharded by annotations: its own HLO has the shapes of all devices, and no collective. XLA partitions it when
it compiles it, and only its dumps tell how. In the user's environment, with torch_xla only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_DUMPS = "*.after_spmd-partitioning*.txt"
_numbers = count(1)


def dump_to(folder: Path) -> None:
    """Let XLA dump what its partitioner makes, into a folder or the one that XLA_FLAGS names.

    XLA reads its flags once: call this before torch_xla is imported.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    to = "" if _folder() else f" --xla_dump_to={folder}"
    os.environ["XLA_FLAGS"] = f"{flags}{to} --xla_dump_hlo_pass_re=spmd-partition.* --xla_dump_hlo_as_text"


def partitioned(roots: Sequence[torch.Tensor]) -> str:
    """Return the HLO of one device for the pending graph of sharded tensors; "" if XLA dumps nothing.

    It compiles the graph, and does not run it.
    """
    import torch
    import torch_xla

    folder = _folder()
    if folder is None:
        return ""
    before = set(folder.glob(_DUMPS))
    # A graph that was compiled before is not compiled again: a constant of another size makes it another one.
    other = torch.zeros(next(_numbers), 3, 5, 7, device=roots[0].device)
    torch_xla._XLAC._xla_warm_up_cache([*roots, other], [])
    made = set(folder.glob(_DUMPS)) - before
    return max(made, key=lambda path: path.name).read_text(encoding="utf-8") if made else ""


def _folder() -> Path | None:
    named = re.findall(r"--xla_dump_to=(\S+)", os.environ.get("XLA_FLAGS", ""))
    return Path(named[-1]) if named else None
