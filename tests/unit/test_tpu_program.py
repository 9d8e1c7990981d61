import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from castoff.core.errors import TpuError
from castoff.core.interpreter import Interpreter
from castoff.core.runner import Completed
from castoff.tpu.client import Compiled
from castoff.tpu.program import Step, _trace, counted, parse_request, reason_for_values, report
from castoff.tpu.trace import Graph, read_graphs

WRITTEN = """\
[ScheduleSyncTensorsGraph]
TensorsGraphInfo:
  sync (/env/lib/python3.11/site-packages/torch_xla/torch_xla.py:87)
  step (/home/me/train.py:12)
  <module> (/home/me/train.py:20)

Root Hashes: (1, 2)

## BEGIN_GRAPH
module @IrToHlo.6 {
  func.func @main(%arg0: tensor<4x4xf32>, %arg1: tensor<f32>) -> (tensor<4x4xbf16>, tensor<bf16>) {
    %0 = stablehlo.convert %arg0 : (tensor<4x4xf32>) -> tensor<4x4xbf16>
    %1 = stablehlo.convert %arg1 : (tensor<f32>) -> tensor<bf16>
    return %0, %1 : tensor<4x4xbf16>, tensor<bf16>
  }
}

Graph Hash: 8c29

## END_GRAPH

[ScheduleSyncTensorsGraph]
TensorsGraphInfo:
  sync (/env/lib/python3.11/site-packages/torch_xla/torch_xla.py:87)

Root Hashes: (3)

## BEGIN_GRAPH
module @IrToHlo.7 {
}

Graph Hash: 8c30

## END_GRAPH
"""

HLO = """\
ENTRY %main (a: f32[4]) -> bf16[4] {
  %a = f32[4]{0} parameter(0)
  ROOT %c = bf16[4]{0} convert(%a), backend_config={"estimated_cycles":"1200"}
}
"""


WARNED = "/home/me/train.py:7: RuntimeWarning: aten::nonzero leaves the device for the CPU (docs/on-device.md)\n"
FAULT = """Fatal Python error: Aborted

Current thread 0x1 (most recent call first):
  File "/env/lib/python3.11/site-packages/torch/_ops.py", line 5 in __call__
  File "/home/me/train.py", line 7 in step
"""


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (FAULT, "train.py:7: a value is read"),
        (WARNED + FAULT, "train.py:7: aten::nonzero leaves the device and reads a value"),
        ("", "a value is read"),
    ],
)
def test_what_reads_a_value_is_told_with_its_line(tmp_path: Path, output: str, reason: str) -> None:
    ended = Completed(("python",), -signal.SIGABRT, output, tmp_path / "log")
    assert reason_for_values(ended) == reason


def test_graphs_are_read_with_the_users_line() -> None:
    first, second = read_graphs(WRITTEN)
    assert first.place == "step (train.py:12)"
    assert first.stablehlo.startswith("module @IrToHlo.6")
    assert first.stablehlo.rstrip().endswith("}")
    assert first.casts == [("f32", "bf16"), ("f32", "bf16")]
    assert second.place == "the end of the function"


def test_the_report_has_a_column_for_each_ones_wheels() -> None:
    memory = {"argument": 4096, "output": 8, "alias": 0, "temp": 0, "generated_code": 100}
    (graph, _) = read_graphs(WRITTEN)
    here = Step({"torch": "2", "torch_xla": "2.9.0+castoff.1"}, 1, [graph], [Compiled("v5e:2x2", HLO, memory, False)])
    without = Step(
        {"torch": "2", "torch_xla": "2.9.0"},
        1,
        [Graph("", "")],
        [Compiled("v5e:2x2", "ENTRY %m (a: f32[]) -> f32[] {\n}", memory, True)],
    )
    text = report({"here": without, "stock": here})
    assert [line[:27].strip() for line in text.splitlines()[2:6]] == [
        "casts in the program",
        "f32 to bf16",
        "converts in the TPU's HLO",
        "f32 to bf16",
    ]
    rows = {line[:27].strip(): line[27:].split() for line in report({"here": here, "stock": without}).splitlines()[1:]}
    assert rows["casts in the program"] == ["2", "0"]
    assert rows["converts in the TPU's HLO"] == ["1", "0"]
    assert rows["estimated cycles"] == ["1,200", "0"]
    assert rows["argument bytes"] == ["4,096", "4,096"]
    assert here.as_dict()["graphs"][0]["converts"] == {"f32 to bf16": 1}


def test_counting() -> None:
    assert counted([("b", "c"), ("a", "b"), ("b", "c")]) == {"a to b": 1, "b to c": 2}


@pytest.mark.parametrize("target", ["train.py", "train.py:", "train:step", "nowhere.py:step", "train.py:a.b", ""])
def test_a_program_that_is_not_one(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(TpuError, match="no such program"):
        parse_request(target, "v5e:2x2", 1, [])


def test_options(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.touch()
    request = parse_request(f"{program}:step", "v5e:2x2", 1, ["xla_a=1", "xla_b=x=y"])
    assert (request.program, request.function, request.options) == (program, "step", {"xla_a": "1", "xla_b": "x=y"})
    for bad in ("xla_a", "a=1", "--xla_a=1", "xla_a="):
        with pytest.raises(TpuError, match="option"):
            parse_request(f"{program}:step", "v5e:2x2", 1, [bad])


def test_a_program_is_told_that_it_is_traced_for_a_tpu(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    request = parse_request(f"{tmp_path / 'train.py'}:step", "v5e:2x2", 2, [])
    seen: dict[str, str] = {}

    def run(_command: object, *, env: Mapping[str, str], **_: object) -> None:
        seen.update(env)
        raise TpuError("it is not run", expected="", found="", next_step="")

    context: Any = SimpleNamespace(runner=SimpleNamespace(run=run))
    with pytest.raises(TpuError, match="it is not run"):
        _trace(request, Interpreter("3.11", Path(sys.executable)), {}, 4, context)
    assert seen["CASTOFF_TRACE_FOR"] == "TPU"
    assert (seen["PJRT_DEVICE"], seen["CPU_NUM_DEVICES"]) == ("CPU", "4")
