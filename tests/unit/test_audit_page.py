"""The page of an audit, in a real browser."""

import json
import re
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from test_audit import GRAPH, RECORDS

from castoff.audit.casts import Step, casts_of
from castoff.audit.page import page
from castoff.audit.report import Report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# What a person does; each step leaves what they see then.
ACTIONS = """
<script>
const seen = {};
const rows = () => [...document.querySelectorAll("#casts tbody tr.row")].map((row) => Number(row.dataset.number));
const look = (name) => { seen[name] = rows(); };
const click = (selector) => document.querySelector(selector).click();
look("at first");
seen.total = document.getElementById("total").textContent;
seen.stock = document.getElementById("stock")?.textContent ?? null;
const nodes = [...document.querySelectorAll("#tree .node")];
seen.tree = nodes.map((node) => [node.dataset.path, node.querySelector(".count").textContent]);
click('[data-sort="bytes"]'); look("most bytes first");
click('[data-sort="bytes"]'); look("fewest bytes first");
click('[data-sort="number"]');
click('#tree [data-path="M.a"]'); look("in M");
click('#tree [data-path="M.a"]'); look("everywhere again");
click('.bars [data-value="exact round trip"]'); look("exact round trips");
click('#casts tbody tr.row');
seen.detail = document.querySelector("tr.detail").textContent;
click("#clear"); look("all again");
click("#integers"); look("with integers");
document.getElementById("search").value = "SGD";
document.getElementById("search").dispatchEvent(new Event("input")); look("searched");
document.body.dataset.seen = JSON.stringify(seen);
</script>
"""


@pytest.fixture(scope="module")
def report() -> Report:
    records = {**RECORDS, 6: replace(RECORDS[6], function="SGD.step")}
    casts = casts_of(Step((GRAPH,), records))
    return Report({"torch": "2.9.0", "torch_xla": "2.9.0+castoff.1"}, (GRAPH,), tuple(casts))


def browse(path: Path, *options: str) -> str:
    assert CHROMIUM is not None, "expected Chromium on PATH, found none; install it: apt-get install chromium"
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={path.parent / 'profile'}",
    ]
    done = subprocess.run([*command, *options, path.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def seen(report: Report, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    path = tmp_path_factory.mktemp("page") / "page.html"
    stock = replace(report, casts=(*report.casts, replace(report.casts[0], number=7)))
    reports = {"here": report, "stock": stock}
    path.write_text(page("train.py:step", reports).replace("</body>", f"{ACTIONS}</body>"), encoding="utf-8")
    dom = browse(path, "--dump-dom")
    assert 'data-ready="yes"' in dom
    match = re.search(r'data-seen="([^"]*)"', dom)
    assert match is not None
    found: dict[str, object] = json.loads(match[1].replace("&quot;", '"').replace("&nbsp;", " ").replace("&amp;", "&"))
    return found


def test_the_numbers(seen: dict[str, object]) -> None:
    assert seen["total"] == "5"
    assert seen["stock"] == "stock wheels (2.9.0+castoff.1): 6, 1.69 KiB"


def test_the_tree(seen: dict[str, object]) -> None:
    assert seen["tree"] == [["M.a", "3"], ["(optimizer)", "1"], ["(outside modules)", "1"]]


def test_sorting(seen: dict[str, object]) -> None:
    assert seen["at first"] == [1, 2, 3, 4, 6], "in the order of the program"
    assert seen["most bytes first"] == [6, 4, 3, 2, 1]
    assert seen["fewest bytes first"] == [1, 2, 3, 4, 6]


def test_choosing(seen: dict[str, object]) -> None:
    assert seen["in M"] == [1, 2, 3]
    assert seen["everywhere again"] == seen["all again"] == [1, 2, 3, 4, 6]
    assert seen["exact round trips"] == [2]
    assert seen["with integers"] == [1, 2, 3, 4, 5, 6]
    assert seen["searched"] == [4]


def test_a_cast_shows_its_ir(seen: dict[str, object]) -> None:
    detail = str(seen["detail"])
    for line in ("%2 = f32[8,4]", "%3 = bf16[8,4]", "%4 = bf16[8,8]", "graph 0, line 4, %3; convert.4 in its HLO"):
        assert line in detail
    assert "castoff's wheels remove the round trip" in detail


def test_it_needs_nothing_else(report: Report) -> None:
    text = page("train.py:step", {"here": report})
    assert not re.search(r"https?:|src=|@import|url\(|<link", text)


def test_what_is_in_it_cannot_end_its_data(report: Report) -> None:
    text = page("</script><b>", {"here": report})
    assert text.count("</script>") == 2


def test_a_picture(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page("train.py:step", {"here": report}), encoding="utf-8")
    browse(path, "--window-size=1400,900", "--hide-scrollbars", f"--screenshot={tmp_path / 'page.png'}")
    picture = (tmp_path / "page.png").read_bytes()
    assert struct.unpack(">II", picture[16:24]) == (1400, 900)
    assert len(picture) > 30_000, "an empty page is smaller"
