"""The checks of the manifests among the examples, and of images, on made-up ones."""

import sys
from pathlib import Path

import pytest
from expecttest import assert_expected_inline
from ruamel.yaml import YAML

from castoff.core.places import ROOT

MANIFEST = ROOT / "examples" / "cluster" / "jobset.yaml"

sys.path.insert(0, str(ROOT / "ci"))
import check_manifests  # noqa: E402
import image_checks  # noqa: E402


def _problems(*changes: tuple[str, str]) -> str:
    text = MANIFEST.read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return "\n".join(check_manifests.check(YAML(typ="safe").load(text)))


def test_the_manifest_is_well() -> None:
    assert _problems() == ""


def test_a_field_that_a_server_would_drop_is_found() -> None:
    changes = (
        ("backoffLimit: 0", "backofLimit: 0"),
        ("name: cache\n                  emptyDir", "name: cache\n                  empty"),
    )
    assert_expected_inline(
        _problems(*changes),
        """\
spec.replicatedJobs.0.template.spec.backofLimit: no such field
spec.replicatedJobs.0.template.spec.template.spec.volumes.2.empty: no such field""",
    )


def test_a_value_of_another_type_is_found() -> None:
    assert_expected_inline(
        _problems(("maxRestarts: 10", "maxRestarts: many")), """maxRestarts: Input should be a valid integer"""
    )
    assert_expected_inline(
        _problems(("image: registry", "imaje: registry"), ("- name: train\n", "- nome: train\n")),
        """\
spec.replicatedJobs.0.template.spec.template.spec.containers.0.nome: no such field
spec.replicatedJobs.0.template.spec.template.spec.containers.0.imaje: no such field""",
    )


def test_pods_that_do_not_make_up_the_slice_are_found() -> None:
    assert_expected_inline(
        _problems(("topology: 4x4", "topology: 4x8")),
        """slice: expected 32 chips for 4x8, each pod completed once, found 4 pods with 4 each, 4 completions""",
    )
    assert_expected_inline(
        _problems(("completions: 4", "completions: 2")),
        """slice: expected 16 chips for 4x4, each pod completed once, found 4 pods with 4 each, 2 completions""",
    )


def test_another_kind_is_refused() -> None:
    assert_expected_inline(
        _problems(("kind: JobSet", "kind: Job")),
        """expected apiVersion and kind ('jobset.x-k8s.io/v1alpha2', 'JobSet')""",
    )


# ---- images


def test_programs_to_build_with_are_found(tmp_path: Path) -> None:
    for name in ("usr/bin/x86_64-linux-gnu-gcc-12", "usr/bin/grep", "usr/local/bin/uv", "opt/castoff/bin/pip3.11"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("usr/bin/addpart", "usr/bin/base64", "usr/bin/dash", "opt/castoff/bin/torchrun", "usr/bin/ldd"):
        (tmp_path / name).touch()
    found = [Path(program).name for program in image_checks.programs(tmp_path)]
    assert found == ["pip3.11", "x86_64-linux-gnu-gcc-12", "uv"]


def test_sizes_go_to_the_part_that_installed_a_file(tmp_path: Path) -> None:
    site = tmp_path / "opt/castoff/lib/python3.11/site-packages"
    kilobytes = {
        site / "torch/a.py": 100,
        site / "torch/__pycache__/a.cpython-311.pyc": 50,
        site / "numpy/a.py": 30,
        tmp_path / "usr/lib/libc.so": 200,
    }
    for path, size in kilobytes.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size * 1000)
    record = site / "torch-2.9.0+castoff.1.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("torch/a.py,sha256=x,1\n")
    found = image_checks.sizes(tmp_path)
    assert {part: round(size, 1) for part, size in found.items()} == {"base": 0.2, "dependencies": 0.0, "torch": 0.2}
    with pytest.raises(SystemExit, match="expected torch within 0 MB"):
        image_checks.check_sizes(found, dict.fromkeys(found, 0) | {"base": 1, "dependencies": 1})


def test_wheels_are_compared_where_the_compiler_was_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    def write(name: str, compiler: str, sha256: str) -> Path:
        manifest = {
            "overlays": {"torch": {"compiler": compiler}},
            "wheels": {"torch": {"file": "torch.whl", "sha256": sha256}},
        }
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
        return tmp_path / name

    one = write("one", "g++ 12", "0123")
    image_checks.check_same(one, write("same", "g++ 12", "0123"))
    with pytest.raises(SystemExit, match="found 4567"):
        image_checks.check_same(one, write("other", "g++ 12", "4567"))
    image_checks.check_same(one, write("later", "g++ 14", "4567"))
    assert "NOT COMPARED" in capsys.readouterr().out


def test_tests_that_state_a_text_are_found(tmp_path: Path) -> None:
    text = (
        "def test_one():\n    assert_expected_inline(ir(), 'x')\n\ndef test_two():\n    assert 1\n"
        "def test_three():\n    ir().expect('x')\n"
    )
    (tmp_path / "test_x.py").write_text(text)
    assert image_checks.expect_tests(tmp_path) == [
        f"{tmp_path}/test_x.py::{name}" for name in ("test_one", "test_three")
    ]
    assert len(image_checks.expect_tests(ROOT / "tests" / "ir")) > 40
