"""Audits from graphs that are written down here: what is found in them, counted, checked and shown."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from castoff.audit import worker
from castoff.audit.accumulations import accumulations_of
from castoff.audit.casts import Cast, Frame, Receiver, Record, Step, casts_of
from castoff.audit.graph import Graph, record_of
from castoff.audit.lock import lock_differences, lock_text
from castoff.audit.program import check_files, check_kinds, check_lock_file, converts_by_origin, parse_request
from castoff.audit.report import COLUMNS, Report, compared, summary
from castoff.audit.show import Files, show
from castoff.cli.boundary import boundary
from castoff.core.console import Console
from castoff.core.errors import INTERRUPTED_EXIT_CODE, AuditError
from castoff.tpu.client import Compiled

LEAF = "torch::autograd::AccumulateGrad"
SCHEMAS = Path(worker.__file__).parent

IR = """\
IR {
  %0 = bf16[4,8]{1,0} xla::device_data(), scope=castoff1.1, location=__call__@_ops.py:841, xla_shape=bf16[4,8]{1,0}
  %1 = f32[4,8]{1,0} xla::cast(%0), scope=castoff1.1, location=__call__@_ops.py:841, xla_shape=f32[4,8]{1,0}
  %2 = f32[8,4]{0,1} aten::permute(%1), scope=castoff2.2, xla_shape=f32[8,4]{0,1}
  %3 = bf16[8,4]{0,1} xla::cast(%2), scope=castoff3.3, xla_shape=bf16[8,4]{0,1}
  %4 = bf16[8,8]{1,0} aten::mm(%3, %0), scope=castoff4.4, xla_shape=bf16[8,8]{1,0}
  %5 = f32[8,8]{1,0} xla::cast(%4), scope=castoff5.1, xla_shape=f32[8,8]{1,0}, ROOT=0
  %6 = f32[8,8]{1,0} aten::mul(%5, %5), scope=castoff6.2/aten::mul.1, xla_shape=f32[8,8]{1,0}
  %7 = bf16[8,8]{1,0} xla::cast(%6), scope=castoff6.2, xla_shape=bf16[8,8]{1,0}
  %8 = f32[8,8]{1,0} xla::cast(%7), location=clip@train.py:30, xla_shape=f32[8,8]{1,0}, ROOT=1
  %9 = s32[8,8]{1,0} xla::cast(%8), scope=castoff7.3, xla_shape=s32[8,8]{1,0}, ROOT=2
}
"""
HLO = """\
HloModule IrToHlo.20

ENTRY %IrToHlo.20 (p0.1: bf16[4,8]) -> (f32[8,8], f32[8,8], s32[8,8]) {
  %p0.1 = bf16[4,8]{1,0} parameter(0), metadata={op_type="xla__device_data" op_name="castoff1.1/xla__device_data"}
  %convert.2 = f32[4,8]{1,0} convert(bf16[4,8]{1,0} %p0.1), metadata={op_name="castoff1.1/xla__cast"}
  %transpose.3 = f32[8,4]{0,1} transpose(f32[4,8]{1,0} %convert.2), dimensions={1,0}
  %convert.4 = bf16[8,4]{0,1} convert(f32[8,4]{0,1} %transpose.3), metadata={op_name="castoff3.3/xla__cast"}
  %dot.5 = bf16[8,8]{1,0} dot(bf16[8,4]{0,1} %convert.4, bf16[4,8]{1,0} %p0.1), lhs_contracting_dims={1}
  %convert.6 = f32[8,8]{1,0} convert(bf16[8,8]{1,0} %dot.5), metadata={op_name="castoff5.1/xla__cast"}
  %convert.7 = f32[8,8]{1,0} convert(f32[8,8]{1,0} %convert.6), metadata={op_name="castoff6.2/aten__mul.1/aten__mul"}
  %multiply.8 = f32[8,8]{1,0} multiply(f32[8,8]{1,0} %convert.7, f32[8,8]{1,0} %convert.6)
  %convert.9 = bf16[8,8]{1,0} convert(f32[8,8]{1,0} %multiply.8), metadata={op_name="castoff6.2/xla__cast"}
  %convert.10 = f32[8,8]{1,0} convert(bf16[8,8]{1,0} %convert.9), metadata={op_type="xla__cast" op_name="xla__cast"}
  %convert.11 = s32[8,8]{1,0} convert(f32[8,8]{1,0} %convert.10), metadata={op_name="castoff7.3/xla__cast"}
  ROOT %tuple.12 = (f32[8,8]{1,0}, f32[8,8]{1,0}, s32[8,8]{1,0}) tuple(%convert.6, %convert.10, %convert.11)
}
"""
HERE = (
    Frame("/env/lib/python3.11/site-packages/models/llama.py", 7, "forward"),
    Frame("/home/me/train.py", 12, "step"),
)
RECORDS = {
    1: Record(1, "aten._to_copy", "forward", "M.a", "to", stack=HERE),
    3: Record(3, "aten._to_copy", "forward", "M.a", "linear", autocast=True, stack=HERE, parameter="M.a.weight"),
    5: Record(5, "aten._to_copy", "backward", node="ToCopyBackward0", origin=3),
    6: Record(6, "aten.mul", "optimizer", function="AdamW.step", stack=HERE[1:], narrow=True),
    7: Record(7, "aten._to_copy", "forward", "M", "to", stack=HERE),
}
GRAPH = Graph("end of the step", "", tuple(IR.splitlines()), HLO)


@pytest.fixture
def report() -> Report:
    casts = casts_of(Step((GRAPH,), RECORDS))
    return Report({"torch": "2.9.0", "torch_xla": "2.9.0"}, (GRAPH,), tuple(casts))


def by_node(report: Report) -> dict[str | None, Cast]:
    return {cast.node: cast for cast in report.casts}


class TestConversions:
    def test_each_is_traced_to_its_line(self, report: Report) -> None:
        for cast in report.casts:
            assert cast.line is not None
            line = GRAPH.ir[cast.line].strip()
            assert line.startswith(f"{cast.node} = {cast.target}[{','.join(map(str, cast.shape))}]")
            assert cast.ir["node"] == [line]
        assert [cast.hlo for cast in report.casts] == [f"convert.{n}" for n in (2, 4, 6, 9, 11, 10)]

    def test_a_conversion_to_the_same_type_is_none(self, report: Report) -> None:
        assert "convert.7" not in [cast.hlo for cast in report.casts]

    def test_exactness(self, report: Report) -> None:
        assert {node: cast.exactness for node, cast in by_node(report).items()} == {
            "%1": "exact widening",
            "%3": "exact round trip",
            "%5": "exact widening",
            "%7": "lossy narrowing",
            "%8": "lossy round trip",
            "%9": "lossy narrowing",
        }

    def test_bytes(self, report: Report) -> None:
        assert {node: cast.bytes for node, cast in by_node(report).items()} == {
            "%1": 32 * 6,
            "%3": 32 * 6,
            "%5": 64 * 6,
            "%7": 64 * 6,
            "%8": 64 * 6,
            "%9": 64 * 8,
        }

    def test_excerpts(self, report: Report) -> None:
        excerpt = by_node(report)["%3"].ir
        assert [line.split(" = ")[0] for line in excerpt["operands"]] == ["%2"]
        assert [line.split(" = ")[0] for line in excerpt["users"]] == ["%4"]

    @pytest.mark.parametrize(
        ("scope", "number"),
        [("castoff12.3", 12), ("user/castoff7.1/aten::mul.2", 7), ("castoffs.1", None), ("", None), ("castoff3", None)],
    )
    def test_scopes(self, scope: str, number: int | None) -> None:
        assert record_of(scope) == number


class TestReasons:
    def test_all(self, report: Report) -> None:
        assert {node: (cast.phase, cast.why, cast.topic) for node, cast in by_node(report).items()} == {
            "%1": ("forward", "explicit", None),
            "%3": ("forward", "autocast", "exact-casts"),
            "%5": ("backward", "autocast", "wide-weight-grad"),
            "%7": ("optimizer", "optimizer", "native-mul"),
            "%8": ("unknown", "unknown", None),
            "%9": ("forward", "explicit", None),
        }

    def test_places(self, report: Report) -> None:
        places = {node: (str(cast.place), str(cast.program)) for node, cast in by_node(report).items()}
        assert places["%1"] == ("llama.py:7", "train.py:12")
        assert places["%5"] == places["%1"], "the derivative is where its operation is"
        assert places["%8"] == ("train.py:30", "train.py:30"), "without an operation, what torch_xla noted"
        assert by_node(report)["%5"].module == "M.a"
        assert by_node(report)["%5"].parameter == "M.a.weight"

    @pytest.mark.parametrize(
        ("record", "why"),
        [
            (Record(5, "aten._to_copy", "backward", node="AddBackward0", engine=True), "autograd engine"),
            (Record(5, "aten._to_copy", "backward", node="SoftmaxBackward0", origin=3), "op's math type"),
            (Record(5, "aten._to_copy", "backward", node="MineBackward", function="float"), "explicit"),
            (Record(5, "aten._to_copy", "backward", node="ToCopyBackward0", origin=1), "explicit"),
            (Record(5, "aten._to_copy", "forward", function="softmax"), "op's math type"),
            (Record(5, "aten._to_copy", "forward", function="softmax", autocast=True), "autocast"),
            (Record(5, "aten.native_layer_norm", "forward", function="layer_norm", autocast=True), "op's math type"),
            (Record(5, "aten.copy", "forward", function="matmul"), "wider product"),
            (Record(5, "aten._to_copy", "optimizer"), "optimizer"),
        ],
    )
    def test_of_a_widened_product(self, record: Record, why: str) -> None:
        casts = casts_of(Step((GRAPH,), {**RECORDS, 5: record}))
        assert next(cast.why for cast in casts if cast.node == "%5") == why

    def test_what_the_engine_recorded(self) -> None:
        told = {"produced_by": "WideBackward", "demanded_by": "torch::autograd::AccumulateGrad"}
        records = {
            **RECORDS,
            5: Record(
                *(5, "aten._to_copy", "backward"),
                node="WideBackward",
                engine=True,
                implicit=told,
                receivers=(Receiver(LEAF, "f32"), Receiver("SinBackward0")),
            ),
        }
        cast = next(cast for cast in casts_of(Step((GRAPH,), records)) if cast.node == "%5")
        assert (cast.op, cast.topic, cast.implicit) == ("after WideBackward", "grad-dtype", told)

    @pytest.mark.parametrize(
        ("node", "told", "receivers", "topic"),
        [
            ("AddBackward0", None, [Receiver("SinBackward0")], None),
            ("WideBackward", None, [Receiver(LEAF, "f32")], "grad-dtype"),
            ("WideBackward", None, [Receiver(LEAF, "bf16")], None),
            ("WideBackward", None, [Receiver(LEAF, "f32"), Receiver("SinBackward0")], None),
            ("WideBackward", "SinBackward0", [Receiver(LEAF, "f32"), Receiver("SinBackward0")], None),
            ("SinBackward0", "WideBackward", [], "grad-dtype"),
            ("SinBackward0", None, [Receiver("torch::autograd::CopySlices")], None),
            ("", LEAF, [], None),
        ],
    )
    def test_what_the_user_can_do_about_the_engine(
        self, node: str, told: str | None, receivers: list[Receiver], topic: str | None
    ) -> None:
        implicit = {"produced_by": node, "demanded_by": told} if told else None
        record = Record(
            *(5, "aten._to_copy", "backward"), node=node, engine=True, implicit=implicit, receivers=tuple(receivers)
        )
        graph = replace(GRAPH, hlo=HLO.replace("dot(", "add("))
        casts = casts_of(Step((graph,), {**RECORDS, 5: record}))
        assert next(cast.topic for cast in casts if cast.node == "%5") == topic


class TestReport:
    def test_integers_are_not_counted(self, report: Report) -> None:
        totals = report.totals()
        assert (totals["casts"], totals["other_conversions"]) == (5, 1)
        assert totals["bytes"] == 32 * 6 * 2 + 64 * 6 * 3
        for name in ("by_phase", "by_why", "by_exactness", "by_topic"):
            assert sum(totals[name].values()) == 5

    def test_checks(self, report: Report) -> None:
        assert report.faults() == report.faults(5, ()) == []
        assert report.faults(4, ()) == ["5 casts, where 4 are allowed"]
        assert report.faults(None, ["lossy-round-trip", "exact-round-trip"]) == [
            "1 × lossy round trip, which is forbidden: train.py:30",
            "1 × exact round trip, which is forbidden: llama.py:7",
        ]
        with pytest.raises(ValueError, match="found 'lossy'"):
            report.faults(None, ["lossy"])

    def test_there_and_back(self, report: Report) -> None:
        assert Report.from_dict(json.loads(json.dumps(report.as_dict()))) == report
        with pytest.raises(ValueError, match="castoff audit 1"):
            Report.from_dict({**report.as_dict(), "format": "castoff audit 0"})

    def test_the_schema(self, report: Report, tmp_path: Path) -> None:
        def check(data: object, name: str = "report") -> subprocess.CompletedProcess[str]:
            path, schema = tmp_path / "report.json", SCHEMAS / f"{name}.schema.json"
            path.write_text(json.dumps(data))
            command = [str(Path(sys.executable).with_name("check-jsonschema")), "--schemafile", str(schema), str(path)]
            return subprocess.run(command, capture_output=True, text=True, check=False)

        data = report.as_dict()
        assert check(data).returncode == 0, check(data).stdout
        assert check({**data, "casts": [{**data["casts"][0], "why": "because"}]}).returncode == 1
        assert check({**data, "more": 1}).returncode == 1

        kinds = ("parameter", "gradient", "peak_activation", "peak_gradient", "peak")
        meta = {name: data[name] for name in ("versions", "totals", "casts")}
        meta |= {"format": "castoff meta audit 1", "seconds": 0.5, "operations": 3, "flops": {"all": 6}}
        meta |= {"flops_by_module": {}, "memory": {f"{kind}_bytes": 0 for kind in kinds}}
        meta |= {"dtype_flow": [], "without_kernel": []}
        assert check(meta, "meta").returncode == 0, check(meta, "meta").stdout
        assert check({**meta, "casts": [{**data["casts"][0], "why": "because"}]}, "meta").returncode == 1

    def test_rows_of_alike_layers_are_one(self, report: Report) -> None:
        first = report.casts[0]
        layers = [replace(first, module=f"M.layers.{number}.a") for number in (0, 1)]
        rows = replace(report, casts=(*layers, *report.casts[1:])).rows()
        assert rows[0][:2] == ["2", "384"]
        assert rows[0][COLUMNS.index("module")] == "M.layers.*.a"
        assert [row[2] for row in rows] == ["forward", "forward", "backward", "optimizer", "unknown"]
        assert len(report.rows(everything=True)) == len(report.rows()) + 1

    def test_what_the_tpu_keeps(self, report: Report) -> None:
        hlo = """\
ENTRY %main (a: bf16[4,8]) -> f32[4,8] {
  %a = bf16[4,8]{1,0} parameter(0)
  %convert.1 = f32[4,8]{1,0:T(4,128)} convert(%a), metadata={op_name="castoff1.1/xla__cast" source_line=8}
  ROOT %convert.1.clone = f32[4,8]{1,0} convert(%a), metadata={op_name="castoff1.1/xla__cast"}
}
"""
        counts = converts_by_origin(Compiled("v5e:2x2", hlo, {}, False))
        assert counts == {("castoff1.1/xla__cast", "bf16", "f32"): 2}
        casts = tuple(replace(cast, tpu=counts[cast.origin, cast.source, cast.target]) for cast in report.casts)
        rows = replace(report, casts=casts).rows(tpu=True)
        assert [row[-1] for row in rows] == ["keeps 1", *["keeps none"] * 4]

    def test_a_summary(self, report: Report) -> None:
        lines = summary(report).splitlines()
        assert lines[0] == "5 casts, 1,536 bytes moved by them in one step"
        assert "  by phase:      forward 2, backward 1, optimizer 1, unknown 1" in lines
        assert lines[-1] == "  and 1 conversions from or to integers"

    def test_without_a_cast_there_is_no_table(self, report: Report) -> None:
        out = io.StringIO()
        none = replace(report, casts=())
        show("a.py:f", {"here": none}, 0, (), files=Files(None, None), everything=False, console=Console(out=out))
        assert out.getvalue() == "0 casts, 0 bytes moved by them in one step\n"

    def test_side_by_side(self, report: Report) -> None:
        rows = {row[0]: row[1:] for row in compared({"here": replace(report, casts=()), "stock": report})}
        assert rows["casts"] == ["0", "5"]
        assert rows["  exactness: lossy round trip"] == ["0", "1"]


SUMS = """\
HloModule IrToHlo.40

%add.1 (a.1: bf16[], b.1: bf16[]) -> bf16[] {
  %a.1 = bf16[] parameter(0)
  %b.1 = bf16[] parameter(1)
  ROOT %sum.1 = bf16[] add(bf16[] %a.1, bf16[] %b.1)
}

%max.2 (a.2: bf16[], b.2: bf16[]) -> bf16[] {
  %a.2 = bf16[] parameter(0)
  %b.2 = bf16[] parameter(1)
  ROOT %greatest.2 = bf16[] maximum(bf16[] %a.2, bf16[] %b.2)
}

%ge.3 (a.3: bf16[], b.3: bf16[]) -> pred[] {
  %a.3 = bf16[] parameter(0)
  %b.3 = bf16[] parameter(1)
  ROOT %compare.3 = pred[] compare(bf16[] %a.3, bf16[] %b.3), direction=GE
}

ENTRY %IrToHlo.40 (x.4: bf16[4,8], w.5: bf16[2,6,3,3], i.6: bf16[1,6,9,9], n.7: s64[5,1], u.8: bf16[5,8]) -> bf16[8] {
  %x.4 = bf16[4,8]{1,0} parameter(0)
  %w.5 = bf16[2,6,3,3]{3,2,1,0} parameter(1)
  %i.6 = bf16[1,6,9,9]{3,2,1,0} parameter(2)
  %n.7 = s64[5,1]{1,0} parameter(3)
  %u.8 = bf16[5,8]{1,0} parameter(4)
  %zero.9 = bf16[] constant(0)
  %dot.10 = bf16[4,4] dot(%x.4, %x.4), lhs_contracting_dims={1}, metadata={op_name="castoff1.1/aten__mm"}
  %dot.11 = f32[4,4] dot(%x.4, %x.4), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %dot.12 = bf16[4,8,4,8] dot(%x.4, %x.4), lhs_contracting_dims={}, rhs_contracting_dims={}
  %convolution.13 = bf16[1,2,7,7] convolution(%i.6, %w.5), window={size=3x3}, dim_labels=bf01_oi01->bf01
  %convolution.23 = bf16[6,1,7,7] convolution(%i.6, %w.5), window={size=3x3}, dim_labels=fb01_io01->fb01
  %reduce.14 = bf16[8]{0} reduce(bf16[4,8]{1,0} %x.4, bf16[] %zero.9), dimensions={0}, to_apply=%add.1
  %reduce.15 = bf16[8]{0} reduce(bf16[4,8]{1,0} %x.4, bf16[] %zero.9), dimensions={0}, to_apply=%max.2
  %reduce.16 = bf16[] reduce(bf16[4,8]{1,0} %x.4, bf16[] %zero.9), dimensions={0,1}, to_apply=%add.1
  %reduce-window.17 = bf16[4,8] reduce-window(%x.4, %zero.9), window={size=1x8 pad=0_0x7_0}, to_apply=%add.1
  %scatter.18 = bf16[4,8] scatter(%x.4, %n.7, %u.8), update_window_dims={1}, inserted_window_dims={0}, to_apply=%add.1
  %select-and-scatter.19 = bf16[4,8] select-and-scatter(%x.4, %dot.10, %zero.9), window={size=1x2 stride=1x2}, \
select=%ge.3, scatter=%add.1
  %all-reduce.20 = bf16[8]{0} all-reduce(%reduce.14), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add.1
  %all-reduce.21 = bf16[8]{0} all-reduce(%reduce.14), replica_groups=[4,2]<=[8], to_apply=%add.1
  ROOT %all-reduce.22 = bf16[8]{0} all-reduce(%reduce.14), replica_groups={{0},{1}}, to_apply=%add.1
}
"""


class TestAccumulations:
    @pytest.fixture
    def sums(self, report: Report) -> Report:
        graph = Graph("end of the step", "", (), SUMS)
        return replace(report, accumulations=tuple(accumulations_of(Step((graph,), RECORDS))))

    def test_which_and_how_long(self, sums: Report) -> None:
        assert {found.hlo: found.length for found in sums.accumulations} == {
            "dot.10": 8,
            "convolution.13": 6 * 3 * 3,
            "convolution.23": 2 * 3 * 3,
            "reduce.14": 4,
            "reduce.16": 32,
            "reduce-window.17": 8,
            "scatter.18": 5,
            "select-and-scatter.19": 2,
            "all-reduce.20": 4,
            "all-reduce.21": 2,
        }

    def test_where(self, sums: Report) -> None:
        dot, *others = sums.accumulations
        assert (dot.phase, dot.module, dot.op, dot.shape) == ("forward", "M.a", "to", (4, 4))
        assert str(dot.place) == "llama.py:7"
        assert {(found.phase, found.place) for found in others} == {("unknown", None)}

    def test_checks(self, sums: Report, report: Report) -> None:
        assert report.faults(None, ["narrow-accumulation"]) == []
        [fault] = sums.faults(None, ["narrow-accumulation"])
        assert fault.startswith("10 × narrow accumulation, which is forbidden: llama.py:7, convolution.13, ")

    def test_shown(self, sums: Report) -> None:
        assert summary(sums).splitlines()[-2:] == [
            "10 narrow accumulations, the longest of 54 elements",
            "  convolution in bf16 2, reduce in bf16 2, all-reduce in bf16 2, dot in bf16 1, reduce-window in bf16 1, "
            "scatter in bf16 1, select-and-scatter in bf16 1",
        ]
        assert sums.accumulation_rows()[0][:4] == ["2", "54", "unknown", "convolution"]
        assert "forward | M.a | bf16 | narrow accumulation | dot | to | 1" in lock_text(sums).splitlines()

    def test_there_and_back(self, sums: Report) -> None:
        assert Report.from_dict(json.loads(json.dumps(sums.as_dict()))) == sums


class TestLock:
    TEXT = """\
# castoff dtypes 1
# phase | module | from → to | exactness | reason | operation | how many. Made by castoff audit --write-lock.
forward | M.a | bf16 → f32 | exact widening | explicit | to | 1
forward | M.a | f32 → bf16 | exact round trip | autocast | linear | 1
backward | M.a | bf16 → f32 | exact widening | autocast | ToCopyBackward0 | 1
optimizer | (outside modules) | f32 → bf16 | lossy narrowing | optimizer | AdamW.step | 1
unknown | (outside modules) | bf16 → f32 | lossy round trip | unknown | (unknown) | 1
"""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "dtypes.lock"
        path.write_text(self.TEXT, encoding="utf-8")
        return path

    def test_the_text(self, report: Report) -> None:
        assert lock_text(report) == self.TEXT

    def test_edits_that_change_no_cast_change_no_line(self, report: Report) -> None:
        moved = [
            replace(
                cast, place=Frame("/elsewhere.py", 99, "f"), number=cast.number + 5, operation=1, shape=(9,), bytes=9
            )
            for cast in report.casts
        ]
        assert lock_text(replace(report, casts=tuple(reversed(moved)))) == self.TEXT

    def test_layers_are_one_line(self, report: Report) -> None:
        layers = tuple(replace(report.casts[0], module=f"M.layers.{number}") for number in range(3))
        lines = lock_text(replace(report, casts=layers)).splitlines()[2:]
        assert lines == ["forward | M.layers.* | bf16 → f32 | exact widening | explicit | to | 3"]

    def test_what_changed(self, report: Report, path: Path) -> None:
        assert lock_differences(path, report) == []
        first, *others = report.casts
        changed = replace(report, casts=(first, first, replace(first, module="M.b"), *others))
        assert lock_differences(path, changed) == [
            "- forward | M.a | bf16 → f32 | exact widening | explicit | to | 1",
            "+ forward | M.a | bf16 → f32 | exact widening | explicit | to | 2",
            "+ forward | M.b | bf16 → f32 | exact widening | explicit | to | 1",
        ]

    def test_a_person_sees_it(self, report: Report, path: Path, tmp_path: Path) -> None:
        out, new = io.StringIO(), tmp_path / "new.lock"
        fewer = replace(report, casts=report.casts[1:])
        options = {"everything": False, "console": Console(out=out)}
        assert show("a.py:f", {"here": report}, None, (), lock=path, files=Files(lock=new), **options) == []  # type: ignore[arg-type]
        assert new.read_text(encoding="utf-8") == self.TEXT
        [fault] = show("a.py:f", {"here": fewer}, None, (), lock=path, files=Files(), **options)  # type: ignore[arg-type]
        line = "- forward | M.a | bf16 → f32 | exact widening | explicit | to | 1"
        assert fault == f"the step is not as in dtypes.lock (-), it has (+):\n{line}"
        assert out.getvalue().endswith(f"problem: {fault}\n")

    @pytest.mark.parametrize("text", [None, "", "# castoff dtypes 0\n"])
    def test_a_file_that_is_none(self, text: str | None, report: Report, tmp_path: Path) -> None:
        path = tmp_path / "other.lock"
        if text is not None:
            path.write_text(text)
        with pytest.raises(AuditError, match="no lock file"):
            check_lock_file(path)
        with pytest.raises((ValueError, OSError)):
            lock_differences(path, report)

    def test_a_file_that_is_one(self, path: Path) -> None:
        check_lock_file(None)
        check_lock_file(path)


class TestRequests:
    @pytest.mark.parametrize("target", ["train.py", "nowhere.py:step", "train.py:a.b"])
    def test_a_program_that_is_not_one(self, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "train.py").touch()
        with pytest.raises(AuditError, match="no such program"):
            parse_request(target, 1, None, None)

    @pytest.mark.parametrize(
        ("name", "found"), [("nowhere/a.html", "No such file or directory"), (".", "Is a directory")]
    )
    def test_a_file_that_cannot_be_written(self, name: str, found: str, tmp_path: Path) -> None:
        with pytest.raises(AuditError, match="cannot be written") as error:
            check_files(None, tmp_path / name)
        assert error.value.found == found

    def test_a_check_of_files_leaves_them_as_they_are(self, tmp_path: Path) -> None:
        kept, new = tmp_path / "kept.json", tmp_path / "new.json"
        kept.write_text("mine")
        check_files(kept, new)
        assert (kept.read_text(), new.exists()) == ("mine", False)

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("def step(x, *, n, m=1): pass", "train.py:1: step(x, *, n, m=1)"),
            ("def other(): pass", "no function 'step'; it has: other"),
            ("def step(:", "SyntaxError"),
        ],
    )
    def test_a_program_at_fault_is_not_run(self, text: str, found: str, tmp_path: Path) -> None:
        """This environment has no torch: the worker must not have come to importing it."""
        fault = json.loads(self.worked(text, tmp_path))
        assert found in fault["found"]

    @pytest.mark.parametrize(
        "text", ["from steps import *", "step = make()", "globals()['step'] = 1", "class step: pass"]
    )
    def test_a_program_whose_text_does_not_tell(self, text: str, tmp_path: Path) -> None:
        assert json.loads(self.worked(text, tmp_path))["expected"] == "torch_xla can be imported"

    @staticmethod
    def worked(text: str, folder: Path) -> str:
        program = folder / "train.py"
        program.write_text(text)
        command = [
            sys.executable,
            worker.__file__,
            "xla",
            "shapes",
            str(program),
            "step",
            "1",
            str(folder / "report.json"),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()[-1]

    def test_what_ctrl_c_says(self) -> None:
        err = io.StringIO()
        with pytest.raises(typer.Exit) as stopped, boundary(Console(err=err), stopped="no file was written"):
            raise KeyboardInterrupt
        assert stopped.value.exit_code == INTERRUPTED_EXIT_CODE
        assert err.getvalue() == "warning  no file was written\n"

    def test_a_kind_that_is_none(self) -> None:
        check_kinds(["lossy-round-trip"])
        with pytest.raises(AuditError, match="no such kind"):
            check_kinds(["lossy"])
