"""castoff in an environment that exists: what it becomes, what is refused, and what a kill or a full disk leaves."""

import compileall
import errno
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import TORCH_COMMIT, TORCH_INIT, TORCH_XLA_COMMIT, Tree, make_wheel

from castoff.builder.pipeline import build
from castoff.builder.plan import Request
from castoff.core.console import Console
from castoff.core.errors import InstallError
from castoff.core.places import ROOT
from castoff.core.runner import Runner
from castoff.formats.wheels import Row, parse_record, record_digest, write_record
from castoff.inplace.choice import left_out
from castoff.inplace.commands import describe, install, uninstall
from castoff.inplace.delta import FOLDER, Delta, Part, read_deltas, write_delta
from castoff.inplace.package import build_package
from castoff.inplace.target import Target, find_target

NEW = {
    "torch": {
        "torch/other.py": b"first = 1\nthird = 30\n",
        "torch/_answer.py": b"answer = 42\n",
        "torch/new/deep/module.py": b"deep = True\n",
        "torch/lib/libcastoff_torch.so": b"\x7fELF overlay",
    },
    "torch_xla": {"torch_xla/_new.py": b"new = True\n", "torch_xla/__init__.py": b"import torch\nfrom . import _new\n"},
}
COMMITS = {"torch": TORCH_COMMIT, "torch_xla": TORCH_XLA_COMMIT}

Snapshot = dict[str, tuple[bytes, int]]


def put(wheel: Path, site: Path) -> None:
    """Install a wheel as pip does, compiled files and its own rows of RECORD included."""
    with zipfile.ZipFile(wheel) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        for name in names:
            archive.extract(name, site)
            (site / name).chmod(0o755 if archive.getinfo(name).external_attr >> 16 & 0o100 else 0o644)
    (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    (site / info / "INSTALLER").write_text("pip\n")
    (site / info / "direct_url.json").write_text('{"url": "file:///there.whl"}')
    compileall.compile_dir(str(site / info.split("-")[0]), quiet=1)
    pyc = [path.relative_to(site).as_posix() for path in (site / info.split("-")[0]).rglob("*.pyc")]
    rows = parse_record((site / info / "RECORD").read_bytes())
    own = [
        Row(f"{info}/INSTALLER", "", ""),
        Row(f"{info}/direct_url.json", record_digest(b'{"url": "file:///there.whl"}'), "28"),
    ]
    rows += [*own, *(Row(path, "", "") for path in pyc), Row("../../../bin/torchrun", "sha256=x", "1")]
    (site / info / "RECORD").write_bytes(write_record(rows))


def snapshot(site: Path) -> Snapshot:
    """Every file of an environment, but for those of castoff's journal."""
    files = {path.relative_to(site).as_posix(): path for path in site.rglob("*") if path.is_file()}
    return {
        name: (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for name, path in files.items()
        if not name.startswith(".castoff")
    }


class Place:
    """An environment with made-up stock wheels, and a delta for it."""

    def __init__(self, folder: Path, libraries: dict[str, bytes], console: Console) -> None:
        self.folder, self.console = folder, console
        self.site = folder / "lib" / "python3" / "site-packages"
        self.deltas = folder / "deltas"
        self.stock = {
            "torch": {
                "torch/__init__.py": TORCH_INIT.encode(),
                "torch/version.py": f"__version__ = '2.9.0+cu128'\ngit_version = '{TORCH_COMMIT}'\n".encode(),
                "torch/other.py": b"first = 1\nthird = 3\n",
                **{f"torch/lib/{name}": data for name, data in libraries.items()},
            },
            "torch_xla": {
                "torch_xla/__init__.py": b"import torch\n",
                "torch_xla/version.py": f"__version__ = '2.9.0'\n__xla_gitrev__ = '{TORCH_XLA_COMMIT}'\n".encode(),
            },
        }
        self.site.mkdir(parents=True)
        self.wheels = {name: make_wheel(folder / "wheels", name, "2.9.0", self.stock[name]) for name in self.stock}
        for wheel in self.wheels.values():
            put(wheel, self.site)
        self.target = Target(Path(sys.executable), self.site, (self.site / "torch",), conda=False)
        self.offer("castoff.3")

    def offer(self, version: str, new: dict[str, dict[str, bytes]] = NEW) -> None:
        parts = {
            project: Part(
                version="2.9.0",
                patched=f"2.9.0+{version}",
                commit=COMMITS[project],
                requires=("numpy",) if project == "torch_xla" else (),
                stock={name: record_digest(data) for name, data in self.stock[project].items() if name in files},
                new={name: record_digest(data) for name, data in files.items()},
            )
            for project, files in new.items()
        }
        files = {name: data for group in new.values() for name, data in group.items()}
        write_delta(self.deltas, Delta("2.9", version, 1, parts), files.items())

    def install(self) -> str:
        return install(self.target, read_deltas(self.deltas), self.deltas, self.console).text

    def uninstall(self) -> str:
        return uninstall(self.target, self.console).text

    def state(self) -> str:
        return describe(self.target).text


@pytest.fixture
def place(tmp_path: Path, libraries: dict[str, bytes], console: Console, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds of runs: none loses power
    return Place(tmp_path / "env", libraries, console)


def test_there_and_back(place: Place, tmp_path: Path) -> None:
    """Replaced and not written through; and afterwards the same bytes, modes, even inodes as before."""
    cache = tmp_path / "cache"
    shutil.copytree(place.site, cache, copy_function=os.link)
    before, inode = snapshot(place.site), (place.site / "torch/other.py").stat().st_ino
    assert place.install().endswith("now has torch 2.9.0+castoff.3, torch_xla 2.9.0+castoff.3")
    after = snapshot(place.site)
    for project, files in NEW.items():
        for name, data in files.items():
            assert after[name][0] == data
        assert b"'2.9.0+castoff.3'" in after[f"{project}/version.py"][0]
        info = f"{project}-2.9.0+castoff.3.dist-info"
        assert b"\nVersion: 2.9.0+castoff.3\n" in after[f"{info}/METADATA"][0]
        assert f"{project}-2.9.0.dist-info/METADATA" not in after and f"{info}/direct_url.json" not in after
        rows = {row.path: row for row in parse_record(after[f"{info}/RECORD"][0])}
        assert "../../../bin/torchrun" in rows
        own = {name for name in after if name.startswith((f"{project}/", info)) and not name.endswith(".pyc")}
        assert own == {name for name in rows if not name.startswith("../") and not name.endswith(".pyc")}
        for name in own - {f"{info}/RECORD", f"{info}/INSTALLER"}:
            assert rows[name].digest == record_digest(after[name][0]), name
        assert {name for name in rows if name.endswith(".pyc")} <= after.keys()
    assert b"\nRequires-Dist: numpy\n" in after["torch_xla-2.9.0+castoff.3.dist-info/METADATA"][0]
    assert snapshot(cache) == before
    assert place.state().count("patched in place by castoff.3") == 2
    assert place.install().endswith("already")
    compileall.compile_dir(str(place.site), quiet=1)
    place.uninstall()
    assert snapshot(place.site) == before
    assert (place.site / "torch/other.py").stat().st_ino == inode
    assert not list(place.site.glob(".castoff*")) and not (place.site / "torch/new").exists()
    assert place.state().split() == ["torch", "2.9.0", "stock", "torch_xla", "2.9.0", "stock"]
    with pytest.raises(InstallError, match="nothing to uninstall"):
        place.uninstall()


def test_a_pin_of_torch_alone(place: Place) -> None:
    """There and back without torch_xla, where a pin has none; where each has one, it is missing."""
    for path in place.site.glob("torch_xla*"):
        shutil.rmtree(path)
    before = snapshot(place.site)
    with pytest.raises(InstallError, match="has no torch_xla"):
        place.install()
    pair, torch = read_deltas(place.deltas)[0], {"torch": NEW["torch"]}
    place.offer("castoff.3", torch)
    alone = replace(read_deltas(place.deltas)[0], pin="2.15")
    write_delta(place.deltas, alone, NEW["torch"].items())
    write_delta(
        place.deltas, replace(pair, parts={**pair.parts, "torch": replace(pair.parts["torch"], version="2.8.0")}), ()
    )
    assert place.install().endswith("now has torch 2.9.0+castoff.3")
    assert place.install().endswith("already")
    place.uninstall()
    assert snapshot(place.site) == before


def test_what_was_edited_is_told_of(place: Place, log: io.StringIO) -> None:
    before = snapshot(place.site)
    place.install()
    (place.site / "torch/other.py").write_text("third = 33\n")
    assert "changed since: torch/other.py" in place.state()
    place.uninstall()
    assert "changed since castoff put them there, and stock again now: torch/other.py" in log.getvalue()
    assert snapshot(place.site) == before


def test_a_later_castoff_takes_the_place_of_an_earlier(place: Place) -> None:
    before = snapshot(place.site)
    place.install()
    new = {**NEW, "torch": {name: data for name, data in NEW["torch"].items() if name != "torch/_answer.py"}}
    shutil.rmtree(place.deltas)
    place.offer("castoff.4", new)
    assert "torch 2.9.0+castoff.4" in place.install()
    assert not (place.site / "torch/_answer.py").exists()
    place.uninstall()
    assert snapshot(place.site) == before


@pytest.mark.parametrize("version", ["2.9.0", "2.15.0"])
def test_where_pip_replaced_torch_since(place: Place, version: str) -> None:
    """As `pip install torchvision` does: the same stock torch is patched again, another is refused."""
    before = snapshot(place.site)
    place.install()
    info = place.site / "torch-2.9.0+castoff.3.dist-info"
    for row in parse_record((info / "RECORD").read_bytes()):
        (place.site / row.path).unlink(missing_ok=True)
    put(make_wheel(place.folder / "other", "torch", version, place.stock["torch"]), place.site)
    info.rmdir()
    assert "replaced by an installer" in place.state()
    if version == "2.9.0":
        place.install()
        assert place.state().count("patched in place by castoff.3") == 2
        place.uninstall()
    else:
        found = snapshot(place.site)
        with pytest.raises(InstallError, match="not the releases of a pin"):
            place.install()
        assert snapshot(place.site) == found
        place.uninstall()
        assert snapshot(place.site).keys() - before.keys() == {
            name for name in snapshot(place.site) if name.startswith("torch-2.15.0")
        }
    assert snapshot(place.site)["torch_xla/__init__.py"] == before["torch_xla/__init__.py"]


def _edit(place: Place, name: str, text: str) -> None:
    path = place.site / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _same_size(place: Place) -> None:
    _edit(place, "torch/other.py", "first = 1\nthird = 9\n")


def _missing(place: Place) -> None:
    shutil.rmtree(place.site / "torch_xla-2.9.0.dist-info")


def _twice(place: Place) -> None:
    shutil.copytree(place.site / "torch-2.9.0.dist-info", place.site / "torch-2.8.0.dist-info")


def _renamed(version: str) -> Callable[[Place], None]:
    def rename(place: Place) -> None:
        (place.site / "torch-2.9.0.dist-info").rename(place.site / f"torch-{version}.dist-info")

    return rename


def _linked(place: Place) -> None:
    (place.site / "torch").rename(place.folder / "torch")
    (place.site / "torch").symlink_to(place.folder / "torch")


def _elsewhere(place: Place) -> None:
    place.target = replace(place.target, torch=(Path("/usr/lib/torch"),))


REFUSED: dict[str, tuple[Callable[[Place], None], str]] = {
    "a file of the same size": (_same_size, "changed since: torch/other.py"),
    "a file of another size": (lambda place: _edit(place, "torch/__init__.py", ""), "changed since: torch/__init__.py"),
    "a file in the way": (lambda place: _edit(place, "torch/_answer.py", ""), "changed since: torch/_answer.py"),
    "the metadata": (lambda place: _edit(place, "torch-2.9.0.dist-info/METADATA", ""), "METADATA"),
    "no torch_xla": (_missing, "has no torch_xla"),
    "two": (_twice, "more than once"),
    "no RECORD": (lambda place: (place.site / "torch-2.9.0.dist-info/RECORD").unlink(), "has no RECORD"),
    "another version": (_renamed("2.15.0"), "torch 2.15.0"),
    "castoff's wheel": (_renamed("2.9.0+castoff.3"), "castoff's already"),
    "another commit": (
        lambda place: _edit(place, "torch/version.py", f"__version__ = '2.9.0'\ngit_version = '{'c' * 40}'\n"),
        "another build",
    ),
    "editable": (
        lambda place: _edit(place, "torch-2.9.0.dist-info/direct_url.json", '{"dir_info": {"editable": true}}'),
        "is editable",
    ),
    "conda": (lambda place: _edit(place, "torch-2.9.0.dist-info/INSTALLER", "conda\n"), "is conda's"),
    "a link": (_linked, "from elsewhere"),
    "another environment's": (_elsewhere, "from elsewhere"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_and_unchanged(place: Place, name: str) -> None:
    spoil, expected = REFUSED[name]
    spoil(place)
    before = snapshot(place.site)
    with pytest.raises(InstallError) as raised:
        place.install()
    assert expected in f"{raised.value} {raised.value.found}"
    assert snapshot(place.site) == before and not list(place.site.glob(".castoff*"))


def test_another_abi_is_refused(place: Place, libraries: dict[str, bytes]) -> None:
    (delta,) = read_deltas(place.deltas)
    (place.deltas / "2.9" / "delta.json").write_text(replace(delta, cxx11_abi=0).text())
    with pytest.raises(InstallError, match="C\\+\\+ ABI"):
        place.install()


def test_the_tree_has_nothing_to_install(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="no compiled overlays"):
        read_deltas(tmp_path)


def test_a_slim_environment_is_not_a_modified_one(place: Place) -> None:
    shutil.rmtree(place.site / "torch/include", ignore_errors=True)
    (place.site / "torch/lib/libtorch_python.so").unlink()
    assert "now has" in place.install()


def in_child(body: Callable[[], object]) -> int:
    """Run something in a process of its own; return its exit status: 0, 1 if it raised InstallError, 9 if killed."""
    child = os.fork()
    if child == 0:
        try:
            body()
            status = 0
        except InstallError:
            status = 1
        except BaseException:  # noqa: BLE001
            import traceback

            traceback.print_exc()
            status = 70
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = frozenset({"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.symlink"})


def steps(site: Path, act: Callable[[int, str], None]) -> None:
    """Call a function before each step of this process that changes something in a folder, with its number."""
    count = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        if event == "open" and not (isinstance(args[2], int) and args[2] & _WRITES):
            return
        if (event == "open" or event in _CHANGES) and str(site) in str(args[0]):
            count += 1
            act(count, event)

    sys.addaudithook(hook)


def killed_at(place: Place, body: Callable[[], object]) -> Iterator[int]:
    """Run something again and again, killed before its first step, its second, and so on until it ends unharmed."""
    for at in range(1, 1000):

        def act(count: int, _event: str, at: int = at) -> None:
            if count == at:
                os._exit(9)

        status = in_child(lambda: (steps(place.site, act), body()))
        assert status in (0, 9), f"step {at}"
        if status == 0:
            assert at > 30  # else it has not been killed everywhere
            return
        yield at


def whole_or_loud(place: Place, *whole: Snapshot) -> bool:
    """Whether an environment is one of these; if it is none, its torch cannot be imported and says why."""
    found = snapshot(place.site)
    if found in whole:
        return True
    assert b"castoff was stopped" in found["torch/version.py"][0]
    assert "run `castoff install` or `castoff uninstall`" in place.state()
    return False


def test_killed_at_each_step_of_install(place: Place) -> None:
    stock = snapshot(place.site)
    place.install()
    patched = snapshot(place.site)
    place.uninstall()
    between = 0
    for at in killed_at(place, place.install):
        between += not whole_or_loud(place, stock, patched)
        if at % 2:
            place.install()
            assert snapshot(place.site) == patched, f"step {at}"
        if (place.site / ".castoff" / "journal.json").exists():
            place.uninstall()
        assert snapshot(place.site) == stock, f"step {at}"
    assert between > 10
    assert snapshot(place.site) == patched


def test_killed_at_each_step_of_uninstall(place: Place) -> None:
    stock = snapshot(place.site)
    place.install()
    patched = snapshot(place.site)
    between = 0
    for at in killed_at(place, place.uninstall):
        between += not whole_or_loud(place, stock, patched)
        if at % 2 and (place.site / ".castoff" / "journal.json").exists():
            place.uninstall()
            assert snapshot(place.site) == stock, f"step {at}"
        place.install()
        assert snapshot(place.site) == patched, f"step {at}"
    assert between > 10
    assert snapshot(place.site) == stock


def test_a_full_disk_changes_nothing(place: Place) -> None:
    """From each step on: what needs space fails, renames and removals do not."""
    place.install()
    place.uninstall()
    stock = snapshot(place.site)
    for at in range(1, 1000):

        def act(count: int, event: str, at: int = at) -> None:
            if count >= at and event in {"open", "os.link", "os.mkdir"}:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        status = in_child(lambda: (steps(place.site, act), place.install()))
        if status == 0:
            assert at > 30
            break
        assert status == 1, f"step {at}"
        assert snapshot(place.site) == stock, f"step {at}"
        assert not (place.site / ".castoff").exists()
    assert place.state().count("patched in place") == 2


def test_many_at_once(place: Place) -> None:
    stock = snapshot(place.site)
    bodies = [place.install, place.uninstall] * 4
    children = []
    for body in bodies:
        child = os.fork()
        if child == 0:
            try:
                body()
            except InstallError:  # nothing to uninstall: a matter of order
                os._exit(0)
            except BaseException:  # noqa: BLE001
                os._exit(70)
            os._exit(0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * len(children)
    place.install()
    assert place.state().count("patched in place") == 2
    place.uninstall()
    assert snapshot(place.site) == stock


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_environment_is_refused(place: Place) -> None:
    place.site.chmod(0o555)
    with pytest.raises(InstallError, match="cannot be written"):
        place.install()


def test_a_read_only_file_system_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(place.site))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InstallError, match="cannot be written"):
        place.install()


def test_the_target_of_this_python(runner: Runner) -> None:
    target = find_target(Path(sys.executable), runner)
    assert (target.site / "pytest").is_dir() and target.torch == ()
    with pytest.raises(InstallError, match="does not run"):
        find_target(Path("/bin/false"), runner)


def test_the_package_gives_what_the_wheels_give(warm_tree: Tree, console: Console, tmp_path: Path) -> None:
    """Built from one tree; the package twice, with the same bytes."""
    for name in ("LICENSE", "pyproject.toml", "ci/requirements.lock"):
        (warm_tree.root / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, warm_tree.root / name)
    request = Request("cpu", "2.9", None, (), warm_tree.root / "dist", verify_install=False, root=warm_tree.root)
    wheels, package = build(request, console), build_package(request, ["2.9"], console)
    assert package.name == "castoff-3-py3-none-manylinux_2_28_x86_64.whl"
    again = build_package(replace(request, out=tmp_path / "again"), ["2.9"], console)
    assert again.read_bytes() == package.read_bytes()
    with zipfile.ZipFile(package) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        record = parse_record(archive.read("castoff-3.dist-info/RECORD"))
        assert sorted(row.path for row in record) == sorted(names)
        metadata = archive.read("castoff-3.dist-info/METADATA").decode()
        assert "castoff = castoff.cli.main:main" in archive.read("castoff-3.dist-info/entry_points.txt").decode()
        archive.extractall(tmp_path / "package")
    assert "Requires-Dist: typer\n" in metadata and "\nVersion: 3\n" in metadata
    assert not any("container" in name or "__pycache__" in name for name in names)

    ours, theirs = tmp_path / "one", tmp_path / "other"
    deltas = tmp_path / "package" / "castoff" / "tree" / FOLDER
    for wheel in warm_tree.wheels.glob("torch*.whl"):
        put(wheel, ours)
    target = Target(Path(sys.executable), ours, (ours / "torch",), conda=False)
    install(target, read_deltas(deltas), deltas, console)
    for wheel in wheels.glob("torch*.whl"):
        put(wheel, theirs)
    for path in theirs.glob("*.dist-info"):
        (path / "INSTALLER").write_text("castoff\n")
        (path / "direct_url.json").unlink()
    one, other = (
        {name: row for name, row in snapshot(site).items() if not name.endswith(".pyc")} for site in (ours, theirs)
    )
    assert one.keys() == other.keys()
    for name in one:
        if not name.endswith("/RECORD"):
            assert one[name] == other[name], name
            continue
        rows = [
            {row for row in parse_record(files[name][0]) if not row.path.endswith((".pyc", "direct_url.json"))}
            for files in (one, other)
        ]
        assert rows[0] == rows[1]
    assert json.loads((deltas / "2.9" / "delta.json").read_text())["castoff"] == "castoff.3"


def test_topics_that_are_left_out_are_off_by_default(place: Place) -> None:
    """By the environment of the process, before torch loads a library; and it is all gone again afterwards."""

    def put(*names: str) -> str:
        deltas = read_deltas(place.deltas)
        return install(place.target, deltas, place.deltas, place.console, left_out=lambda pin: names).text

    module = place.site / "torch" / "version.py"  # torch imports it first

    def disabled(**environment: str) -> str:
        program = "import os, runpy, sys; runpy.run_path(sys.argv[1]); print(os.environ.get('CASTOFF_DISABLE'))"
        return subprocess.check_output([sys.executable, "-c", program, module], env=environment, text=True).strip()

    before = snapshot(place.site)
    assert put("one", "two").endswith(", without one,two")
    assert disabled() == "one,two"
    assert disabled(CASTOFF_DISABLE="") == "" and disabled(CASTOFF_DISABLE="three") == "three"
    assert "without one,two" in place.state()
    version = parse_record((place.site / "torch-2.9.0+castoff.3.dist-info" / "RECORD").read_bytes())
    (row,) = [row for row in version if row.path == "torch/version.py"]
    assert row.digest == record_digest(module.read_bytes())

    assert put("one", "two").endswith("already")
    place.offer("castoff.4")
    assert place.install().endswith("without one,two") and disabled() == "one,two"  # a later castoff keeps the choice
    assert put("two").endswith("without two") and disabled() == "two"
    assert "without" not in put() and disabled() == "None"
    place.uninstall()
    assert snapshot(place.site) == before


def test_a_choice_that_is_refused_changes_nothing(place: Place) -> None:
    place.install()
    before = snapshot(place.site)

    def refuse(_pin: str) -> tuple[str, ...]:
        raise InstallError("no such topic", expected="", found="", next_step="")

    with pytest.raises(InstallError, match="no such topic"):
        install(place.target, read_deltas(place.deltas), place.deltas, place.console, left_out=refuse)
    assert snapshot(place.site) == before


def test_topics_are_chosen_with_what_they_require(tree: Tree) -> None:
    tree.topic("kill-switch", {})
    tree.topic("base", {}, requires='["torch/kill-switch"]')
    tree.topic("user", {}, "torch_xla", requires='["torch/base", "torch/merged"]')
    tree.topic("other", {}, "torch_xla")
    tree.topic("older", {}, pins='{"2.9" = "cannot: a reason"}')
    tree.topic("merged", {}, pins='{"2.9" = "upstream"}')

    def choose(only: str = "", without: str = "") -> tuple[str, ...]:
        return left_out(tree.root, "2.9", only.split(), without.split())

    assert choose() == ()
    assert choose(without="other") == ("other",)
    assert choose(only="user") == ("other",)  # base is required
    assert choose(only="other") == ("base", "user")
    assert choose(without="base user") == ("base", "user")
    assert choose(only="user other", without="other") == ("other",)
    for only, without, why in (
        ("", "base", "user requires base"),
        ("user", "base", "user requires base"),
        ("", "older", "no such topic: older"),
        ("", "kill-switch", "no such topic: kill-switch"),
        ("nothing", "", "no such topic: nothing"),
    ):
        with pytest.raises(InstallError, match=why):
            choose(only, without)
