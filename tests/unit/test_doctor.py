import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from castoff.builder import doctor
from castoff.builder.doctor import Finding
from castoff.core.context import Context
from castoff.core.interpreter import Interpreter
from castoff.core.places import ROOT
from castoff.formats.elf import relocation_slots

HERE = Interpreter("3.11", Path(sys.executable))


@pytest.fixture(scope="module")
def shipped() -> ModuleType:
    """The module that the wheel brings."""
    sys.path.insert(0, str((ROOT / doctor.MODULE).parent))
    import castoff_doctor

    sys.path.pop(0)
    module: ModuleType = castoff_doctor
    return module


def test_it_reads_slots_and_symbols_like_the_build(
    shipped: ModuleType, libraries: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "libtorch_cpu.so"
    path.write_bytes(libraries["libtorch_cpu.so"])
    slots = shipped._slots(str(path), {"_ZN5torch6answerEv", "nothing"})
    wanted = relocation_slots(path, ["_ZN5torch6answerEv"])
    assert {name: tuple(offsets) for name, offsets in slots.items()} == wanted


def test_slots_are_judged(shipped: ModuleType) -> None:
    def judge(slots: dict[str, list[str]]) -> list[tuple[str, str]]:
        findings = shipped._Findings()
        shipped._judge_slots(findings, slots)
        return [(row["status"], row["found"]) for row in findings.rows]

    overlay = "libcastoff_torch.so"
    assert judge({"f": [overlay, overlay], "g": [overlay]}) == [
        ("ok", f"2 functions in effect, 3 call slots lead to {overlay}")
    ]
    assert judge({"f": [overlay, "libtorch_cpu.so"], "g": [overlay]}) == [
        ("fault", f"f leads to {overlay}, libtorch_cpu.so")
    ]
    assert judge({})[0][0] == "fault"


def test_an_environment_without_the_wheels(context: Context) -> None:
    """That of the build has no torch; whether there is a TPU changes nothing about that."""
    well, findings = doctor.examine(ROOT, HERE, False, context)
    by_check = {finding.check: finding for finding in findings}
    assert not well
    assert (by_check["torch"].status, by_check["torch"].found) == ("fault", "not installed")
    assert "-c constraints.txt" in by_check["torch"].next_step
    assert by_check["libtpu"].status == "note"
    assert "not installed" in doctor.report(findings)


@pytest.mark.parametrize("in_place", [False, True])
def test_an_environment_where_torch_was_replaced(tmp_path: Path, in_place: bool) -> None:
    """As `pip install torchvision` does without the constraints: it says which torch is missing, and what to type."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    wheels = {"torch-2.15.0": "", "torch_xla-2.9.0+castoff.1": "Requires-Dist: torch==2.9.0+castoff.1\n"}
    for wheel, requires in wheels.items():
        name, version = wheel.split("-")
        (site / f"{wheel}.dist-info").mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        (site / f"{wheel}.dist-info" / "METADATA").write_text(text)
    if in_place:
        (site / ".castoff").mkdir()
    command = [folder / "bin" / "python", ROOT / doctor.MODULE, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    findings = {row["check"]: row for row in json.loads(result.stdout)["findings"]}
    assert result.returncode == 1 and findings["torch"]["status"] == "fault"
    replaced = "it has replaced 2.9.0+castoff.1, which this torch_xla requires"
    assert findings["torch"]["found"] == f"2.15.0 is not a castoff build: {replaced}"
    expected = (
        f"pip install torch==2.9.0; castoff install --python {folder / 'bin' / 'python'}"
        if in_place
        else "pip install -c constraints.txt --find-links . torch==2.9.0+castoff.1 torch_xla"
    )
    assert expected in findings["torch"]["next_step"]


def test_a_build_of_torch_alone_needs_no_torch_xla(tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "torch-2.15.0+castoff.1.dist-info").mkdir()
    (site / "torch-2.15.0+castoff.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0+castoff.1\n"
    )
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise ImportError('made up')\n")
    (site / "torch" / "_castoff_topics.py").write_text('TOPICS = {"data-setter": ""}\nOTHERS = []\n')
    for options, more in ((["--json"], {}), (["--json", "--require-tpu"], {"TPU": "fault"})):
        command = [folder / "bin" / "python", ROOT / doctor.MODULE, *options]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        status = {row["check"]: row["status"] for row in json.loads(result.stdout)["findings"]}
        assert status == {"machine": "ok", "python": "ok", "torch": "ok", "import torch": "fault", **more}


def test_a_tpu_can_be_required(context: Context) -> None:
    _, findings = doctor.examine(ROOT, HERE, True, context)
    assert {finding.check: finding.status for finding in findings}["libtpu"] == "fault"


def test_the_shipped_module_needs_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", ROOT / doctor.MODULE, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert json.loads(result.stdout)["well"] is False


def test_the_report_shows_next_steps_of_problems() -> None:
    text = doctor.report([Finding("a", "ok", "fine", "unused"), Finding("b", "fault", "broken", "correct it")])
    assert "unused" not in text
    assert "→ correct it" in text


def test_a_torch_built_from_source_interposes_nothing(shipped: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"cxx11_abi": 1, "commits": {}, "topics": {"grad-dtype": "on"}, "slots": {}, "compiled_in": True}
    monkeypatch.setattr(shipped, "_child", lambda *_: (answer, ""))
    findings = shipped._Findings()
    shipped._examine_running(findings)
    assert [row["status"] for row in findings.rows] == ["ok", "ok", "ok"]
    assert "built from source" in findings.rows[-1]["found"]
