"""Graphs are traced without computing: they are those that a sync computes, and values are computed if one is read."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch_xla.core.xla_builder

from castoff.tpu import trace

pytestmark = [
    pytest.mark.passes_on_stock,
    pytest.mark.skipif(
        not hasattr(torch_xla.core.xla_builder, "create_placeholder_tensor"), reason="this torch_xla has none"
    ),
]

PROGRAM = """
import resource, torch, torch_xla
device = torch_xla.device()
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)).bfloat16().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
x = torch.randn(4, 16).bfloat16().to(device)

def step():
    loss = model(x).float().square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss

def two_graphs():
    loss = step()
    torch_xla.sync()
    return loss + 1

def reads():
    loss = step()
    return loss if loss.item() < 1e9 else loss + 1

def copies():
    loss = step()
    torch_xla.sync()
    return loss.cpu()

def undefined():
    return step() + nothing

def sharded():
    import torch_xla.runtime, torch_xla.distributed.spmd as spmd
    torch_xla.runtime.use_spmd()
    return torch.ones(4, device=device) + x.sum()

def large():
    weights = [torch.nn.Linear(4096, 4096, bias=False).bfloat16().to(device) for _ in range(64)]
    y = torch.ones(1, 4096).bfloat16().to(device)
    for weight in weights:
        y = weight(y)
    print("MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
    return y
"""


def traced(kind, function, tmp_path, calls=2):
    """The script's run, and the graphs that it wrote."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    written = tmp_path / f"{kind}.json"
    environment = {
        **os.environ,
        "PJRT_DEVICE": "CPU",
        "XLA_SAVE_TENSORS_FILE": str(tmp_path / kind),
        "XLA_SAVE_TENSORS_FMT": "stablehlo",
    }
    run = subprocess.run(
        [sys.executable, trace.__file__, kind, program, function, str(calls), written],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    graphs = json.loads(written.read_text())["graphs"] if written.exists() else None
    return run, graphs


def in_one_order(stablehlo):
    """A graph without numbers and without the order of its parameters: torch_xla counts those of live tensors first."""
    lines = [re.sub(r"%\w+|IrToHlo\.\d+", "%", line).strip() for line in stablehlo.strip().splitlines()]
    lines[1] = ", ".join(sorted(re.findall(r"tensor<[^>]*>", lines[1])))
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("function", ["step", "two_graphs"])
def test_the_graphs_are_those_that_a_sync_computes(function, tmp_path):
    (_, shapes), (_, values) = (traced(kind, function, tmp_path) for kind in ("shapes", "values"))
    assert [graph["place"] for graph in shapes] == [graph["place"] for graph in values]
    assert len(shapes) == (2 if function == "two_graphs" else 1)
    for ours, computed in zip(shapes, values, strict=True):
        assert in_one_order(ours["stablehlo"]) == in_one_order(computed["stablehlo"])


def line_of(text):
    """The number of the line of the program that has a text."""
    return next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if text in line)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "text"), [("reads", "loss.item()"), ("copies", "loss.cpu()")])
def test_a_value_that_is_read_ends_it_and_names_the_line(function, text, tmp_path):
    run, graphs = traced("shapes", function, tmp_path)
    assert graphs is None
    assert run.returncode < 0 or run.returncode == trace.NEEDS_VALUES
    assert re.search(rf'train\.py(?:", line |:){line_of(text)}\b', run.stdout + run.stderr)
    assert traced("values", function, tmp_path)[1]


def test_shardings_need_values(tmp_path):
    run, graphs = traced("shapes", "sharded", tmp_path)
    assert graphs is None
    assert run.returncode == trace.NEEDS_VALUES
    assert "only a computed tensor has a sharding" in run.stdout


def test_a_fault_of_the_program_is_told_at_once(tmp_path):
    run, graphs = traced("shapes", "undefined", tmp_path)
    assert graphs is None
    assert run.returncode == trace.BAD_PROGRAM
    assert f"train.py:{line_of('nothing')}: NameError" in run.stdout


def test_large_tensors_are_not_made(tmp_path):
    run, graphs = traced("shapes", "large", tmp_path, calls=1)
    assert "tensor<4096x4096xbf16>" in graphs[0]["stablehlo"]
    parameters = 64 * 4096 * 4096 * 2 >> 20
    assert int(re.search(r"MB (\d+)", run.stdout)[1]) < parameters


def test_what_a_graph_of_live_tensors_computes():
    text = Path(__file__).with_name("live_tensors.mlir").read_text()
    assert trace.pending(text.replace("return %arg0, %2, %2", "return %arg0, %arg1, %arg0")) is None
    assert trace.pending("") is None
    graph = trace.pending(text)
    assert "@main(%arg1: tensor<2xbf16>) -> (tensor<2xf32>, tensor<2xf32>) {" in graph
    assert "    return %2, %2 : tensor<2xf32>, tensor<2xf32>\n" in graph
