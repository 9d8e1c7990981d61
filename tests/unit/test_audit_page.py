"""The page of an audit, in a real browser."""

import base64
import gzip
import hashlib
import json
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest
from test_audit import GRAPH, HERE, RECORDS

from castoff.audit import page as page_module
from castoff.audit.advice import advice_of, is_removable, line_of
from castoff.audit.casts import REMEDIES, Frame, Step, casts_of
from castoff.audit.page import LIMIT, page
from castoff.audit.report import Report
from castoff.audit.trials import NARROW_ATTENTION, Trial, tried
from castoff.core.errors import AuditError

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCRIPTS = (Path(__file__).parent / "vendor" / "axe.min.js", Path(__file__).with_name("audit_page_actions.js"))

# Chromium's own window is at least 500 pixels wide.
FRAME = """
<!doctype html><html lang="en"><meta name="color-scheme" content="light dark"><title>a window</title><body>
<script>addEventListener("message", (event) => { document.body.dataset.seen = event.data; });</script>
<iframe src="page.html" style="border: 0; height: 900px; width: WIDTHpx"></iframe></body></html>
"""


TRIALS = [
    Trial("native-mul", "export XLA_NATIVE_MUL=1", 2, 480, ""),
    Trial("wide-weight-grad", "from torch_xla.amp import wide_grads; wide_grads(model)", 0, 0, "ValueError: no"),
    Trial("native-attention", "torch_xla.experimental.narrow_attention(True)", 3, 96, ""),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    program = tmp_path_factory.mktemp("program") / "train.py"
    program.write_text("".join(f"line_{number} = {number} < 100\n" for number in range(1, 31)))
    stack = (*HERE[:-1], Frame(str(program), 12, "step"))
    records = {number: replace(record, stack=stack if record.stack else ()) for number, record in RECORDS.items()}
    records[6] = replace(records[6], function="SGD.step", stack=stack[-1:])
    first, *others = casts_of(Step((GRAPH,), records))
    long = next(remedy for _, topic, remedy in REMEDIES if topic == "out-dtype-op")
    casts = (replace(first, topic="out-dtype-op", remedy=long), *others)
    return Report({"torch": "2.9.0", "torch_xla": "2.9.0+castoff.1"}, (GRAPH,), casts)


@pytest.fixture(scope="module")
def both(report: Report) -> dict[str, Report]:
    """The report beside one of stock wheels, with one cast more, and with what a TPU keeps."""
    here = replace(report, casts=tuple(replace(cast, tpu=cast.number % 2) for cast in report.casts))
    stock = replace(report, versions={"torch": "2.9.0", "torch_xla": "2.9.0"})
    return {"here": here, "stock": replace(stock, casts=(*report.casts, replace(report.casts[0], number=7)))}


def browse(path: Path, *options: str) -> str:
    assert CHROMIUM is not None, "expected Chromium on PATH, found none; install it: apt-get install chromium"
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={path.parent / 'profile'}",
    ]
    done = subprocess.run([*command, *options, path.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def looked_at(folder: Path, reports: dict[str, Report], width: int, *options: str) -> dict[str, object]:
    """What a person sees who does what audit_page_actions.js says in a window of that width."""
    scripts = "".join(f"<script>{path.read_text(encoding='utf-8')}</script>" for path in SCRIPTS)
    text = page("train.py:step", reports, TRIALS).replace("</body>", f"{scripts}</body>")
    (folder / "page.html").write_text(text, encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    dom = browse(frame, "--dump-dom", "--virtual-time-budget=20000", "--window-size=1500,1000", *options)
    match = re.search(r'data-seen="([^"]*)"', dom)
    assert match is not None, "expected all actions to be done, found one that was not"
    found: dict[str, object] = json.loads(unquote(base64.b64decode(match[1]).decode()))
    return found


@pytest.fixture(scope="module")
def wide(both: dict[str, Report], tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return looked_at(tmp_path_factory.mktemp("page"), both, 1400, "--blink-settings=preferredColorScheme=1")


@pytest.fixture(scope="module")
def narrow(both: dict[str, Report], tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return looked_at(tmp_path_factory.mktemp("page"), both, 400, "--blink-settings=preferredColorScheme=0")


@pytest.fixture(params=["wide", "narrow"])
def seen(request: pytest.FixtureRequest) -> dict[str, object]:
    """In a window of 1400 pixels, light, and in one of 400, dark."""
    found: dict[str, object] = request.getfixturevalue(request.param)
    assert (found["width"], found["dark"]) == {"wide": (1400, False), "narrow": (400, True)}[request.param]
    return found


def test_what_to_do(seen: dict[str, object]) -> None:
    assert seen["tried"] == [
        "Tried: the step does not run with it: ValueError: no",
        "Tried: 2 casts fewer, 480 B fewer.",
    ]
    assert seen["advice"] == [
        [
            "native-attention",
            "torch_xla.experimental.narrow_attention(True)",
            "native-attentionsaves 96 B, 3 casts; tried",
        ],
        [
            "wide-weight-grad",
            "from torch_xla.amp import wide_grads; wide_grads(model)",
            "wide-weight-gradsaves 384 B 25 % of the bytes, 1 cast",
        ],
        ["native-mul", "export XLA_NATIVE_MUL=1", "native-mulsaves 384 B 25 % of the bytes, 1 cast"],
        [
            "out-dtype-op",
            "torch.ops.higher_order.out_dtype(torch.ops.aten.linear.default, torch.float32, x, weight, bias)",
            "out-dtype-opsaves 192 B 13 % of the bytes, 1 cast",
        ],
        ["exact-casts", "castoff install --python PYTHON", "exact-castssaves 192 B 13 % of the bytes, 1 cast"],
    ]
    assert seen["left"] == "Of 5 casts and 1.5 KiB, 1 cast and 384 B are left after all of it."
    assert seen["of the first advice"] == ["3"]


def test_before_and_after(seen: dict[str, object]) -> None:
    names = ["stock wheels", "castoff's", "all advice taken", "castoff's, TPU"]
    for bars, values in (("bars", [1728, 1536, 384, 576]), ("bars_of_casts", [6, 5, 1, 2])):
        assert seen[bars] == [{"label": name, "value": value} for name, value in zip(names, values, strict=True)]
    beside = seen["beside"]
    assert isinstance(beside, list)
    assert beside[0] == ["casts", "6", "5"]
    assert ["bytes moved by casts", "1,728", "1,536"] in beside
    assert ["narrow accumulations", "0", "0"] in beside


def test_the_frames(seen: dict[str, object]) -> None:
    frames = seen["frames"]
    assert isinstance(frames, list)
    assert frames[0] == "the step: 1.5 KiB, 5 casts, mostly exact"
    assert "backward / M.a: 384 B, 1 cast, mostly exact" in frames
    assert "forward / M.a / to: bf16 → f32, exact: 192 B, 1 cast, mostly exact" in frames
    assert len(frames) == 12


def test_a_frame_filters(seen: dict[str, object]) -> None:
    assert seen["in the forward"] == ["1", "2"]
    assert seen["of"] == "2 casts in 2 rows, 384 B, of forward"
    assert seen["everywhere again"] == seen["at first"]


def test_by_keyboard(seen: dict[str, object]) -> None:
    assert seen["walked"] == "backward: 384 B, 1 cast, mostly exact"
    assert seen["by keyboard"] == ["3"]
    assert seen["stays"] is True
    assert seen["stops"] == 1, "one frame is in the order of Tab"
    assert seen["focus"] == "true", "the focus stays on the row that was opened"


def test_sorting(seen: dict[str, object]) -> None:
    assert seen["at first"] == ["3", "4", "6", "1", "2"], "the most bytes first"
    assert seen["fewest bytes first"] == ["1", "2", "3", "4", "6"]
    assert seen["sorted"] == "ascending"


def test_choosing(seen: dict[str, object]) -> None:
    assert seen["exact round trips"] == ["2"]
    assert seen["all again"] == seen["at first"]
    assert seen["with integers"] == ["5", "3", "4", "6", "1", "2"]
    assert seen["searched"] == ["4"]


def test_a_row_shows_source_ir_and_hlo(seen: dict[str, object]) -> None:
    detail, marked = seen["detail"], seen["marked"]
    assert isinstance(detail, list)
    assert isinstance(marked, list)
    assert "What to do: castoff's wheels remove the round trip" in detail
    assert "castoff install --python PYTHON" in detail
    assert "   13  line_13 = 13 < 100" in detail
    node = next(at for at, line in enumerate(detail) if line.startswith("%3 = bf16[8,4]"))
    assert detail[node - 1].startswith("%2 = f32[8,4]"), "its operand is before it"
    assert detail[node + 1].startswith("%4 = bf16[8,8]"), "its user is after it"
    assert [line.split(" =")[0] for line in marked] == ["   12  line_12", "%3", "%convert.4"]


def test_everything_is_within_the_window(seen: dict[str, object]) -> None:
    assert seen["spill"] == []
    assert isinstance(seen["scroll"], int)
    assert isinstance(seen["width"], int)
    assert seen["scroll"] <= seen["width"], "nothing to scroll to the right"
    names = ["bytes", "casts", "where", "operation", "from → to", "why", "removed by", "on the TPU"]
    assert seen["columns"] == [[name, True] for name in names]


def test_axe_finds_nothing_serious(seen: dict[str, object]) -> None:
    assert seen["axe"] == []
    checked = seen["checked"]
    assert isinstance(checked, list)
    assert {"color-contrast", "aria-roles", "button-name"} <= set(checked)


def data_of(text: str, name: str) -> object:
    match = re.search(rf'<script type="text/plain" id="{name}">([^<]*)</script>', text)
    assert match is not None
    return json.loads(gzip.decompress(base64.b64decode(match[1]))) if match[1] else None


def test_it_needs_nothing_else(report: Report) -> None:
    text = page("train.py:step", {"here": report})
    assert "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'" in text
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r" src=|@import|url\(|<link", own)


def test_what_is_in_it_cannot_end_its_data(report: Report) -> None:
    plain, odd = (page(name, {"here": report}) for name in ("step", "</script><b>"))
    assert odd.count("</script>") == plain.count("</script>")
    data = data_of(odd, "report")
    assert isinstance(data, dict)
    assert data["program"] == "</script><b>"


def test_its_size(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page("train.py:step", {"here": report})
    assert len(text.encode()) < LIMIT - 800_000, "room for the report"
    graphs = data_of(text, "graphs")
    assert isinstance(graphs, list)
    assert not any("_ops.py" in line for line in graphs[0]["ir"])
    monkeypatch.setattr(page_module, "LIMIT", len(text.encode()) - 1)
    assert data_of(page("train.py:step", {"here": report}), "graphs") is None


def test_a_program_without_a_file(report: Report) -> None:
    casts = tuple(replace(cast, place=Frame("<stdin>", 1, "step"), program=None) for cast in report.casts)
    data = data_of(page("step", {"here": replace(report, casts=casts)}), "report")
    assert isinstance(data, dict)
    assert data["sources"] == {}


def test_a_picture(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page("train.py:step", {"here": report}), encoding="utf-8")
    budget = "--virtual-time-budget=5000"
    browse(path, budget, "--window-size=1400,900", "--hide-scrollbars", f"--screenshot={tmp_path / 'page.png'}")
    picture = (tmp_path / "page.png").read_bytes()
    assert struct.unpack(">II", picture[16:24]) == (1400, 900)
    assert len(picture) > 30_000, "an empty page is smaller"


class TestAdvice:
    def test_each_remedy_has_a_line(self) -> None:
        remedies = [(topic, remedy) for _, topic, remedy in REMEDIES if not remedy.startswith(("needed", "none"))]
        assert len(remedies) > 8
        assert all(line_of(topic, remedy) for topic, remedy in remedies)

    def test_a_remedy_without_one(self) -> None:
        with pytest.raises(LookupError, match="expected a line to type for the remedy 'pray' of None"):
            line_of(None, "pray")

    def test_it_adds_up(self, report: Report) -> None:
        own = [cast for cast in report.floating if is_removable(cast)]
        found = advice_of(report)
        assert sum(advice.bytes for advice in found) == sum(cast.bytes for cast in own) > 0
        assert sum(advice.casts for advice in found) == len(own)
        assert [advice.bytes for advice in found] == sorted((advice.bytes for advice in found), reverse=True)


class TestTrials:
    def test_what_each_setting_removes(self, report: Report) -> None:
        asked = []

        def audit(more: Mapping[str, str]) -> Report:
            asked.append(dict(more))
            if "XLA_NATIVE_MUL" in more:
                return replace(report, casts=tuple(cast for cast in report.casts if cast.topic != "native-mul"))
            if more == {"CASTOFF_AUDIT_SETTING": "wide_grads"}:
                raise AuditError("it fails", expected="a step", found="Traceback\nValueError: no", next_step="")
            return report

        removed = [cast for cast in report.floating if cast.topic == "native-mul"]
        found = {trial.topic: trial for trial in tried(report, audit)}
        assert {"CASTOFF_AUDIT_SETTING": "narrow_attention"} in asked
        assert found.keys() == {"native-mul", "wide-weight-grad"}  # narrow attention removes nothing here
        multiplied = found["native-mul"]
        assert (multiplied.casts, multiplied.bytes) == (len(removed), sum(cast.bytes for cast in removed))
        assert found["wide-weight-grad"].problem == "ValueError: no"

    def test_stock_wheels_have_no_narrow_attention(self, report: Report) -> None:
        stock = replace(report, versions={"torch": "2.9.0", "torch_xla": "2.9.0"})
        assert NARROW_ATTENTION not in {trial.line for trial in tried(stock, lambda _: replace(report, casts=()))}


def test_the_libraries_are_those_of_the_lock() -> None:
    lock = json.loads((ROOT / "ci" / "vendored.lock").read_text(encoding="utf-8"))
    files = {place: digest for package in lock.values() for place, digest in package["sha256"].items()}
    found = {place: hashlib.sha256((ROOT / place).read_bytes()).hexdigest() for place in files}
    assert found == files
    folders = {(ROOT / place).parent for place in files}
    there = {path.relative_to(ROOT).as_posix() for folder in folders for path in folder.iterdir()}
    assert there == set(files), "every file beside them is in the lock"
