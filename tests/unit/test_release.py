"""A release of made-up wheels: served and installed, the same bytes twice, and nothing in it can be changed unseen."""

import functools
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from made_up import PYTHON, Tree, make_wheel

from castoff.builder.pipeline import build_wheels
from castoff.builder.plan import Request
from castoff.core.console import Console
from castoff.core.errors import CastoffError, PinError, ReleaseError, VerifyError
from castoff.core.places import ROOT
from castoff.core.tools import tool
from castoff.release.check import check_release, report
from castoff.release.layout import PROVENANCE, SBOM, SIGNATURE, SUMS, write_sums
from castoff.release.make import Asked, make_release

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
_made: dict[str, Path] = {}


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def asked(warm_tree: Tree) -> Asked:
    """What one asks of a tree that has a commit."""
    for name in ("LICENSE", "pyproject.toml", "ci/requirements.lock"):
        (warm_tree.root / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, warm_tree.root / name)
    (warm_tree.root / ".gitignore").write_text("dist/\n")
    git(warm_tree.root, "init", "--quiet")
    git(warm_tree.root, "add", "--all")
    git(warm_tree.root, "commit", "--quiet", "--message", "all")
    return Asked(
        pins=("2.9",),
        pythons=(PYTHON,),
        everything=False,
        earlier=(),
        indexes=(),
        out=warm_tree.root / "dist",
        verify_install=False,
        root=warm_tree.root,
    )


@pytest.fixture
def release(asked: Asked, console: Console, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of one's own; it is made once."""
    if "release" not in _made:
        made = make_release(asked, console)
        _made["release"] = tmp_path_factory.mktemp("made") / "release"
        made.rename(_made["release"])
    return shutil.copytree(_made["release"], tmp_path / "release")


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files, or the pages of PEP 691 to those who ask for them, and notes what was asked for."""

    negotiates = False
    asked_for: list[str]

    def do_GET(self) -> None:
        self.asked_for.append(self.path)
        if self.negotiates and self.path.endswith("/") and JSON_TYPE in self.headers["Accept"]:
            self.path += "index.v1_json"
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path, *, negotiates: bool) -> Iterator[tuple[str, list[str]]]:
    seen: list[str] = []
    kind = type("Handler", (_Handler,), {"negotiates": negotiates, "asked_for": seen})
    kind.extensions_map = {**_Handler.extensions_map, ".v1_json": JSON_TYPE}
    if negotiates:
        (folder / "simple" / "index.html").unlink()  # nothing but the other pages can be read
        for path in folder.glob("simple/*/index.html"):
            path.unlink()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(kind, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple/", seen
    finally:
        server.shutdown()
        server.server_close()


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run an installer that knows of no other index."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    environment = {**kept, "PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1", "NO_PROXY": "127.0.0.1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def installers(index: str, target: Path) -> dict[str, list[str | Path]]:
    where = ["--target", target]
    pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check"]
    return {
        "pip": [*pip, *where, "--index-url", index],
        "uv": [
            tool("uv"),
            "pip",
            "install",
            "--no-cache",
            "--python",
            sys.executable,
            *where,
            "--default-index",
            index,
        ],
    }


@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize("how", ["http", "http, PEP 691", "file"])
def test_pip_and_uv_install_from_the_index_with_hashes(release: Path, tmp_path: Path, how: str, installer: str) -> None:
    with served(release, negotiates="691" in how) as (url, seen):
        index = url if how != "file" else f"file://{release}/simple/"
        command = installers(index, tmp_path / "target")[installer]
        done = run(*command, "--require-hashes", "-r", release / "requirements" / "2.9.txt")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "target" / "torch" / "_answer.py").read_text() == "answer = 42\n"
    assert (tmp_path / "target" / "torch_xla-2.9.0+castoff.3.dist-info").is_dir()
    assert how == "file" or any(".whl" in path for path in seen)


def test_what_is_required_is_found_without_a_wheel(release: Path, tmp_path: Path) -> None:
    """PEP 658: the metadata beside the wheels is enough to resolve, and torch_xla brings this very torch."""
    with served(release, negotiates=False) as (url, seen):
        done = run(*installers(url, tmp_path / "target")["uv"], "--dry-run", "torch_xla")
    assert done.returncode == 0, done.stderr
    assert "torch==2.9.0+castoff.3" in done.stderr
    assert any(path.endswith(".metadata") for path in seen) and not any(path.endswith(".whl") for path in seen)


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_installers_refuse_another_wheel_by_its_hash(release: Path, tmp_path: Path, installer: str) -> None:
    (wheel,) = release.glob("wheels/torch-*.whl")
    other = make_wheel(tmp_path, "torch", "2.9.0+castoff.3", {"torch/__init__.py": b"other = True\n"})
    assert other.name == wheel.name
    other.replace(wheel)
    with served(release, negotiates=False) as (url, _):
        command = installers(url, tmp_path / "target")[installer]
        done = run(*command, "--require-hashes", "-r", release / "requirements" / "2.9.txt")
    assert done.returncode != 0 and re.search("(?i)hash", done.stderr)


def test_a_second_release_has_the_same_bytes(
    asked: Asked, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another cache and into another folder."""
    one = make_release(asked, console)
    assert list(asked.out.iterdir()) == [one] or {path.name for path in asked.out.iterdir()} == {
        "release",
        ".release.lock",
    }
    monkeypatch.setenv("CASTOFF_CACHE", str(tmp_path / "other cache"))
    other = make_release(replace(asked, out=tmp_path / "other"), console)
    names = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    checked = check_release(one)
    assert checked.wheels == 3 and not checked.dirty and not checked.signed
    head = subprocess.check_output(["git", "-C", asked.root, "rev-parse", "HEAD"], text=True).strip()
    assert checked.tree == head
    assert subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=one, check=False).returncode == 0


def test_wheels_that_are_there_are_used(asked: Asked, console: Console, tmp_path: Path) -> None:
    request = Request("cpu", "2.9", None, (), tmp_path / "elsewhere", verify_install=False, root=asked.root)
    there = build_wheels(request, console).target
    made = make_release(replace(asked, pins=(), pythons=(), earlier=(tmp_path / "elsewhere",)), console)
    for wheel in there.glob("*.whl"):
        assert (made / "wheels" / wheel.name).samefile(wheel)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_one_flipped_bit_is_refused_and_named(release: Path) -> None:
    check_release(release)
    for path in sorted(path for path in release.rglob("*") if path.is_file()):
        size = path.stat().st_size
        for at in sorted({0, size // 3, size - 1}):
            flip(path, at)
            with pytest.raises(VerifyError) as caught:
                check_release(release)
            if path.name != SUMS:  # there it is a line about another file
                assert str(path) in caught.value.summary
            flip(path, at)
    check_release(release)


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))


def other_hash(text: str) -> str:
    return re.sub(r"[0-9a-f]{64}", "0" * 64, text, count=1)


def no_tree(text: str) -> str:
    data = json.loads(text)
    data["predicate"]["buildDefinition"]["resolvedDependencies"].pop(0)
    return json.dumps(data)


def replacing(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


TAMPERED = {
    "HTML page": ("simple/torch/index.html", other_hash),
    "HTML page, metadata": ("simple/torch/index.html", replacing('core-metadata="sha256=', 'core-metadata="sha256=0')),
    "JSON page": ("simple/torch/index.v1_json", other_hash),
    "JSON page without files": ("simple/torch/index.v1_json", lambda text: '{"files": []}'),
    "JSON page, another place": ("simple/torch/index.v1_json", replacing("../../wheels/", "https://example.org/")),
    "bill of materials": (SBOM, other_hash),
    "no bill of materials": (SBOM, lambda text: "{}"),
    "provenance": (PROVENANCE, other_hash),
    "provenance of another kind": (PROVENANCE, replacing("slsa.dev/provenance/v1", "slsa.dev/provenance/v2")),
    "provenance without a tree": (PROVENANCE, no_tree),
    "provenance without a builder": (PROVENANCE, replacing('"builder"', '"bilder"')),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_does_not_agree_is_refused_though_every_hash_is_right(release: Path, what: str) -> None:
    name, change = TAMPERED[what]
    rewrite(release / name, change)
    write_sums(release, {})
    with pytest.raises(VerifyError) as caught:
        check_release(release)
    assert name.split("/")[0] in caught.value.summary


def test_files_that_are_too_many_or_missing_are_refused(release: Path) -> None:
    (release / "wheels" / "torch-9-py3-none-any.whl").write_bytes(b"")
    with pytest.raises(VerifyError, match="torch-9"):
        check_release(release)
    (release / "wheels" / "torch-9-py3-none-any.whl").unlink()
    extra = make_wheel(release / "wheels", "other", "1", {"other.py": b""})
    write_sums(release, {})
    with pytest.raises(VerifyError):
        check_release(release)
    extra.unlink()
    write_sums(release, {})
    check_release(release)
    (metadata,) = release.glob("wheels/torch-*.metadata")
    metadata.write_bytes(metadata.read_bytes() + b"\n")
    write_sums(release, {})
    with pytest.raises(VerifyError, match=r"torch-.*metadata"):
        check_release(release)
    metadata.unlink()
    with pytest.raises(VerifyError, match=r"torch-.*metadata"):
        check_release(release)
    with pytest.raises(VerifyError, match=SUMS):
        check_release(release / "wheels")


def test_whether_it_is_signed_is_said(release: Path) -> None:
    assert "nobody vouches" in report(release, check_release(release))
    (release / SIGNATURE).write_text("{}")
    assert "not checked here" in report(release, check_release(release))


def test_the_bill_of_materials_is_of_the_schema_and_names_what_went_in(release: Path, asked: Asked) -> None:
    text = (release / SBOM).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    data = json.loads(text)
    (torch,) = [part for part in data["components"] if part["name"] == "torch"]
    (ancestor,) = torch["pedigree"]["ancestors"]
    (stock,) = (asked.root.parent / "wheels").glob("torch-2.9.0-*.whl")
    assert ancestor["hashes"][0]["content"] == hashlib.sha256(stock.read_bytes()).hexdigest()
    (needs,) = [row["dependsOn"] for row in data["dependencies"] if row["ref"].startswith("torch_xla-2.9.0+")]
    assert needs == [torch["bom-ref"]]
    provenance = (release / PROVENANCE).read_text()
    assert ancestor["hashes"][0]["content"] in provenance and "dirty" not in provenance


def test_a_tree_without_a_commit_of_all_of_it_is_refused(asked: Asked, console: Console) -> None:
    (asked.root / "patches" / "more").write_text("")
    with pytest.raises(ReleaseError) as caught:
        make_release(asked, console)
    assert "not committed" in caught.value.found
    shutil.rmtree(asked.root / ".git")
    with pytest.raises(ReleaseError) as caught:
        make_release(asked, console)
    assert "not in git" in caught.value.found
    assert not asked.out.exists()


def test_a_dirty_release_says_so(asked: Asked, console: Console) -> None:
    (asked.root / "NOTES").write_text("")
    made = make_release(replace(asked, dirty=True, builder="https://example.org/me"), console)
    checked = check_release(made)
    assert checked.dirty and checked.builder == "https://example.org/me"
    assert "not committed" in report(made, checked)


def test_a_release_that_fails_leaves_nothing(
    asked: Asked, console: Console, release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an earlier one stays."""
    for before in ([], ["release"]):
        monkeypatch.setattr("castoff.release.make.write_index", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make_release(asked, console)
        left = [path for path in asked.out.rglob("*") if path.suffix == ".whl" or path.name.startswith(".release.n")]
        assert [path for path in left if asked.out / "release" not in path.parents] == []
        assert [path.name for path in asked.out.glob("r*")] == before
        if not before:
            shutil.copytree(release, asked.out / "release")
    check_release(asked.out / "release")


def test_a_python_that_no_pin_has_is_refused(asked: Asked, console: Console) -> None:
    with pytest.raises(PinError, match="no pin of this release"):
        make_release(replace(asked, pythons=(PYTHON, "3.99")), console)
    with pytest.raises(CastoffError, match="there is no pin"):
        make_release(replace(asked, pins=("1.0",)), console)
