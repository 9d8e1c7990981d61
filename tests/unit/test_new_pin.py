import io
import json
import tomllib

import pytest
from made_up import PYTHON, TORCH_COMMIT, TORCH_XLA_COMMIT, Tree, make_wheel

from castoff.builder.fetch import file_sha256
from castoff.builder.package_index import Release, find_release
from castoff.builder.pipeline import build
from castoff.builder.plan import Request
from castoff.core.console import Console
from castoff.core.errors import PinError
from castoff.model.pin import load_pin, pair_names
from castoff.model.topics import load_topics, select
from castoff.upstream.new_pin import new_pin, python_hunks

XLA_REQUIRES = ('libtpu==0.0.30; extra == "tpu"', 'jax==0.8.0; extra == "pallas"', 'jaxlib==0.8.0; extra == "pallas"')


_found: dict[tuple[str, ...], Release | None] = {}


@pytest.fixture(autouse=True)
def each_release_is_looked_up_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whichever test is the first with these wheels."""

    def find(project: str, versions: str, python: str, *arguments: object, **options: object) -> Release | None:
        key = (project, versions, python, *sorted(map(file_sha256, tree.wheels.glob("*.whl"))))
        if key not in _found:
            _found[key] = find_release(project, versions, python, *arguments, **options)  # type: ignore[arg-type]
        return _found[key]

    monkeypatch.setattr("castoff.upstream.new_pin.find_release", find)


@pytest.fixture
def newer(full_tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A tree beside whose pin 2.9 there are wheels of 2.10."""
    monkeypatch.setattr("castoff.upstream.new_pin.PYTHONS", (PYTHON, "3.14"))  # each asks the index for four wheels
    toml = full_tree.root / "patches/torch/answer/topic.toml"  # with [pins] as a table of its own, as people write it
    text = toml.read_text()
    rest = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(("pins", "overlay")))
    table = '\n[pins]\napplies = ["2.9"]\n\n[overlay]\nexports = ["castoff_commit"]\n'
    table += '\n[overlay."2.9"]\ninterpose = ["_ZN5torch6answerEv"]\n'
    toml.write_text(rest + table)
    xla = full_tree.root / "patches/torch_xla/xla/topic.toml"
    lines = [line for line in xla.read_text().splitlines(keepends=True) if not line.startswith("pins")]
    xla.write_text("".join(lines) + '\n[pins]\n"2.9" = "applies"\n')
    _make(full_tree)
    return full_tree


def _make(tree: Tree, **torch: bytes) -> None:
    files = {**tree.files["torch"], **{path.replace("__", "/"): data for path, data in torch.items()}}
    make_wheel(tree.wheels, "torch", "2.10.0", files)
    said = f"__version__ = '2.10.1'\n__xla_gitrev__ = '{TORCH_XLA_COMMIT}'\n".encode()
    files = {**tree.files["torch_xla"], "torch_xla/version.py": said}
    make_wheel(tree.wheels, "torch_xla", "2.10.1", files, XLA_REQUIRES)


def _new(tree: Tree, name: str = "2.10") -> dict[str, list[str]]:
    out = io.StringIO()
    new_pin(name, indexes=(), console=Console(json_lines=True, out=out, err=io.StringIO()), root=tree.root)
    return json.loads(out.getvalue().splitlines()[-1])


def test_a_pin_is_filled_in_and_builds(newer: Tree, console: Console) -> None:
    result = _new(newer)
    pin = load_pin(newer.root / "pins", "2.10")
    assert (pin.torch.version, pin.torch_xla.version) == ("2.10.0", "2.10.1")
    assert (pin.torch.commit, pin.torch_xla.commit) == (TORCH_COMMIT, TORCH_XLA_COMMIT)
    assert (pin.torch.tag, pin.torch.repository) == ("v2.10.0", "https://example.org/torch")
    assert (pin.platform, pin.cxx11_abi, pin.pythons) == ("manylinux_2_28_x86_64", 1, (PYTHON,))
    assert pin.runtime is not None
    assert (pin.runtime.libtpu, pin.runtime.jax) == ("0.0.30", "0.8.0")
    hashes = {wheel.project: wheel.sha256 for wheel in pin.pinned}
    assert hashes["torch"] == file_sha256(next(newer.wheels.glob("torch-2.10.0*")))
    topics = load_topics(newer.root / "patches")
    assert [topic.key for topic in select(topics, "2.10")] == ["torch/answer", "torch_xla/xla"]
    assert topics[0].overlay_symbols("2.10") == topics[0].overlay_symbols("2.9")
    assert topics[0].overlay_symbols("2.10").exports == ("castoff_commit",)
    assert result["topics"] == {"torch/answer": "applies", "torch_xla/xla": "applies"}
    assert "patches/torch/answer/hunks/2.9+2.10.patch" in result["written"]
    assert any(row.startswith("the tests") for row in result["hand"])
    assert any(row.startswith("docs/pins.md") for row in result["hand"])
    build(Request("cpu", "2.10", None, (), newer.root / "dist", verify_install=False, root=newer.root), console)


def test_a_pin_of_torch_alone(newer: Tree, console: Console) -> None:
    for wheel in newer.wheels.glob("torch_xla-2.10*"):
        wheel.unlink()
    result = _new(newer)
    pin = load_pin(newer.root / "pins", "2.10")
    assert (pin.projects, pin.requires, pin.pythons) == (("torch",), (), (PYTHON,))
    assert pair_names(newer.root / "pins") == ["2.9"]
    assert result["topics"] == {
        "torch/answer": "applies",
        "torch_xla/xla": "cannot: torch_xla has no release for torch 2.10",
    }
    with pytest.raises(PinError, match="has no torch_xla"):
        pin.upstream("torch_xla")
    request = Request("cpu", "2.10", None, (), newer.root / "dist", verify_install=False, root=newer.root)
    folder = build(request, console)
    assert [wheel.name.split("-")[0] for wheel in folder.glob("*.whl")] == ["torch"]
    recorded = json.loads((folder / "manifest.json").read_text())
    assert list(recorded["wheels"]) == ["torch"] and "torch_xla" not in recorded["pin"]
    assert (folder / "constraints.txt").read_text().startswith("torch==2.10.0+castoff.")


def test_pins_are_written_newest_first_and_comments_stay(newer: Tree) -> None:
    toml = newer.root / "patches/torch_xla/xla/topic.toml"
    toml.write_text(toml.read_text() + '"2.11" = "upstream"  # seen\n')
    toml.write_text(toml.read_text().replace('"2.9" = "applies"\n', "").rstrip() + '\n"2.9" = "applies"\n')
    _new(newer)
    rows = toml.read_text().partition("[pins]\n")[2].splitlines()
    assert rows == ['"2.11" = "upstream"  # seen', '"2.10" = "applies"', '"2.9" = "applies"']


def test_a_conflict_is_found_and_those_above_it(newer: Tree) -> None:
    _make(newer, **{"torch__other.py": b"third = 4\n"})
    result = _new(newer)
    assert result["topics"]["torch/answer"].startswith(
        "cannot: does not apply to 2.10's wheel: torch/other.py (conflict)"
    )
    assert result["topics"]["torch_xla/xla"] == "cannot: it depends on torch/answer"
    assert not (newer.root / "patches/torch/answer/hunks/2.10.patch").exists()
    assert any("third = 3" in row for row in result["hand"])
    assert select(load_topics(newer.root / "patches"), "2.10") == ()


def test_cpp_that_does_not_compile_there(newer: Tree) -> None:
    newer.topic(
        "sound",
        {"files/torch/sound.cpp": 'extern "C" __attribute__((visibility("default"))) int sound() { return 1; }\n'},
        pins='{"2.9" = "applies"}',
    )
    toml = newer.root / "patches/torch/sound/topic.toml"
    lines = [line for line in toml.read_text().splitlines(keepends=True) if not line.startswith("pins")]
    table = '\n[pins]\n"2.9" = "applies"\n\n[overlay]\nexports = ["sound"]\n'
    toml.write_text("".join(lines) + table)
    _make(
        newer, **{"torch__include__torch__answer.h": b"#pragma once\nnamespace torch { int reply(); }\n#error moved\n"}
    )
    result = _new(newer)
    assert result["topics"]["torch/answer"] == "cannot: its C++ does not compile there: overlay/interpose.cpp"
    assert any("#error moved" in row for row in result["hand"])
    assert result["topics"]["torch_xla/xla"] == "cannot: it depends on torch/answer"
    assert result["topics"]["torch/sound"] == "applies"


def test_a_function_that_is_gone(newer: Tree) -> None:
    toml = newer.root / "patches/torch/answer/topic.toml"
    toml.write_text(toml.read_text().replace("_ZN5torch6answerEv", "_ZN5torch4goneEv"))
    result = _new(newer)
    assert "lacks the functions that it interposes: _ZN5torch4goneEv" in result["topics"]["torch/answer"]


def test_a_function_that_the_cpp_does_not_define_there(newer: Tree) -> None:
    """As when it is under an #if for later releases only."""
    source = newer.root / "patches/torch/answer/overlay/interpose.cpp"
    source.write_text(f"#if CASTOFF_ALWAYS\n{source.read_text()}\n#endif\n")
    result = _new(newer)
    assert result["topics"]["torch/answer"] == (
        "cannot: compiled there, its C++ does not define _ZN5torch6answerEv, castoff_commit"
    )
    assert result["topics"]["torch_xla/xla"] == "cannot: it depends on torch/answer"
    assert [path for path in result["written"] if "patches/torch/" in path] == ["patches/torch/answer/topic.toml"]


def test_what_is_there_stays(newer: Tree) -> None:
    _new(newer)
    pin = newer.root / "pins/2.10.toml"
    pin.write_text(f"# mine\n{pin.read_text()}")
    toml = newer.root / "patches/torch/answer/topic.toml"
    toml.write_text(toml.read_text().replace('"2.10" = "applies"', '"2.10" = "cannot: I know why"'))
    before = toml.read_text()
    result = _new(newer)
    assert result["topics"] == {}
    assert result["written"] == ["pins/2.10.toml"]
    assert pin.read_text().startswith("# mine\n")
    assert toml.read_text() == before
    tomllib.loads(before)


def test_what_there_is_no_wheel_of(newer: Tree) -> None:
    with pytest.raises(PinError, match=r"no release 2\.11"):
        _new(newer, "2.11")
    with pytest.raises(PinError, match="not a name of a pin"):
        _new(newer, "2.10.0")
    assert not (newer.root / "pins/2.11.toml").exists()


def test_a_wheel_proves_the_python_hunks_only() -> None:
    parts = [
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n".encode()
        for path in ("x.py", "y.cpp", "z.pyi")
    ]
    assert python_hunks(b"".join(parts)) == parts[0] + parts[2]
