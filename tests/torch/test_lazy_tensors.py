"""Torch's own lazy tensors: patches/torch/graph-identity without torch_xla, by the tests that go upstream with it.

Their backend, TorchScript, is one of torch's own. A process has one backend of lazy tensors, and torch_xla is another.
"""

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("torch_xla") is not None:
    pytest.skip("torch_xla is the backend of lazy tensors here", allow_module_level=True)

TREE = Path(__file__).resolve().parents[2] / "patches" / "torch" / "graph-identity" / "upstream" / "tree"
spec = importlib.util.spec_from_file_location("for_upstream", TREE / "test" / "lazy" / "test_graph_identity.py")
for_upstream = importlib.util.module_from_spec(spec)
spec.loader.exec_module(for_upstream)
TestGraphIdentity = for_upstream.TestGraphIdentity

for name in dir(TestGraphIdentity):
    if name.startswith("test_"):
        differs = "which_operand" in name and "maximum" not in name
        (pytest.mark.fails_on_stock if differs else pytest.mark.passes_on_stock)(getattr(TestGraphIdentity, name))
