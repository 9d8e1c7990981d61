"""The examples in torch's docstrings, those of the day, give on XLA what they give on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import docstring_examples
import pytest
import torch
from judge import judged

pytestmark = pytest.mark.default_pin

KNOWN = {
    "tensors of other layouts are not supported on XLA": (
        "torch.Tensor.col_indices",
        "torch.Tensor.crow_indices",
        "torch.Tensor.sparse_mask",
        "torch.Tensor.to_dense",
        "torch.Tensor.to_sparse_bsc",
        "torch.Tensor.to_sparse_bsr",
        "torch.Tensor.to_sparse_coo",
        "torch.Tensor.to_sparse_csc",
        "torch.Tensor.to_sparse_csr",
        "torch.narrow_copy",
    ),
    "quantized tensors are not supported on XLA": ("torch.quantize_per_tensor_dynamic", "torch.quantized_batch_norm"),
    "named tensors are not supported on XLA": (
        "torch.Tensor.align_to",
        "torch.Tensor.rename",
        "torch.nn.Unflatten",
    ),
    "an XLA tensor has no strides": (
        "torch.Tensor.dim_order",
        "torch.Tensor.storage_offset",
        "torch.empty_permuted",
        "torch.empty_strided",
    ),
    "a conjugate is computed": ("torch.conj", "torch.resolve_conj", "torch.resolve_neg"),
    "the signs of such vectors are not unique": ("torch.linalg.eigh", "torch.linalg.svd", "torch.svd"),
    "the memory is not the CPU's": ("torch.asarray", "torch.from_dlpack", "torch.from_file"),
    "functionalize raises: an XLA tensor is functional already": ("torch.func.functionalize",),
    "the lengths are made on the device, and belong on the CPU": (
        "torch.nn.utils.rnn.pack_sequence",
        "torch.nn.utils.rnn.pad_packed_sequence",
        "torch.nn.utils.rnn.unpack_sequence",
    ),
    "the name of the type is XLA's": ("torch.typename",),
}
"""Why examples differ, and of what."""
NEAR = {"torch.cholesky_inverse", "torch.fft.hfft2", "torch.fft.hfftn"}
"""Examples that show whether an error of rounding is below a limit, which depends on the processor."""


def test_examples_of_the_day_are_right_but_for_those_that_are_known():
    sweep = Path(__file__).with_name("sweep.py")
    command = [sys.executable, sweep, "--of-the-day"]
    # Memory that nobody wrote to is not zero by chance.
    environment = {"PJRT_DEVICE": "CPU", "MALLOC_PERTURB_": "165"}
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    *differ, run = map(json.loads, done.stdout.splitlines())
    assert len(run["docstrings"]) > 300
    known = {name for names in KNOWN.values() for name in names}
    assert not [row for row in differ if row["name"] not in known | NEAR]
    right = set(run["docstrings"]) - {row["name"] for row in differ}
    assert not right & known, "take them out of KNOWN"


CPU = torch.device("cpu")


def values(*statements):
    return [run.leaves for run in docstring_examples.runs_of(list(statements), CPU, seed=0)]


def test_a_docstring_s_statements_are_found():
    lines = (">>> x = torch.ones(2)", ">>> for _ in x:", "...     pass", ">>> x", "tensor([1., 1.])", ">>> x +")
    text = "\n    ".join(("Says it.\n\nExample::\n", *lines)) + "\n"
    assert docstring_examples.statements_of(text) == ["x = torch.ones(2)", "for _ in x:\n    pass", "x"]


def test_values_are_those_of_the_time():
    before, _, after = values("x = torch.zeros(2)", "x += 1", "x")
    assert before[0].tolist() == [0, 0]
    assert after[0].tolist() == [1, 1]


def test_made_tensors_do_not_depend_on_the_seed():
    statements = [
        "torch.randn(3)",
        "torch.nn.Linear(2, 3).weight",
        "torch.empty(2).normal_()",
        "torch.bernoulli(torch.full((64,), 0.5))",
    ]
    first, second = (docstring_examples.runs_of(statements, CPU, seed) for seed in (0, 1))
    assert [judged(a, b).kind for a, b in zip(first, second, strict=True)] == ["right"] * 3 + ["wrong value"]


def test_a_leaf_that_requires_gradients_is_one():
    (leaves,) = values("torch.ones(2, requires_grad=True).is_leaf")
    assert leaves == [True]
